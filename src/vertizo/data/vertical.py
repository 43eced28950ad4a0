"""One table or image set, cut between parties: every party its own features of the same records."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, get_args

import torch
from torch import Tensor

from vertizo.errors import ConfigError
from vertizo.messages import Purpose
from vertizo.randomness import Stream
from vertizo.server.losses import Task

SplitName = Literal["rows", "patches", "halves", "sides", "even", "columns"]
SPLITS: tuple[str, ...] = get_args(SplitName)
"""
rows     horizontal strips of pixels
patches  a grid of rectangles, as square as the number of parties allows
halves   upper and lower half of an image
sides    left and right half of an image
even     all values of a record, flattened, in equal runs
columns  named columns of a table
"""


@dataclass(frozen=True)
class Pooled:
    """A data set before it is cut: what the catalogue loads."""

    name: str
    train: Tensor
    """Training records, [records, columns] or [records, channels, height, width], float32."""
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    task: Task
    columns: tuple[str, ...] | None = None
    """Column names of a table."""
    groups: Mapping[str, Sequence[str]] | None = None
    """The natural parties of a table: name → columns."""
    fitted_scaling: bool = False
    """Whether features are scaled by statistics of the training records."""


@dataclass(frozen=True)
class Holding:
    """One party's own features."""

    name: str
    values: Mapping[Purpose, Tensor]
    """[records, ...], by purpose; training records under ``table``."""
    cardinalities: tuple[int, ...] = ()
    """Number of categories of each of the first columns, which then hold codes from 0."""


@dataclass(frozen=True)
class VerticalData:
    """A data set cut between parties."""

    name: str
    task: Task
    parties: tuple[str, ...]
    features: tuple[Mapping[Purpose, Tensor], ...]
    """Each party's own features, by purpose; training records under ``table``."""
    labels: Mapping[Purpose, Tensor]
    fitted_scaling: bool
    cardinalities: tuple[tuple[int, ...], ...] = ()
    """Each party's `Holding.cardinalities`; empty where no party has categories."""
    own: Holding | None = None
    """What the label holder itself knows of the records; enters the server model directly."""

    @property
    def records(self) -> int:
        """D, the number of training records."""
        return self.labels["table"].shape[0]

    def shape(self, party: int) -> tuple[int, ...]:
        """Shape of one record's features at one party."""
        return tuple(self.features[party]["table"].shape[1:])


def cut(
    pooled: Pooled,
    *,
    split: SplitName | None,
    parties: int | None,
    columns: Mapping[str, Sequence[str]] | None,
    validation: float,
    limit: int | None,
    stream: Stream,
) -> VerticalData:
    """Set validation records aside and give every party its part of the features.

    Args:
        pooled: the whole data set.
        split: how; None for images: rows of pixels, for tables: named columns.
        parties: how many; None for as many as the split itself says.
        columns: party name → column names, for ``columns``.
        validation: share of the training records kept for validation, in [0, 1).
        limit: use at most so many training records; None for all.
        stream: randomness of the choice of validation records.

    Raises:
        ConfigError: the split does not fit the data, naming both.
    """
    is_image = pooled.train.dim() == 4
    split = split or ("rows" if is_image else "columns")
    if is_image and split == "columns":
        raise ConfigError(
            f"data.split is 'columns' but {pooled.name} consists of images; use 'rows'"
        )
    if not is_image and split in ("rows", "patches", "halves", "sides"):
        raise ConfigError(
            f"data.split is {split!r} but {pooled.name} is a table; use 'columns' or 'even'"
        )
    if columns is not None and split != "columns":
        raise ConfigError(f"data.columns needs data.split 'columns', not {split!r}")

    order = torch.from_numpy(stream.generator().permutation(pooled.train.shape[0]))
    if limit is not None:
        order = order[:limit]
    held_out = round(validation * order.numel())
    chosen: dict[Purpose, Tensor] = {
        "table": order[held_out:].sort()[0],
        "validation": order[:held_out].sort()[0],
    }
    partitions: dict[Purpose, Tensor] = {"test": pooled.test}
    labels: dict[Purpose, Tensor] = {"test": pooled.test_labels}
    for purpose, ids in chosen.items():
        partitions[purpose] = pooled.train.index_select(0, ids)
        labels[purpose] = pooled.train_labels.index_select(0, ids)

    names, pieces = _pieces(pooled, split, parties, columns)
    features = tuple(
        {purpose: piece(values).contiguous() for purpose, values in partitions.items()}
        for piece in pieces
    )
    return VerticalData(
        name=pooled.name,
        task=pooled.task,
        parties=names,
        features=features,
        labels=labels,
        fitted_scaling=pooled.fitted_scaling,
    )


Piece = Callable[[Tensor], Tensor]


def _pieces(
    pooled: Pooled,
    split: SplitName,
    parties: int | None,
    columns: Mapping[str, Sequence[str]] | None,
) -> tuple[tuple[str, ...], list[Piece]]:
    """Names of the parties, and the part of a batch of records that each takes."""
    if split == "columns":
        return _named(pooled, parties, columns)
    shape = pooled.train.shape[1:]
    if split in ("halves", "sides"):
        if parties not in (None, 2):
            raise ConfigError(f"data.parties is {parties} but data.split {split!r} makes 2")
        side = -2 if split == "halves" else -1
        pieces = _strips(shape[side], 2, side)
    elif split == "rows":
        pieces = _strips(shape[-2], parties or 4, -2)
    elif split == "patches":
        count = parties or 4
        down = next(n for n in range(math.isqrt(count), 0, -1) if count % n == 0)
        if down > shape[-2] or count // down > shape[-1]:
            raise ConfigError(
                f"data.parties is {count}, which makes {down} by {count // down} patches of images "
                f"of {shape[-2]} by {shape[-1]} pixels; use a number with smaller factors"
            )
        lines, bands = _strips(shape[-2], down, -2), _strips(shape[-1], count // down, -1)
        pieces = [_after(line, band) for line in lines for band in bands]
    else:
        flat = _strips(math.prod(shape), parties or 4, -1)
        pieces = [_after(_flatten, strip) for strip in flat]
    return tuple(f"party{index}" for index in range(len(pieces))), pieces


def _strips(size: int, count: int, side: int) -> list[Piece]:
    """Equal strips along one side; a remainder goes to the last."""
    if not 1 <= count <= size:
        raise ConfigError(f"data.parties is {count} but there are {size} to share; use 1 to {size}")
    each = size // count

    def strip(index: int) -> Piece:
        start = index * each
        length = each if index < count - 1 else size - start
        return lambda values: values.narrow(side, start, length)

    return [strip(index) for index in range(count)]


def _after(first: Piece, second: Piece) -> Piece:
    return lambda values: second(first(values))


def _flatten(values: Tensor) -> Tensor:
    return values.flatten(1)


def _named(
    pooled: Pooled, parties: int | None, columns: Mapping[str, Sequence[str]] | None
) -> tuple[tuple[str, ...], list[Piece]]:
    known = pooled.columns or ()
    groups = (pooled.groups or {}) if columns is None else columns
    if not groups and (parties is None or columns is not None):
        raise ConfigError(
            f"{pooled.name} has no parties of its own; name them and their columns in data.columns,"
            " or give data.parties"
        )
    if columns is None and parties is not None and parties != len(groups):
        strips = _strips(len(known), parties, -1)
        return tuple(f"party{index}" for index in range(parties)), strips
    if parties is not None and parties != len(groups):
        raise ConfigError(f"data.parties is {parties} but data.columns names {len(groups)}")
    owner: dict[str, str] = {}
    for party, wanted in groups.items():
        if not wanted:
            raise ConfigError(f"data.columns gives {party!r} no columns")
        for column in wanted:
            if column not in known:
                near = get_close_matches(column, known, 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ConfigError(
                    f"data.columns gives {party!r} the column {column!r}, "
                    f"which {pooled.name} does not have{hint}"
                )
            if column in owner:
                whom = f"both {owner[column]!r} and {party!r}"
                if owner[column] == party:
                    whom = f"{party!r} twice"
                raise ConfigError(f"data.columns gives {column!r} to {whom}")
            owner[column] = party

    def select(wanted: Sequence[str]) -> Piece:
        index = torch.tensor([known.index(column) for column in wanted])
        return lambda values: values.index_select(1, index)

    return tuple(groups), [select(wanted) for wanted in groups.values()]
