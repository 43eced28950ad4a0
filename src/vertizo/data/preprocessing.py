"""How one party makes numbers for a model of its own raw columns.

The result's first columns hold categories as codes: 0 for a missing, rare or unknown one, 1 and up
for the others, in the order of their names. The numbers follow, centred and scaled, and then a
column of 0 and 1 for each column of numbers that has missing values in training.

What is fitted (medians, means, standard deviations, which categories occur) comes from this party's
own training rows and nothing else. Where the features themselves must stay private even that is too
much; bounds and lists of categories that are known without the data take its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertizo.data.splits import nearest
from vertizo.errors import ConfigError

MOST_CATEGORIES = 1000
"""Of one column; the rarest beyond them share code 0."""
FARTHEST = 1e6
"""Scaled values are cut off here, so that no outlier among the test rows overflows float32."""

Matrix = NDArray[np.float64]
Bounds = Mapping[str, Sequence[float]]
Lists = Mapping[str, Sequence[str]]


class Preprocessing:
    """Fitted on one party's raw training rows, then applied to all of its rows.

    Args:
        train: [records, columns]; NaN is missing; categories as codes into ``levels``.
        columns: their names.
        levels: column of categories → what its codes stand for.
        ranges: column of numbers → its public bounds; scaled to [-1, 1], clipped, and a missing
            value becomes 0. Such a column has no indicator, since whether one is needed is itself
            a fact about the records.
        categories: column of categories → the public list of them.
    """

    def __init__(
        self,
        train: Matrix,
        columns: Sequence[str],
        levels: Mapping[str, tuple[str, ...]],
        ranges: Bounds,
        categories: Lists,
    ) -> None:
        coded = [index for index, column in enumerate(columns) if column in levels]
        found = [
            _codes(train[:, index], levels[columns[index]], categories.get(columns[index]))
            for index in coded
        ]
        self._tables = [(index, table) for index, (table, _) in zip(coded, found, strict=True)]
        self.cardinalities = tuple(count for _, count in found)
        """Number of codes of each of the first columns of the result."""
        self._numbers = [index for index in range(len(columns)) if index not in coded]
        names = [columns[index] for index in self._numbers]
        self._bounded = np.array([name in ranges for name in names], bool)
        self._low = np.array([ranges[name][0] for name in names if name in ranges])
        self._high = np.array([ranges[name][1] for name in names if name in ranges])
        self._fit_numbers(train[:, self._numbers][:, ~self._bounded])
        self.fitted = not self._bounded.all() or any(
            columns[index] not in categories for index in coded
        )
        """Whether anything comes from the training rows."""

    def _fit_numbers(self, train: Matrix) -> None:
        self._pipeline = None
        if train.shape[1]:
            from sklearn.impute import SimpleImputer
            from sklearn.preprocessing import StandardScaler

            self._missing = np.isnan(train).any(0)
            imputer = SimpleImputer(strategy="median", keep_empty_features=True)
            self._pipeline = (imputer, StandardScaler())
            self._pipeline[1].fit(imputer.fit_transform(train))

    def __call__(self, values: Matrix) -> Tensor:
        """[records, columns] to float32 [records, codes + numbers + indicators]."""
        codes = np.empty((len(values), len(self._tables)))
        for place, (index, table) in enumerate(self._tables):
            column = values[:, index].copy()
            column[np.isnan(column)] = -1  # the table's last entry is for what is missing
            codes[:, place] = table[column.astype(np.int64)]
        numbers = values[:, self._numbers]
        scaled = np.zeros_like(numbers)
        bounded = numbers[:, self._bounded]
        middle, half = (self._low + self._high) / 2, (self._high - self._low) / 2
        scaled[:, self._bounded] = np.nan_to_num(((bounded - middle) / half).clip(-1, 1), nan=0.0)
        parts = [codes, scaled]
        if self._pipeline is not None:
            imputer, scaler = self._pipeline
            free = numbers[:, ~self._bounded]
            if len(free):
                standard = scaler.transform(imputer.transform(free))
                scaled[:, ~self._bounded] = standard.clip(-FARTHEST, FARTHEST)
            parts.append(np.isnan(free[:, self._missing]).astype(np.float64))
        return torch.from_numpy(np.concatenate(parts, 1).astype(np.float32))


def _codes(
    train: Matrix, levels: tuple[str, ...], public: Sequence[str] | None
) -> tuple[NDArray[np.int64], int]:
    """What each level becomes, and how many codes there are.

    The last entry, at index −1, is for a missing value.
    """
    table = np.zeros(len(levels) + 1, np.int64)
    if public is not None:
        code_of = {name: code for code, name in enumerate(public, 1)}
        table[:-1] = [code_of.get(name, 0) for name in levels]
        return table, len(public) + 1
    seen, counts = np.unique(train[~np.isnan(train)].astype(np.int64), return_counts=True)
    if len(seen) > MOST_CATEGORIES:
        # A stable sort: of equally rare ones the first by name stay.
        seen = np.sort(seen[np.argsort(-counts, kind="stable")[:MOST_CATEGORIES]])
    table[seen] = np.arange(1, len(seen) + 1)
    return table, len(seen) + 1


def check_public(
    name: str,
    columns: Sequence[str],
    levels: Mapping[str, tuple[str, ...]],
    ranges: Bounds,
    categories: Lists,
) -> None:
    """Refuse public bounds and lists that do not fit a table's columns.

    Raises:
        ConfigError: an unknown column, bounds for text, a list for numbers, or one that names no
            category that there is.
    """
    for key, named in (("ranges", ranges), ("categories", categories)):
        for column in named:
            if column not in columns:
                raise ConfigError(
                    f"data.{key} names the column {column!r}, which {name} does not have"
                    f"{nearest(column, columns)}"
                )
    for column in ranges:
        if column in levels:
            raise ConfigError(f"data.ranges names {column!r}, which holds categories, not numbers")
    for column, names in categories.items():
        if column not in levels:
            raise ConfigError(
                f"data.categories names {column!r}, which holds numbers; add it to data.categorical"
            )
        if not set(names) & set(levels[column]):
            some = ", ".join(repr(level) for level in levels[column][:5])
            raise ConfigError(
                f"data.categories.{column} has none of the categories that occur, such as {some}"
            )
