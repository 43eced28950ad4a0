"""The loader of ModelNet10 as grids of voxels, seen from six sides.

Each of the six directions along the axes gives two views of 30×30 pixels: the silhouette (0 or 1),
and the depth (1 for the nearest layer, falling to 1/30 for the farthest, 0 where there is nothing).
Views of one direction stand next to each other: six parties hold both of one direction each.

These are no renderings: figures on them cannot be compared with those of papers that use rendered
views. At this resolution 191 of the training objects repeat another one, 72 test objects equal a
training object, and 8 are empty.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertizo.core.errors import DataError
from vertizo.data.datasets import files
from vertizo.data.options import DataConfig
from vertizo.data.pooled import Pooled
from vertizo.models.losses import Classification

FILE = "modelnet10-voxels.npz"
SIDE = 30
CLASSES = (
    *("bathtub", "bed", "chair", "desk", "dresser"),
    *("monitor", "night_stand", "sofa", "table", "toilet"),
)


def load(root: Path | None, _: DataConfig) -> Pooled:
    """Load 12 views of each object, in the official split.

    DataError for a missing or damaged file.
    """
    path = files.folder_of("modelnet10", root, "modelnet10", [FILE]) / FILE
    cube = (None, SIDE, SIDE, SIDE)
    stored = files.arrays(
        path, {"x_train": cube, "y_train": (None,), "x_test": cube, "y_test": (None,)}
    )

    def half(part: str) -> tuple[Tensor, Tensor]:
        grids, labels = stored[f"x_{part}"], stored[f"y_{part}"]
        if not ((grids == 0) | (grids == 1)).all():
            raise DataError(f"{path}: x_{part} has values other than 0 and 1")
        return views(grids), files.check_labels(path, labels, len(grids), len(CLASSES))

    task = Classification(len(CLASSES))
    return Pooled("modelnet10", *half("train"), *half("test"), task, class_names=CLASSES)


def views(grids: NDArray[Any]) -> Tensor:
    """Turn voxels [records, side, side, side], 0 or 1, to views [records, 12, 1, side, side]."""
    records, side = grids.shape[:2]
    occupied = grids.astype(np.uint8)
    result = np.empty((records, 12, 1, side, side), np.float32)
    place = 0
    for axis in range(3):
        layers = np.expand_dims(np.arange(side, 0, -1, dtype=np.uint8), tuple({0, 1, 2} - {axis}))
        for near in (layers, np.flip(layers)):
            # The nearest occupied layer is the one of the largest number.
            depth = (occupied * near).max(axis + 1)
            if near is not layers:
                depth = np.flip(depth, 2)  # from behind, left and right change places
            result[:, place, 0] = depth > 0
            np.divide(depth, side, out=result[:, place + 1, 0], casting="unsafe")
            place += 2
    return torch.from_numpy(result)
