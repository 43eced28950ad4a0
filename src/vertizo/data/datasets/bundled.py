"""Loaders of data sets that come with scikit-learn: nothing to download."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vertizo.core.plugins.lazy_import import polars as pl
from vertizo.data.options import DataConfig
from vertizo.data.pooled import Pooled
from vertizo.data.tables import pool
from vertizo.data.tabular.columns import Source
from vertizo.models.losses import Classification


def digits(_: Path | None, __: DataConfig) -> Pooled:
    """1,797 handwritten digits of 8×8 pixels; every fifth is for testing."""
    rows = _digit_rows()
    images = torch.tensor(rows[:, :-1].reshape(-1, 1, 8, 8), dtype=torch.float32).div_(16)
    labels = torch.tensor(rows[:, -1], dtype=torch.int64)
    test = torch.arange(len(labels)) % 5 == 4
    halves = images[~test], labels[~test], images[test], labels[test]
    return Pooled("digits", *halves, Classification(10))


@lru_cache(maxsize=1)
def _digit_rows() -> npt.NDArray[np.float64]:
    """Pixels and the digit of each image, [1797, 65]; read once a process, for all seeds.

    The file is read without scikit-learn, whose import takes longer than the rest.
    """
    package = find_spec("sklearn")
    assert package is not None, "scikit-learn is one of vertizo's dependencies"
    [folder] = package.submodule_search_locations or []
    rows = np.loadtxt(Path(folder, "datasets", "data", "digits.csv.gz"), delimiter=",")
    rows.flags.writeable = False
    return rows


def breast_cancer(_: Path | None, options: DataConfig) -> Pooled:
    """569 tumours with 30 measurements; every fifth is for testing."""
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    pooled = _every_fifth("breast-cancer", bunch, options, mean=10, error=10, worst=10)
    return replace(pooled, class_names=tuple(str(name) for name in bunch.target_names))


def diabetes(_: Path | None, options: DataConfig) -> Pooled:
    """442 patients: how far diabetes progressed in a year; every fifth is for testing."""
    from sklearn.datasets import load_diabetes

    return _every_fifth("diabetes", load_diabetes(scaled=False), options, patient=4, serum=6)


def _every_fifth(name: str, bunch: Any, options: DataConfig, **columns: int) -> Pooled:
    """Make a raw table whose parties have consecutive columns; every fifth row is for testing."""
    names = [str(each) for each in bunch.feature_names]
    rest = iter(names)
    groups = {party: list(islice(rest, count)) for party, count in columns.items()}
    frame = pl.DataFrame(bunch.data, schema=names).with_columns(pl.Series("target", bunch.target))
    fifth = pl.int_range(pl.len()) % 5 == 4
    halves = (Source(name, frame.filter(each)) for each in (~fifth, fifth))
    return pool(name, *halves, label="target", options=options, groups=groups)
