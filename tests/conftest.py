"""Shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def mnist_root() -> Path:
    """The folder that VERTIZO_DATA names, if MNIST's files are in it."""
    root = Path(os.environ.get("VERTIZO_DATA", "nowhere"))
    if not (root / "mnist" / "train-images-idx3-ubyte.gz").is_file():
        pytest.skip("VERTIZO_DATA names no folder with MNIST's files")
    return root
