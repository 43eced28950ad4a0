"""Studies to try: images like MNIST's, a small table on digits."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vertizo.lab.reproduction.figures import Finished
from vertizo.lab.reproduction.study import GridConfig

TRAIN, TEST = 260, 40
DIGITS: dict[str, Any] = {
    "title": "Digits",
    "paper": "none",
    "seeds": 1,
    "settings": {
        "epochs": 2,
        "batch_size": 9,
        "data": {"name": "digits", "limit": 60, "parties": 2},
        "client": {"optimizer": {"learning_rate": 0.003}},
        "server": {"optimizer": {"learning_rate": 0.01}},
    },
    "columns": {"accuracy": {"words": "accuracy"}},
    "rows": {"vafl": {"words": "VAFL", "settings": {"method": {"name": "vafl"}}}},
}


@pytest.fixture
def grid_study() -> Callable[..., GridConfig]:
    """A small study on digits with other keys."""

    def make(**keys: Any) -> GridConfig:
        return GridConfig.model_validate({**DIGITS, **keys})

    return make


@pytest.fixture
def mnist_like(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of data with files in MNIST's format and noise in them."""
    numbers = np.random.default_rng(0)
    place = tmp_path / "data" / "mnist"
    place.mkdir(parents=True)
    for name, count in (("train", TRAIN), ("t10k", TEST)):
        images = numbers.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        header = struct.pack(">IIII", 2051, count, 28, 28)
        (place / f"{name}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        header = struct.pack(">II", 2049, count)
        (place / f"{name}-labels-idx1-ubyte").write_bytes(header + labels.tobytes())
    monkeypatch.setenv("VERTIZO_DATA", str(place.parent))
    return place.parent


@pytest.fixture
def finished() -> Callable[..., Finished]:
    """A run that ended: accuracies by evaluation, ten rounds and 1 MB apart."""

    def make(
        accuracies: list[float], privacy: dict[str, Any] | None = None, **summary: Any
    ) -> Finished:
        rows = [
            {
                "round": 10 * place,
                "epoch": float(place),
                "seconds": 2.0 * place,
                "bytes_up": 750_000 * place,
                "bytes_down": 250_000 * place,
                "validation_accuracy": value,
                "validation_loss": 1 - value,
                "train_accuracy": value - 0.1 if place else None,
            }
            for place, value in enumerate(accuracies)
        ]
        whole = {
            "test_accuracy": accuracies[-1],
            "test_loss": 0.5,
            "bytes_up": rows[-1]["bytes_up"],
            "bytes_down": rows[-1]["bytes_down"],
            "bytes_table": 0,
            "epochs": rows[-1]["epoch"],
            "privacy": privacy or {"guarantee": "none", "noise_std": None},
            **summary,
        }
        return Finished(whole, rows)

    return make
