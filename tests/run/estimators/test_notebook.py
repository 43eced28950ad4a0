"""The notebooks of examples/ are stored with their results, and run on fewer customers as well."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.lazy import Lazy

nbclient = Lazy("nbclient")
nbformat = Lazy("nbformat")
jupyter_manager = Lazy("jupyter_client.manager")

EXAMPLES = Path(__file__).parents[3] / "examples"
SMALL = {
    "credit_default": "SEEDS = [0]\nROWS = 1000\nEPOCHS = 1",
    "narrow_messages": "SEEDS = [0]\nROWS = 1000",
    "first_look": "CUSTOMERS = 800",
}
"""What takes the place of the parameters, by notebook."""
FILES = {  # and one makes its customers up
    "credit_default": "credit-default/credit-default.csv",
    "narrow_messages": "adult/adult.data",
}
PRINTED = {
    "credit_default": ["800 customers to train on", "ε = 0.5 at δ = 1e-05"],
    "narrow_messages": ["1,000 customers to train on", "ε = 1 at", "label advantage 0.107"],
    "first_look": ["640 customers to train on", "ε = 1 at", "partners learn, ε = 1: AUC 0."],
}


def read(name: str) -> nbformat.NotebookNode:
    return nbformat.read(EXAMPLES / f"{name}.ipynb", 4)


def cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_they_are_stored_as_they_ran() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.ipynb")} == SMALL.keys()
    for name in SMALL:
        stored = cells(read(name))
        assert [cell.execution_count for cell in stored] == list(range(1, len(stored) + 1)), name
        outputs = [output for cell in stored for output in cell.outputs]
        assert not any(output.output_type == "error" for output in outputs), name
        assert not any(output.get("name") == "stderr" for output in outputs), name
        assert any("image/png" in output.get("data", {}) for output in outputs), name


@pytest.mark.long
@pytest.mark.full
@pytest.mark.parametrize("name", FILES)
def test_it_runs(name: str) -> None:
    if not (Path(os.environ.get("VERTIZO_DATA", "nowhere")) / FILES[name]).is_file():
        pytest.skip(f"VERTIZO_DATA names no folder with {FILES[name]}")
    run(name)


@pytest.mark.full
def test_the_one_without_files_runs() -> None:
    run("first_look")


def run(name: str) -> None:
    notebook = read(name)
    for cell in cells(notebook):
        if "parameters" in cell.metadata.get("tags", []):
            cell.source = SMALL[name]
        cell.outputs, cell.execution_count = [], None
    manager = jupyter_manager.AsyncKernelManager(kernel_name="python3", transport="ipc")
    nbclient.NotebookClient(notebook, km=manager, timeout=600).execute(cleanup_kc=True)
    outputs = [output for cell in cells(notebook) for output in cell.outputs]
    for words in PRINTED[name]:
        assert any(words in output.get("text", "") for output in outputs), words
    assert any("image/png" in output.get("data", {}) for output in outputs)
