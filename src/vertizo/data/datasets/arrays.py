"""Arrays from files, checked for their keys and shapes; pixels as numbers for a model."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertizo.core.errors import DataError

Shape = tuple[int | None, ...]


def read(path: Path, wanted: Mapping[str, Shape]) -> dict[str, NDArray[Any]]:
    """The arrays of whole numbers by their keys; None in a shape stands for any length.

    Nothing in the file is ever unpickled.

    Raises:
        DataError: not an npz file, or an array that is missing, of fractions or of another shape.
    """
    try:
        # The file is opened here: NumPy leaves one open that turns out to be no npz file.
        with path.open("rb") as file:
            stored = np.load(file, allow_pickle=False)
            if not isinstance(stored, np.lib.npyio.NpzFile):
                raise DataError(f"{path} is not an npz file, but a single array")
            absent = [key for key in wanted if key not in stored]
            if absent:
                raise DataError(
                    f"{path} does not have {', '.join(absent)}; it has {', '.join(stored)}"
                )
            arrays = {key: np.asarray(stored[key]) for key in wanted}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise DataError(f"{path} is not a readable npz file: {reason}") from None
    for key, shape in wanted.items():
        found = arrays[key]
        fits = found.ndim == len(shape) and all(
            length in (None, side) for side, length in zip(found.shape, shape, strict=True)
        )
        if not fits or found.dtype.kind not in "iu":
            expected = ", ".join("any" if length is None else str(length) for length in shape)
            raise DataError(
                f"{path}: {key} is an array of {found.dtype} and shape {list(found.shape)}; "
                f"whole numbers of shape [{expected}] are expected"
            )
    return arrays


def check_labels(path: Path, labels: NDArray[Any], images: int, classes: int) -> NDArray[np.int64]:
    """Labels that are one for each image, and in [0, classes).

    Raises:
        DataError: they are not.
    """
    if len(labels) != images:
        raise DataError(f"{path} has {images} records but {len(labels)} labels")
    if not images:
        raise DataError(f"{path} has no records")
    if labels.min() < 0 or labels.max() >= classes:
        worst = labels.min() if labels.min() < 0 else labels.max()
        raise DataError(f"{path}: label {worst}; there are 0 to {classes - 1}")
    return labels.astype(np.int64)


def scaled(pixels: NDArray[np.uint8], means: Sequence[float], spreads: Sequence[float]) -> Tensor:
    """Levels 0 to 255 to ``(p/255 − mean)/spread`` of each channel, float32 of the same shape.

    Args:
        pixels: [records, channels, height, width].
        means: of each channel, public constants.
        spreads: likewise.
    """
    result = torch.empty(pixels.shape, dtype=torch.float32)
    for channel, (mean, spread) in enumerate(zip(means, spreads, strict=True)):
        levels = (np.arange(256, dtype=np.float32) / np.float32(255) - mean) / spread
        np.take(levels.astype(np.float32), pixels[:, channel], out=result[:, channel].numpy())
    return result
