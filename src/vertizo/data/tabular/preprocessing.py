"""Preprocessing: one party's raw columns to features for a model.

The result's first columns hold categories as codes: 0 for a missing, rare or unknown one, 1 and up
for the others, in the order of their names. The numbers follow, centred and scaled, then a
column of 0 and 1 for each column of numbers that has missing values in training. A date is a number
of days; its places in the year and the week, and in the day where there are times, come last, each
as sine and cosine, so that December is next to January, and Sunday to Monday. They are not scaled,
and 0 where the date is missing.

Fitted values (medians, means, standard deviations, which categories occur) come from this party's
own training rows and nothing else. Where the features themselves must stay private even that is too
much; bounds and lists of categories that are known without the data take their place.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, Tag, ValidationError, model_validator
from torch import Tensor

from vertizo.core.errors import ConfigError, DataError
from vertizo.core.options import Options, chosen_by
from vertizo.core.plugins.lazy_import import polars as pl
from vertizo.core.text.suggestions import nearest
from vertizo.data.tabular import category_text

MOST_CATEGORIES = 1000
"""Most categories of one column; the rarest beyond them share code 0."""
FARTHEST = 1e4
"""Largest scaled value; others are cut off, so that no outlier among the test rows overflows
float32, or makes embeddings larger than `server.embedding_bound`. At most one training row in 1e8
is that far."""
ALIKE = 1e-7
"""Standard deviation, relative to the largest number, up to which numbers differ little."""
EQUAL = 1e-15
"""Relative standard deviation up to which numbers differ by float64's rounding alone."""

PERIODS: tuple[float, ...] = (365.2425, 7.0, 1.0)
"""Periods of dates, in days: a year, a week, and a day, which is for dates with times."""

Matrix = NDArray[np.float64]
Bounds = Mapping[str, Sequence[float]]
Lists = Mapping[str, Sequence[str]]


class Categories(Options):
    """A column of categories."""

    kind: Literal["categories"] = "categories"
    name: str
    names: tuple[str, ...]
    """What the codes from 1 stand for; as `spelt`, but where an older version fitted it."""
    public: bool
    """Whether they were known without the data."""

    @model_validator(mode="after")
    def _no_name_twice(self) -> Categories:
        if len(set(self.names)) < len(self.names):
            raise ValueError(f"column {self.name!r} has a category twice")
        return self

    def table(self, levels: tuple[str, ...]) -> NDArray[np.int64]:
        """The code of each level; the last entry, at index −1, is for a missing value."""
        code_of: dict[str, int] = {}
        for code, name in enumerate(respelt(self.names), 1):
            code_of.setdefault(name, code)
        return np.array([*(code_of.get(name, 0) for name in levels), 0], np.int64)


class _Number(Options):
    name: str
    periods: tuple[PositiveFloat, ...] | None = None
    """Of dates, which are days since 1970: how many days it takes until what repeats does."""


class Bounded(_Number):
    """A column of numbers that is scaled by public bounds."""

    kind: Literal["bounded"] = "bounded"
    low: float
    high: float

    @model_validator(mode="after")
    def _low_below_high(self) -> Bounded:
        if not self.low < self.high:
            raise ValueError(f"column {self.name!r} has bounds {self.low} and {self.high}")
        return self


class Fitted(_Number):
    """A column of numbers that is scaled by statistics of the training rows."""

    kind: Literal["fitted"] = "fitted"
    median: float
    """Stands for a missing value."""
    mean: float
    scale: PositiveFloat
    indicator: bool
    """Whether a column of its own says what was missing."""


Column = Annotated[
    Annotated[Categories, Tag("categories")]
    | Annotated[Bounded, Tag("bounded")]
    | Annotated[Fitted, Tag("fitted")],
    chosen_by("kind", "fitted"),
]


class _State(Options):
    columns: tuple[Column, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _no_column_twice(self) -> _State:
        names = [column.name for column in self.columns]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"column {twice!r} occurs twice")
        return self


class Preprocessing:
    """Fitted on one party's raw training rows, then applied to all of its rows.

    Args:
        train: [records, columns]; NaN is missing; categories as codes into ``levels``.
        columns: names of the columns.
        levels: column of categories → the categories of its codes.
        ranges: column of numbers → its public bounds; scaled to [-1, 1], clipped, and a missing
            value becomes 0. Such a column has no indicator, since whether one is needed is itself
            a fact about the records.
        categories: column of categories → the public list of them.
        dates: columns of days since 1970.
    """

    def __init__(
        self,
        train: Matrix,
        columns: Sequence[str],
        levels: Mapping[str, tuple[str, ...]],
        ranges: Bounds,
        categories: Lists,
        dates: Collection[str] = (),
    ) -> None:
        free = [i for i, name in enumerate(columns) if name not in levels and name not in ranges]
        numbers = _fit_numbers(train[:, free], [columns[index] for index in free])
        kept: list[Categories | Bounded | Fitted] = []
        for index, name in enumerate(columns):
            if name in levels:
                public = categories.get(name)
                if public is not None:
                    found = category_text.names(public, f"data.categories.{name}")
                else:
                    found = _seen(train[:, index], levels[name])
                kept.append(Categories(name=name, names=found, public=public is not None))
            elif name in ranges:
                low, high = ranges[name]
                periods = PERIODS if name in dates else None
                kept.append(Bounded(name=name, low=low, high=high, periods=periods))
                days = train[:, index]
                if name in dates and not ((low <= days) & (days <= high)).any():
                    raise ConfigError(
                        f"data.ranges.{name} is [{low:g}, {high:g}], days since 1970, and no date "
                        "of the training records is within; write dates, as [2015-01-01, "
                        "2025-12-31]"
                    )
            else:
                fitted = next(numbers)
                if name in dates:
                    has_times = bool((train[:, index] % 1 > 0).any())
                    periods = PERIODS if has_times else PERIODS[:2]
                    fitted = fitted.model_copy(update={"periods": periods})
                kept.append(fitted)
        self._use(kept, levels)

    @classmethod
    def from_state(cls, state: Any) -> Preprocessing:
        """Restore a preprocessing from its `state`; it takes categories as codes into its `levels`.

        DataError where it is none.
        """
        kept = validated(_State, state, "columns").columns
        restored = cls.__new__(cls)
        own = (column for column in kept if isinstance(column, Categories))
        restored._use(kept, {c.name: tuple(dict.fromkeys(respelt(c.names))) for c in own})
        return restored

    def state(self) -> dict[str, Any]:
        """Fitted and public values of each column, as plain values for JSON."""
        dumped = (column.model_dump(mode="json", exclude_none=True) for column in self._kept)
        return {"columns": [*dumped]}

    def changed(self, now: Preprocessing) -> str | None:
        """A difference between the fitted columns and those ``now``, in words; None if none."""
        for ours, theirs, what in (
            (self.columns, now.columns, "missing"),
            (now.columns, self.columns, "new"),
        ):
            other = next((name for name in ours if name not in theirs), None)
            if other is not None:
                return f"the column {other!r} is {what}"
        if self.columns != now.columns:
            return f"the columns are in another order; it was {', '.join(self.columns[:10])}"
        return None

    def _use(
        self,
        kept: Sequence[Categories | Bounded | Fitted],
        levels: Mapping[str, tuple[str, ...]],
    ) -> None:
        self._kept = tuple(kept)
        self.columns = tuple(column.name for column in kept)
        """Names of the raw columns, in order."""
        coded = [(i, column) for i, column in enumerate(kept) if isinstance(column, Categories)]
        self.levels = {column.name: levels[column.name] for _, column in coded}
        """Column of categories → the categories of its codes in raw rows."""
        self._tables = [(i, column.table(levels[column.name])) for i, column in coded]
        self.cardinalities = tuple(len(column.names) + 1 for _, column in coded)
        """Number of codes of each of the first columns of the result."""
        self._numbers = [i for i, column in enumerate(kept) if not isinstance(column, Categories)]
        bounded = [(c.low, c.high) for c in kept if isinstance(c, Bounded)]
        fitted = [(c.median, c.mean, c.scale) for c in kept if isinstance(c, Fitted)]
        self._bounded = np.array([isinstance(kept[i], Bounded) for i in self._numbers], bool)
        self._low, self._high = np.array(bounded, float).reshape(-1, 2).T
        self._median, self._mean, self._scale = np.array(fitted, float).reshape(-1, 3).T
        self._missing = np.array([c.indicator for c in kept if isinstance(c, Fitted)], bool)
        self._repeats = [
            (index, np.array(column.periods))
            for index, column in enumerate(kept)
            if isinstance(column, _Number) and column.periods is not None
        ]
        self.dates = tuple(self.columns[index] for index, _ in self._repeats)
        """Raw columns that are days since 1970."""
        self.fitted = bool(fitted) or any(not column.public for _, column in coded)
        """Whether some statistic or category comes from the training rows."""

    @property
    def width(self) -> int:
        """Number of columns of the result."""
        repeats = sum(2 * len(periods) for _, periods in self._repeats)
        return len(self.columns) + int(self._missing.sum()) + repeats

    @property
    def places(self) -> dict[str, list[int]]:
        """Raw column → the columns of the result that are made of it."""
        coded = [column.name for column in self._kept if isinstance(column, Categories)]
        numbers = [self._kept[index] for index in self._numbers]
        absent = [each.name for each in numbers if isinstance(each, Fitted) and each.indicator]
        turns = [self.columns[at] for at, periods in self._repeats for _ in range(2 * len(periods))]
        found: dict[str, list[int]] = {name: [] for name in self.columns}
        for place, name in enumerate([*coded, *(each.name for each in numbers), *absent, *turns]):
            found[name].append(place)
        return found

    def __call__(self, values: Matrix) -> Tensor:
        """Raw rows [records, columns] to features, float32 [records, width]."""
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
        free = numbers[:, ~self._bounded]
        absent = np.isnan(free)
        standard = (np.where(absent, self._median, free) - self._mean) / self._scale
        scaled[:, ~self._bounded] = standard.clip(-FARTHEST, FARTHEST)
        parts = [codes, scaled, absent[:, self._missing]]
        for index, periods in self._repeats:
            angle = values[:, index, None] % periods / periods * (2 * np.pi)
            parts += [np.nan_to_num(turn(angle), nan=0.0) for turn in (np.sin, np.cos)]
        return torch.from_numpy(np.concatenate(parts, 1).astype(np.float32))


def _fit_numbers(train: Matrix, names: Sequence[str]) -> Iterator[Fitted]:
    """Fit the statistics of each column of numbers of ``train`` [records, columns]."""
    if not names:
        return
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import StandardScaler

    imputer = SimpleImputer(strategy="median", keep_empty_features=True)
    scaler = StandardScaler().fit(imputer.fit_transform(train))
    medians = imputer.statistics_
    mean, scale = _of_alike(train, medians, scaler.mean_, scaler.scale_)
    found = (medians, mean, scale, np.isnan(train).any(0))
    columns = zip(*(each.tolist() for each in found), strict=True)
    for name, (median, mean, scale, absent) in zip(names, columns, strict=True):
        yield Fitted(name=name, median=median, mean=mean, scale=scale, indicator=absent)


def _of_alike(
    train: Matrix, medians: Matrix, means: Matrix, scales: Matrix
) -> tuple[Matrix, Matrix]:
    """Means and scales, computed anew for columns whose numbers differ little for their size.

    A sum of long numbers, such as those of 17 digits, is rounded by more than they differ, and then
    scaled values would be huge. Differences from the median are exact; numbers that float64 cannot
    tell apart become 0.
    """
    away = train - medians
    means, scales = means.copy(), scales.copy()
    for index, column in enumerate(away.T):
        size = float(np.nanmax(np.abs(train[:, index]), initial=0.0))
        present = np.nan_to_num(column, nan=0.0)
        spread = float(present.std())
        if spread <= ALIKE * size:
            is_constant = spread <= EQUAL * size
            means[index] = medians[index] + (0.0 if is_constant else float(present.mean()))
            scales[index] = max(1.0, size) if is_constant else spread
    return means, scales


def respelt(names: Sequence[str]) -> list[str]:
    """Category names that any version fitted, in the present spelling (`category_text.spelt`)."""
    return category_text.spelt(pl.Series(names, dtype=pl.String)).fill_null("").to_list()


T = TypeVar("T", bound=Options)


def validated(form: type[T], content: Any, what: str) -> T:
    """Validate content by an options class; DataError names the place where it does not fit."""
    try:
        return form.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise DataError(f"no preparation of {what}: {where}: {first['msg']}") from None


def _seen(train: Matrix, levels: tuple[str, ...]) -> tuple[str, ...]:
    """The categories that occur in a column, in the order of their levels, at most the limit."""
    seen, counts = np.unique(train[~np.isnan(train)].astype(np.int64), return_counts=True)
    if len(seen) > MOST_CATEGORIES:
        # A stable sort: of equally rare ones the first by name stay.
        seen = np.sort(seen[np.argsort(-counts, kind="stable")[:MOST_CATEGORIES]])
    return tuple(levels[index] for index in seen)


def check_public(
    name: str,
    columns: Sequence[str],
    levels: Mapping[str, tuple[str, ...]],
    ranges: Bounds,
    categories: Lists,
) -> None:
    """Refuse public bounds and lists that do not fit a table's columns, by ConfigError.

    These are an unknown column, bounds for text, and a list for numbers or without any category
    that occurs.
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
        if not set(category_text.names(names, f"data.categories.{column}")) & set(levels[column]):
            some = ", ".join(repr(level) for level in levels[column][:5])
            raise ConfigError(
                f"data.categories.{column} has none of the categories that occur, such as {some}"
            )


def alike(one: Any, other: Any) -> bool:
    """Whether two states are equal up to rounding on different processors."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    return bool(one == other)
