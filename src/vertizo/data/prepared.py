"""A run's preparation of its table, kept to turn new records into features and outputs into names.

Statistics and category names are those of the training records, so that new records are prepared as
those were, even if the file has changed since. Each party's part is separate: over a network every
party keeps its own.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat
from torch import Tensor

from vertizo.core.errors import DataError
from vertizo.core.options import Options
from vertizo.core.plugins.lazy_import import polars as pl
from vertizo.data.options import DataConfig
from vertizo.data.tabular.columns import Source, as_days, codes, only_numbers, texts, unknown
from vertizo.data.tabular.frames import Place, row
from vertizo.data.tabular.preprocessing import Matrix, Preprocessing, alike, respelt, validated
from vertizo.models.losses import (
    Classification,
    Huber,
    MultiLabel,
    Quantile,
    Regression,
    Task,
    blank_labels,
)

VERSION = 1
"""Version of the file; others are refused."""


def raw_matrix(
    frame: pl.DataFrame,
    columns: Sequence[str],
    levels: Mapping[str, tuple[str, ...]],
    dates: Collection[str] = (),
    *,
    name: str = "the table",
    place: Place = row,
) -> Matrix:
    """New records as `Preprocessing` takes them, float64 [records, columns].

    The frame may have other columns as well, and in another order. ``levels`` maps a column of
    categories to the categories of its codes; missing and unknown ones are NaN, which becomes code
    0. ``dates`` become days; a value that is no date is missing. DataError names a column that is
    missing, or holds text in place of numbers.
    """
    source = Source(name, frame, place)
    matrix = np.empty((frame.height, len(columns)))
    for position, column in enumerate(columns):
        source.check_has(column)
        if column in levels:
            matrix[:, position] = codes(texts(source, column), levels[column])
        elif column in dates:
            matrix[:, position] = as_days(source, column)[0]
        else:
            matrix[:, position] = only_numbers(source, column, "training")
    return matrix


class _Label(Options):
    column: str | tuple[str, ...]
    task: Literal["classification", "regression", "labels"]
    classes: tuple[str, ...] | None = None
    positive: int = Field(default=1, ge=0, le=1)
    mean: float = 0.0
    spread: PositiveFloat = 1.0
    loss: Literal["squared", "huber", "quantile"] = "squared"
    huber_delta: PositiveFloat = 1.0
    quantile: float = Field(default=0.5, gt=0, lt=1)


def regression(kind: DataConfig | _Label, mean: float, spread: float) -> Regression:
    """Make the regression that the options choose, for labels with that mean and spread."""
    if kind.loss == "huber":
        return Huber(mean, spread, kind.huber_delta)
    if kind.loss == "quantile":
        return Quantile(mean, spread, kind.quantile)
    return Regression(mean, spread)


class _File(Options):
    version: int
    label: _Label
    parties: dict[str, Any]


@dataclass(frozen=True)
class Preparation:
    """How a table's records become features, and predictions become names and values."""

    parties: Mapping[str, Preprocessing]
    """Each party's preprocessing, the label holder's included, in the order of the cut."""
    label: str | tuple[str, ...]
    """The column that is predicted, or the columns."""
    task: Task
    class_names: tuple[str, ...] | None

    def features(
        self, frame: pl.DataFrame, *, name: str = "the table", place: Place = row
    ) -> dict[str, Tensor]:
        """Each party's features of new records, float32 [records, width]; see `raw_matrix`."""
        return {
            party: own(
                raw_matrix(frame, own.columns, own.levels, own.dates, name=name, place=place)
            )
            for party, own in self.parties.items()
        }

    def unknown(self, frame: pl.DataFrame, *, name: str = "the table") -> list[str]:
        """Warn, in a line each, of columns of new records with missing or unknown values."""
        source = Source(name, frame)
        return [
            line
            for own in self.parties.values()
            for line in unknown(source, own.levels, own.columns, own.dates).values()
        ]

    def labels(
        self, frame: pl.DataFrame, *, name: str = "the table", place: Place = row
    ) -> tuple[Tensor, Tensor] | None:
        """Numbers of the rows that have a label, and these labels; None if no row has.

        DataError for a label that is no class, or no number.
        """
        columns = (self.label,) if isinstance(self.label, str) else self.label
        if not set(columns) <= set(frame.columns):
            return None
        source = Source(name, frame, place)
        values = np.stack([self._values(source, column) for column in columns], 1)
        there = ~np.isnan(values).any(1)
        if not there.any():
            return None
        known = torch.from_numpy(values[there]).to(blank_labels(self.task, 0).dtype)
        rows = torch.from_numpy(np.flatnonzero(there))
        return rows, known if isinstance(self.task, MultiLabel) else known[:, 0]

    def _values(self, source: Source, column: str) -> NDArray[np.float64]:
        """A label column's numbers, or the numbers of its classes; NaN where missing."""
        if self.class_names is None:
            return only_numbers(source, column, "training")
        found = texts(source, column)
        values = codes(found, self.class_names)
        unknown = np.flatnonzero(found.is_not_null().to_numpy() & np.isnan(values))
        if len(unknown):
            raise DataError(
                f"{source.name}: the label {column!r} is {found[int(unknown[0])]!r} in "
                f"{source.place(int(unknown[0]))}, which is no class; they are "
                f"{', '.join(map(repr, self.class_names[:20]))}"
            )
        return values

    def agrees_with(self, other: Preparation | None) -> bool:
        """Whether two preparations are equal up to rounding on different processors."""
        return other is not None and alike(self._content(), other._content())

    def to_json(self) -> str:
        """The text of ``preparation.json``."""
        return json.dumps(self._content(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    def _content(self) -> dict[str, Any]:
        label: dict[str, Any] = {"column": self.label}
        classes = list(self.class_names or ())
        if isinstance(self.task, Regression):
            label |= {"task": "regression", "mean": self.task.mean, "spread": self.task.spread}
            if isinstance(self.task, Huber):
                label |= {"loss": "huber", "huber_delta": self.task.delta}
            if isinstance(self.task, Quantile):
                label |= {"loss": "quantile", "quantile": self.task.level}
        elif isinstance(self.task, MultiLabel):
            label = {"column": list(self.task.names), "task": "labels", "classes": classes}
        else:
            label |= {"task": "classification", "classes": classes}
            if self.task.positive != 1:
                label["positive"] = self.task.positive
        parties = {party: own.state() for party, own in self.parties.items()}
        return {"version": VERSION, "label": label, "parties": parties}

    @classmethod
    def from_json(cls, text: str) -> Preparation:
        """Read what `to_json` wrote, exact to the last bit.

        DataError for another version or form.
        """
        try:
            content = json.loads(text)
            version = content["version"]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"no preparation of a table: {error}") from None
        if version != VERSION:
            raise DataError(f"its version is {version!r}; {VERSION} is the one that is known")
        known = validated(_File, content, "a table")
        label = known.label
        classes = label.classes and tuple(respelt(label.classes))
        task: Task = regression(label, label.mean, label.spread)
        if label.task != "regression":
            if len(set(classes or ())) < max(2, len(classes or ())):
                raise DataError(
                    "no preparation of a table: label.classes names fewer than two, or one twice"
                )
            task = Classification(len(classes or ()), label.positive)
        if label.task == "labels":
            if isinstance(label.column, str):
                raise DataError("no preparation of a table: label.column is no list of labels")
            task = MultiLabel(label.column)
        owns = {party: Preprocessing.from_state(state) for party, state in known.parties.items()}
        return cls(owns, label.column, task, classes)
