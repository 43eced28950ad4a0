"""`Pooled`: a whole data set in one place, before it is cut between parties."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from vertizo.models.losses import Task

Kind = Literal["images", "table", "tokens", "views"]
"""
images  [records, channels, height, width]
table   [records, columns], of floats
tokens  [records, length], of integers
views   [records, views, channels, height, width]
"""


@dataclass(frozen=True, kw_only=True)
class RecordFacts:
    """What is known of a data set's training records, whole or cut."""

    fitted_labels: bool = False
    """Whether the task, its classes or its scale come from the labels."""
    class_names: tuple[str, ...] | None = None
    """Names of the classes, in the order of their numbers; of several labels no and yes."""
    notes: tuple[str, ...] = ()
    """Warnings about data that are valid but probably not meant, a line each."""
    keys: Callable[[], Sequence[str]] | None = None
    """Computes a key of each training record that tells it from all others, in their order; None
    where there is none."""
    contents: Callable[[], Sequence[str]] | None = None
    """Computes each training row as text, with all of its columns; None where that is the key."""
    likeness: Callable[[], list[list[str]]] | None = None
    """Computes coarse columns of the training rows (`vertizo.data.alignment.likeness_of`)."""
    weights: Tensor | None = None
    """Weight of each training record, [records]; None where all are equal."""
    persons: Tensor | None = None
    """A number for the person of each training record, [records]; None where unknown."""


@dataclass(frozen=True)
class Pooled(RecordFacts):
    """A data set before it is cut between parties, as loaders of the catalogue return it."""

    name: str
    train: Tensor
    """Training records: float32, int32 for tokens, float64 for a raw table (see `levels`)."""
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    task: Task
    columns: tuple[str, ...] | None = None
    """Column names of a table."""
    label: str | tuple[str, ...] | None = None
    """The column of a table that is predicted, or the columns."""
    groups: Mapping[str, Sequence[str]] | None = None
    """The natural parties of a table: name → columns."""
    fitted_scaling: bool = False
    """Whether features are already scaled by statistics of the training records."""
    levels: Mapping[str, tuple[str, ...]] | None = None
    """Column of categories → the categories of its codes, from 0; set for a raw table, whose
    parties prepare their columns for themselves once it is cut. NaN is a missing value there."""
    dates: tuple[str, ...] = ()
    """Columns of a raw table that are days since 1970."""
    times: Tensor | None = None
    """Time of each training record, float64 [records], if data.time names a column."""
    kept: Tensor | None = None
    """Row numbers of the training records in the table, where others were set apart."""

    @property
    def kind(self) -> Kind:
        """The kind of records, by shape and type of the training records."""
        sides = self.train.dim()
        if sides == 2:
            return "table" if self.train.is_floating_point() else "tokens"
        return "views" if sides == 5 else "images"
