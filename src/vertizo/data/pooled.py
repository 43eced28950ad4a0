"""A data set before it is cut: what the catalogue loads."""

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


@dataclass(frozen=True)
class Pooled:
    """A data set before it is cut: what the catalogue loads."""

    name: str
    train: Tensor
    """Training records; float32, but int32 for tokens. A raw table is float64, see `levels`."""
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
    """Whether features are scaled by statistics of the training records already."""
    levels: Mapping[str, tuple[str, ...]] | None = None
    """For each column of categories what its codes 0, 1, ... stand for. Set for a raw table, whose
    parties prepare their columns for themselves once it is cut; NaN is a missing value there."""
    dates: tuple[str, ...] = ()
    """Columns of a raw table that are days since 1970."""
    class_names: tuple[str, ...] | None = None
    """What the classes are called, in the order of their numbers; of several labels no and yes."""

    fitted_labels: bool = False
    """Whether the task, or its classes, were read off the labels."""
    notes: tuple[str, ...] = ()
    """What is allowed and probably not meant, a line each."""
    times: Tensor | None = None
    """When each training record was, float64 [records], where data.time says so."""
    kept: Tensor | None = None
    """The rows of the table that the training records are, where others were set apart."""
    keys: Callable[[], Sequence[str]] | None = None
    """What tells the training records from all others, in their order: worked out when asked for.
    None where nothing does."""
    contents: Callable[[], Sequence[str]] | None = None
    likeness: Callable[[], list[list[str]]] | None = None
    """Columns of the same, near enough (`vertizo.data.alignment.likeness_of`)."""
    """All that the label holder has in each of their rows, as text; None where that is the key."""

    weights: Tensor | None = None
    """How much each training record counts, [records]; None where all count alike."""
    persons: Tensor | None = None
    """A number for the person of each training record, [records]; None where nothing names one."""

    @property
    def kind(self) -> Kind:
        """What a record is, by the shape and type of the training records."""
        sides = self.train.dim()
        if sides == 2:
            return "table" if self.train.is_floating_point() else "tokens"
        return "views" if sides == 5 else "images"
