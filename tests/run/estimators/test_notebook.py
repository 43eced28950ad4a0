"""The notebook of examples/ is stored with its results, and runs on fewer customers as well."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[3] / "examples" / "credit_default.ipynb"
SMALL = "SEEDS = [0]\nROWS = 1000\nEPOCHS = 1"


def cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_it_is_stored_as_it_ran() -> None:
    stored = cells(nbformat.read(NOTEBOOK, 4))
    assert [cell.execution_count for cell in stored] == list(range(1, len(stored) + 1))
    outputs = [output for cell in stored for output in cell.outputs]
    assert not any(output.output_type == "error" for output in outputs)
    assert not any(output.get("name") == "stderr" for output in outputs)
    assert any("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.slow
@pytest.mark.processes
def test_it_runs() -> None:
    root = Path(os.environ.get("VERTIZO_DATA", "nowhere"))
    if not (root / "credit-default" / "credit-default.csv").is_file():
        pytest.skip("VERTIZO_DATA names no folder with the Credit Default data set")
    notebook = nbformat.read(NOTEBOOK, 4)
    for cell in cells(notebook):
        if "parameters" in cell.metadata.get("tags", []):
            cell.source = SMALL
        cell.outputs, cell.execution_count = [], None
    manager = AsyncKernelManager(kernel_name="python3", transport="ipc")
    NotebookClient(notebook, km=manager, timeout=600).execute(cleanup_kc=True)
    outputs = [output for cell in cells(notebook) for output in cell.outputs]
    assert any("800 customers to train on" in output.get("text", "") for output in outputs)
    assert any("ε = 0.4999" in output.get("text", "") for output in outputs)
    assert any("image/png" in output.get("data", {}) for output in outputs)
