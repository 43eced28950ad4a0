"""Files of named data sets: where they are, arrays in them, checked labels, scaled pixels."""

from __future__ import annotations

import os
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
from vertizo.data.tabular.frames import first_line

Shape = tuple[int | None, ...]


def home(root: Path | None) -> Path:
    """The folder of data files: ``root``, or else the cache, where downloads go too."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache / "vertizo" if root is None else root


def find(root: Path | None, folders: Sequence[str], names: Sequence[str]) -> Path | None:
    """The first of ``folders`` below `home`, or `home` itself, with all files; None if none has."""
    places = (home(root) / name for name in (*folders, "."))
    return next((place for place in places if all((place / n).is_file() for n in names)), None)


def missing(name: str, root: Path | None, folder: str, names: Sequence[str]) -> DataError:
    """The error for files that `find` did not find."""
    return DataError(
        f"{name}: its files are not in {home(root) / folder}; put {', '.join(names)} there, or set "
        "data.root or VERTIZO_DATA to the folder that has them"
    )


def folder_of(name: str, root: Path | None, folder: str, names: Sequence[str]) -> Path:
    """The folder that `find` finds; if there is none, DataError says what to put where."""
    found = find(root, [folder], names)
    if found is None:
        raise missing(name, root, folder, names)
    return found


def arrays(path: Path, wanted: Mapping[str, Shape]) -> dict[str, NDArray[Any]]:
    """Read arrays of whole numbers from an npz file; None in a shape stands for any length.

    Nothing in the file is ever unpickled. DataError where it is no npz file, or an array is
    missing, of another type or another shape.
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
            found = {key: np.asarray(stored[key]) for key in wanted}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} is not a readable npz file: {first_line(error)}") from None
    for key, shape in wanted.items():
        sides, dtype = found[key].shape, found[key].dtype
        fits = len(sides) == len(shape) and all(
            length in (None, side) for side, length in zip(sides, shape, strict=True)
        )
        if not fits or dtype.kind not in "iu":
            expected = ", ".join("any" if length is None else str(length) for length in shape)
            raise DataError(
                f"{path}: {key} is an array of {dtype} and shape {list(sides)}; "
                f"whole numbers of shape [{expected}] are expected"
            )
    return found


def check_labels(path: Path, labels: NDArray[Any], images: int, classes: int) -> Tensor:
    """Convert labels to int64; DataError unless each image has one in [0, classes)."""
    if len(labels) != images:
        raise DataError(f"{path} has {images} records but {len(labels)} labels")
    if not images:
        raise DataError(f"{path} has no records")
    if labels.min() < 0 or labels.max() >= classes:
        worst = labels.min() if labels.min() < 0 else labels.max()
        raise DataError(f"{path}: label {worst}; there are 0 to {classes - 1}")
    return torch.from_numpy(labels.astype(np.int64))


def scaled(pixels: NDArray[np.uint8], means: Sequence[float], spreads: Sequence[float]) -> Tensor:
    """Scale pixels from 0 to 255 to ``(p/255 − mean)/spread``, float32, by channel.

    Pixels are [records, channels, height, width]; means and spreads are public constants.
    """
    result = torch.empty(pixels.shape, dtype=torch.float32)
    for channel, (mean, spread) in enumerate(zip(means, spreads, strict=True)):
        levels = ((np.arange(256, dtype=np.float32) / np.float32(255) - mean) / spread).astype("f4")
        out = result[:, channel].numpy()
        for start in range(0, len(pixels), 500):  # NumPy makes 64 bits of each index it takes
            some = slice(start, start + 500)
            np.take(levels, pixels[some, channel], out=out[some], mode="clip")
    return result
