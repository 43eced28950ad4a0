"""ModelNet10 as views of voxels."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.data.refusals import refused

from vertizo.core.errors import DataError
from vertizo.core.randomness import Stream
from vertizo.data.datasets import catalog, voxels
from vertizo.data.options import DataConfig
from vertizo.data.prepare import prepare


def write(root: Path, **changes: Any) -> Path:
    rng = np.random.default_rng(0)
    arrays = {
        "x_train": rng.integers(0, 2, (6, 30, 30, 30), dtype=np.uint8),
        "y_train": np.arange(6),
        "x_test": rng.integers(0, 2, (3, 30, 30, 30), dtype=np.uint8),
        "y_test": np.arange(3),
        **changes,
    }
    np.savez(root / voxels.FILE, **{k: v for k, v in arrays.items() if v is not None})
    return root


def test_one_voxel_from_six_sides() -> None:
    grid = np.zeros((1, 30, 30, 30), np.uint8)
    grid[0, 3, 5, 10] = 1
    views = voxels.views(grid)[0, :, 0]
    places = [(5, 10), (5, 19), (3, 10), (3, 19), (3, 5), (3, 24)]
    depths = [27, 4, 25, 6, 20, 11]
    for side, ((line, column), depth) in enumerate(zip(places, depths, strict=True)):
        silhouette, distance = views[2 * side], views[2 * side + 1]
        assert silhouette.sum() == silhouette[line, column] == 1
        assert distance[line, column] == pytest.approx(depth / 30)
        assert distance.count_nonzero() == 1
    # The nearest voxel hides the others.
    grid = np.zeros((1, 30, 30, 30), np.uint8)
    grid[0, [3, 8], 0, 0] = 1
    views = voxels.views(grid)[0, :, 0]
    assert views[1, 0, 0] == pytest.approx(27 / 30)
    assert views[3, 0, 29] == pytest.approx(9 / 30)


def test_small_file(tmp_path: Path) -> None:
    pooled = catalog.load("modelnet10", write(tmp_path))
    assert pooled.kind == "views"
    assert pooled.train.shape == (6, 12, 1, 30, 30)
    assert pooled.test.shape == (3, 12, 1, 30, 30)
    assert pooled.class_names == voxels.CLASSES
    config = DataConfig(name="modelnet10", root=tmp_path, parties=6)
    data = prepare(config, Stream.from_seed(0))
    assert data.shape(5) == (2, 30, 30)


def test_wrong_arrays(tmp_path: Path) -> None:
    rows: list[tuple[dict[str, Any], str]] = [
        ({"y_test": None}, "does not have y_test"),
        ({"x_train": np.zeros((6, 30, 30), np.uint8)}, "x_train"),
        ({"x_train": np.zeros((6, 30, 30, 29), np.uint8)}, "[any, 30, 30, 30]"),
        ({"x_test": np.full((3, 30, 30, 30), 2, np.uint8)}, "x_test has values other than 0 and 1"),
        ({"x_test": np.zeros((3, 30, 30, 30))}, "float64"),
        ({"y_train": np.full(6, 10)}, "label 10; there are 0 to 9"),
        ({"y_train": np.full(6, -1)}, "label -1"),
        ({"y_train": np.zeros(5, int)}, "6 records but 5 labels"),
        ({"y_train": np.array(["a"] * 6)}, "y_train"),
        ({"y_train": np.array([None] * 6)}, "not a readable npz file"),
    ]
    for changes, word in rows:
        write(tmp_path, **changes)
        refused([word, voxels.FILE], DataError, catalog.load, "modelnet10", tmp_path)
    with (tmp_path / voxels.FILE).open("wb") as file:
        np.save(file, np.zeros(3))
    refused(["single array"], DataError, catalog.load, "modelnet10", tmp_path)


@pytest.mark.full
def test_the_published_file() -> None:
    root = Path(os.environ.get("VERTIZO_DATA", "nowhere"))
    if not (root / "modelnet10").is_dir():
        pytest.skip("VERTIZO_DATA has no modelnet10")
    pooled = catalog.load("modelnet10", root)
    counts = [106, 515, 889, 200, 200, 465, 200, 680, 392, 344]
    assert torch.bincount(pooled.train_labels).tolist() == counts
    counts = [50, 100, 100, 86, 86, 100, 86, 100, 100, 100]
    assert torch.bincount(pooled.test_labels).tolist() == counts
    assert pooled.train.shape == (3991, 12, 1, 30, 30)
    empty = pooled.train.flatten(1).sum(1) == 0
    assert int(empty.sum()) == 7
