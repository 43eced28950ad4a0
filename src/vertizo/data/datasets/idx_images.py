"""Images and labels of four IDX files as one data set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertizo.core.errors import DataError
from vertizo.data.datasets import files, idx
from vertizo.data.datasets.pixels import scaled
from vertizo.data.options import DataConfig
from vertizo.data.pooled import Pooled
from vertizo.models.losses import Classification


def loader(
    published: idx.IdxSet, mean: float, spread: float
) -> Callable[[Path | None, DataConfig], Pooled]:
    """What loads such a set; pixels become ``(p/255 − mean)/spread``."""

    def load(root: Path | None, _: DataConfig) -> Pooled:
        folder = idx.folder_of(published, root, cache=files.cache())

        def images(file: idx.IdxFile) -> Tensor:
            pixels = _read(folder, file, sides=3)
            return scaled(pixels[:, np.newaxis], [mean], [spread])

        def labels(file: idx.IdxFile) -> Tensor:
            values = _read(folder, file, sides=1)
            if values.size and values.max() > 9:
                raise DataError(f"{folder / file.name}: label {values.max()}; there are 0 to 9")
            return torch.from_numpy(values.astype(np.int64))

        pooled = Pooled(
            name=published.name,
            train=images(published.train_images),
            train_labels=labels(published.train_labels),
            test=images(published.test_images),
            test_labels=labels(published.test_labels),
            task=Classification(10),
        )
        if len(pooled.train) != len(pooled.train_labels) or len(pooled.test) != len(
            pooled.test_labels
        ):
            raise DataError(f"{folder}: images and labels differ in number")
        return pooled

    return load


def _read(folder: Path, file: idx.IdxFile, *, sides: int) -> NDArray[np.uint8]:
    values = idx.read(folder, file)
    if values.ndim != sides:
        raise DataError(
            f"{folder / file.name} holds an array of {values.ndim} sides; it must have {sides}"
        )
    return values


mnist = loader(idx.MNIST, 0.1307, 0.3081)
fashion_mnist = loader(idx.FASHION_MNIST, 0.2860, 0.3530)
