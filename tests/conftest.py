"""Shared by all tests."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
import torch
from tests import warm

from vertizo.studies import processes

os.environ["OMP_NUM_THREADS"] = "1"  # of all that tests start
torch.set_num_threads(1)

_NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state folder for each test: what ledgers leave there is no other test's, nor the user's."""
    place = tmp_path_factory.getbasetemp() / "state" / str(next(_NUMBERS))
    monkeypatch.setenv("XDG_STATE_HOME", str(place))


@pytest.fixture(scope="session", autouse=True)
def _warm_processes() -> None:
    """Runs of studies in processes that have PyTorch; those of `vertizo` as a process are cold."""
    processes.CONTEXT = warm.Forks()  # type: ignore[assignment]


@pytest.fixture(scope="session")
def mnist_root() -> Path:
    """The folder that VERTIZO_DATA names, if MNIST's files are in it."""
    root = Path(os.environ.get("VERTIZO_DATA", "nowhere"))
    if not (root / "mnist" / "train-images-idx3-ubyte.gz").is_file():
        pytest.skip("VERTIZO_DATA names no folder with MNIST's files")
    return root
