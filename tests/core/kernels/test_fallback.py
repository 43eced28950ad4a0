"""Without the compiled functions the plain ones do their work, and a run says so once."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vertizo.cli.main import main
from vertizo.core import kernels
from vertizo.core.kernels import plain, plain_products

TWINS = {
    name: function
    for twins in (plain, plain_products)
    for name, function in vars(twins).items()
    if getattr(function, "__module__", "") == twins.__name__ and name[0] != "_"
}


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No compiled function can be imported."""
    with monkeypatch.context() as patch:
        for name in ("_compiled", "_products"):
            patch.setitem(sys.modules, f"vertizo.core.kernels.{name}", None)
        importlib.reload(kernels)
        yield
    importlib.reload(kernels)


def test_the_list_names_every_plain_twin() -> None:
    assert len(TWINS) == 28
    for name, twin in TWINS.items():
        found = getattr(kernels, name)
        assert found.__name__ == name
        assert (found is twin) != kernels.COMPILED, name
    assert bool(kernels.notes()) != kernels.COMPILED


def test_a_run_without_the_compiled_functions_says_so_once(
    hidden: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert not kernels.COMPILED
    for name, twin in TWINS.items():
        assert getattr(kernels, name) is twin
    monkeypatch.chdir(tmp_path)
    options = ("data.limit=60", "batch_size=9", "epochs=2")
    sets = [part for option in options for part in ("--set", option)]
    monkeypatch.setattr(sys, "argv", ["vertizo", "train", "--controls", "--json", *sets])
    with pytest.raises(SystemExit):
        main()
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("note: ")
    assert "compiled loops are missing" in line
