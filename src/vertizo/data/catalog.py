"""Named data sets."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertizo.data import idx
from vertizo.data.vertical import Pooled
from vertizo.errors import ConfigError, DataError
from vertizo.server.losses import Classification

ROOT_VARIABLE = "VERTIZO_DATA"


@dataclass(frozen=True)
class Entry:
    """One data set of the catalogue."""

    summary: str
    load: Callable[[Path | None], Pooled]
    needs_files: bool = False


def load(name: str, root: Path | None = None) -> Pooled:
    """A data set by name.

    Args:
        name: one of `CATALOG`.
        root: folder of data files; None for ``VERTIZO_DATA``, or else a cache in the home folder.

    Raises:
        ConfigError: no such data set.
        DataError: its files are missing or damaged.
    """
    if name not in CATALOG:
        raise ConfigError(f"data.name is {name!r}; known are {', '.join(CATALOG)}")
    entry, source = CATALOG[name], "data.root"
    if root is None and entry.needs_files and os.environ.get(ROOT_VARIABLE):
        source, root = ROOT_VARIABLE, Path(os.environ[ROOT_VARIABLE])
    if root is not None and not root.is_dir():
        raise DataError(f"{source} is {root}, which is not a folder")
    return entry.load(root)


def _digits(_: Path | None) -> Pooled:
    """1,797 handwritten digits of 8×8 pixels; every fifth is for testing."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.from_numpy(bunch.images).to(torch.float32).div_(16).unsqueeze(1)
    labels = torch.from_numpy(bunch.target).to(torch.int64)
    test = torch.arange(len(labels)) % 5 == 4
    return Pooled(
        name="digits",
        train=images[~test],
        train_labels=labels[~test],
        test=images[test],
        test_labels=labels[test],
        task=Classification(10),
    )


def _breast_cancer(_: Path | None) -> Pooled:
    """569 tumours with 30 measurements; every fifth is for testing."""
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    values = torch.from_numpy(bunch.data).to(torch.float32)
    labels = torch.from_numpy(bunch.target).to(torch.int64)
    test = torch.arange(len(labels)) % 5 == 4
    names = tuple(str(name) for name in bunch.feature_names)
    train, tested = standardise(values[~test], values[test])
    return Pooled(
        name="breast-cancer",
        train=train,
        train_labels=labels[~test],
        test=tested,
        test_labels=labels[test],
        task=Classification(2),
        columns=names,
        groups={"mean": names[:10], "error": names[10:20], "worst": names[20:]},
        fitted_scaling=True,
    )


def standardise(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Columns shifted and scaled by the training records' means and standard deviations."""
    mean = train.mean(0)
    spread = train.std(0, unbiased=False)
    spread = torch.where(spread > 0, spread, 1.0)
    return (train - mean) / spread, (test - mean) / spread


def _idx(files: idx.IdxSet, mean: float, spread: float) -> Callable[[Path | None], Pooled]:
    def load_files(root: Path | None) -> Pooled:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "vertizo"
        folder = idx.folder_of(files, root, cache=cache)

        def images(file: idx.IdxFile) -> Tensor:
            return _scaled(_read(folder, file, sides=3), mean, spread)

        def labels(file: idx.IdxFile) -> Tensor:
            values = _read(folder, file, sides=1)
            if values.max(initial=0) > 9:
                raise DataError(f"{folder / file.name}: label {values.max()}; there are 0 to 9")
            return torch.from_numpy(values.astype(np.int64))

        pooled = Pooled(
            name=files.name,
            train=images(files.train_images),
            train_labels=labels(files.train_labels),
            test=images(files.test_images),
            test_labels=labels(files.test_labels),
            task=Classification(10),
        )
        if len(pooled.train) != len(pooled.train_labels) or len(pooled.test) != len(
            pooled.test_labels
        ):
            raise DataError(f"{folder}: images and labels differ in number")
        return pooled

    return load_files


def _read(folder: Path, file: idx.IdxFile, *, sides: int) -> NDArray[np.uint8]:
    values = idx.read(folder, file)
    if values.ndim != sides:
        raise DataError(
            f"{folder / file.name} holds an array of {values.ndim} sides; it must have {sides}"
        )
    return values


def _scaled(pixels: NDArray[np.uint8], mean: float, spread: float) -> Tensor:
    """Pixels in [0, 255] to ``(p/255 − mean)/spread``, [records, 1, height, width]."""
    levels = (torch.arange(256, dtype=torch.float32) / 255 - mean) / spread
    return levels[torch.from_numpy(pixels.astype(np.int32))].unsqueeze(1)


CATALOG: dict[str, Entry] = {
    "digits": Entry("1,797 digits of 8×8 pixels, from scikit-learn; no download", _digits),
    "breast-cancer": Entry(
        "569 tumours, 30 measurements in 3 groups, from scikit-learn; no download", _breast_cancer
    ),
    "mnist": Entry(
        "70,000 digits of 28×28 pixels; found in data.root or downloaded (11 MB)",
        _idx(idx.MNIST, 0.1307, 0.3081),
        needs_files=True,
    ),
    "fashion-mnist": Entry(
        "70,000 pieces of clothing of 28×28 pixels; found in data.root or downloaded (30 MB)",
        _idx(idx.FASHION_MNIST, 0.2860, 0.3530),
        needs_files=True,
    ),
}
