"""What one party knows by itself: its own table, in the order that all parties agreed on.

Rows are sorted by their keys, so that record number n is the same person everywhere once the tables
were aligned (`vertizo.data.alignment`). Which records train, validate and test follows from their
number and public randomness. Everything else, a party decides for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from pydantic import Field, model_validator
from torch import Tensor

from vertizo.core.errors import ConfigError, DataError
from vertizo.core.options import Options
from vertizo.core.randomness import Stream
from vertizo.data.alignment import align_table, contents_of, fingerprint, in_order, keys_of
from vertizo.data.datasets.files import set_apart
from vertizo.data.labels import labels_of
from vertizo.data.options import Category, DataConfig, Delimiter
from vertizo.data.tabular.columns import Source, check_known, matrices
from vertizo.data.tabular.prepared import Preparation
from vertizo.data.tabular.preprocessing import Preprocessing, check_public
from vertizo.data.tabular.tables import source_of
from vertizo.data.vertical import VerticalData, choose, hold, learned_task
from vertizo.models.losses import Classification
from vertizo.protocol.messages import Purpose


class OwnTable(Options):
    """A feature holder's table."""

    path: Path | None = None
    """A CSV or Parquet file. Leave it out for a named data set, of which each party takes its
    part."""
    test_path: Path | None = None
    """A file of the test records. Default: a share of ``path``, as the label holder says."""
    id: str | None = None
    """The column of keys: the same people have the same keys at all parties."""
    delimiter: Delimiter = ","
    """The character between the values of a CSV file."""
    columns: list[str] | None = None
    """The features. Default: all columns but ``id`` and ``drop``."""
    drop: list[str] = Field(default_factory=list)
    """Columns to leave out."""
    categorical: list[str] = Field(default_factory=list)
    """Numeric columns to treat as categories."""
    ranges: dict[str, list[float]] = Field(default_factory=dict)
    """Column → [low, high], public bounds to scale by instead of fitted statistics."""
    categories: dict[str, list[Category]] = Field(default_factory=dict)
    """Column → its categories, public, instead of those that occur in training."""
    root: Path | None = None
    """Folder of a named data set's files. Default: the environment variable VERTIZO_DATA."""

    @model_validator(mode="after")
    def _whole(self) -> OwnTable:
        if self.path is not None and self.id is None:
            raise ValueError("data.path is set, which needs data.id, the column of keys")
        for column, pair in self.ranges.items():
            if len(pair) != 2 or not pair[0] < pair[1]:
                raise ValueError(f"data.ranges.{column} is {pair}; it must be [low, high]")
        return self


@dataclass(frozen=True)
class Choice:
    """Which records train, validate and test; the label holder says so."""

    stream: Stream
    validation: float
    test: float | None
    limit: int | None = None

    def rows(self, records: int, tested: int | None) -> dict[Purpose, Tensor]:
        """Row numbers by purpose, ascending.

        Args:
            records: of the first table.
            tested: of the table of test records; None if the test records are among the first.
        """
        if tested is not None:
            first, test = torch.arange(records), torch.arange(tested)
        else:
            first, test = set_apart(records, self.test)
        chosen = choose(len(first), self.validation, self.limit, self.stream)
        return {**{purpose: first[rows] for purpose, rows in chosen.items()}, "test": test}


@dataclass(frozen=True)
class Held:
    """A feature holder's records."""

    values: Mapping[Purpose, Tensor]
    """[records, ...], by purpose; training records under ``train``."""
    cardinalities: tuple[int, ...]
    """Number of categories of each of the first columns."""
    fitted: bool
    """Whether they were scaled by statistics of the training records."""
    fingerprint: bytes
    """Of the keys in their order; empty where there are none."""
    preparation: Preprocessing | None = None
    """How new records become features; None for what is no table."""


def features(options: OwnTable, choice: Choice, federation: str) -> Held:
    """A feature holder's own table.

    Args:
        options: with a path.
        choice: of training, validation and test records.
        federation: its name, which the fingerprint is keyed by.

    Raises:
        ConfigError, DataError: one line that names the file, the column and what would be right.
    """
    assert options.path is not None, "the caller has looked"
    sources, keys = _sources(options.path, options.test_path, options.id, options.delimiter)
    train = sources[0]
    _check_known(train, options, columns=options.columns or ())
    left_out = {options.id, *options.drop}
    columns = [c for c in options.columns or train.frame.columns if c not in left_out]
    if not columns:
        raise DataError(f"{train.name} has no column but {options.id!r} and what data.drop names")
    raw, levels = matrices(
        sources, columns, {*options.categorical, *options.categories}, options.ranges
    )
    check_public(train.name, columns, levels, options.ranges, options.categories)
    rows = _rows(choice, raw)
    values = {p: _of(raw, p)[ids] for p, ids in rows.items()}
    holding, prepare = hold("own", values, columns, levels, options.ranges, options.categories)
    return Held(
        holding.values,
        holding.cardinalities,
        prepare.fitted,
        fingerprint(federation, keys),
        prepare,
    )


def labels(
    options: DataConfig, choice: Choice, members: Sequence[str], federation: str
) -> tuple[VerticalData, bytes]:
    """The label holder's own table, and the fingerprint of its keys.

    Columns beside the key and the label are features of its own; they enter the server model.

    Args:
        options: with a path, a label and an id.
        choice: of training, validation and test records.
        members: the feature holders' names.
        federation: its name, which the fingerprint is keyed by.

    Raises:
        ConfigError, DataError: one line that names the file, the column and what would be right.
    """
    assert options.path is not None, "a table has a path"
    assert options.label is not None, "and a label"
    if options.id is None:
        raise ConfigError("data.id is not set; name the column of keys that all parties have")
    sources, keys = _sources(options.path, options.test_path, options.id, options.delimiter)
    train = sources[0]
    _check_known(train, options, label=[options.label])
    task = options.task if options.label_range is None else "regression"
    raw_task, raw_labels, names = labels_of(sources, options.label, task, options.classes)
    left_out = {options.id, options.label, *options.drop}
    columns = [column for column in train.frame.columns if column not in left_out]
    raw, levels = matrices(
        sources, columns, {*options.categorical, *options.categories}, options.ranges
    )
    check_public(train.name, columns, levels, options.ranges, options.categories)
    rows, first = _rows(choice, raw), keys[1 : 1 + train.frame.height]
    by_purpose = {p: _of(raw_labels, p)[ids] for p, ids in rows.items()}
    learned = learned_task(options.path.stem, raw_task, by_purpose["train"], options.label_range)
    classified = isinstance(raw_task, Classification)
    holder = options.label_holder or "label holder"
    own, prepare = None, None
    if columns:
        values = {p: _of(raw, p)[ids] for p, ids in rows.items()}
        own, prepare = hold(holder, values, columns, levels, options.ranges, options.categories)
    data = VerticalData(
        name=options.path.stem,
        task=learned,
        parties=tuple(members),
        features=(),
        labels=by_purpose,
        fitted_scaling=prepare is not None and prepare.fitted,
        own=own,
        fitted=(holder,) if prepare is not None and prepare.fitted else (),
        fitted_labels=(classified and options.classes is None)
        or (not classified and options.label_range is None),
        class_names=names,
        preparation=Preparation(
            {} if prepare is None else {holder: prepare}, options.label, learned, names
        ),
        keys=lambda: [first[place] for place in rows["train"].tolist()],
        contents=lambda: contents_of(train.frame[rows["train"].tolist()]),
    )
    return data, fingerprint(federation, keys)


def part(whole: VerticalData, index: int) -> Held:
    """One party's part of a named data set, which everybody has: for trying out."""
    party = whole.parties[index]
    return Held(
        whole.features[index],
        whole.cardinalities[index] if whole.cardinalities else (),
        party in whole.fitted,
        b"",
        whole.preparation.parties[party] if whole.preparation is not None else None,
    )


def without_features(whole: VerticalData, members: Sequence[str]) -> VerticalData:
    """The label holder's part of a named data set, whose parties get the members' names."""
    names = dict(zip(whole.parties, members, strict=True))
    fitted = [party for party in whole.fitted if party not in whole.parties]
    return replace(
        whole, parties=tuple(names.values()), features=(), cardinalities=(), fitted=tuple(fitted)
    )


def _sources(
    path: Path, test_path: Path | None, id_: str | None, delimiter: str
) -> tuple[list[Source], list[str]]:
    """The tables in the order of their keys; how many keys each has, and they themselves."""
    assert id_ is not None, "the caller has looked"
    sources: list[Source] = []
    all_keys: list[str] = []
    for place in (path, test_path):
        if place is None:
            continue
        source = source_of(place, delimiter)
        keys = keys_of(source.frame, id_, source.name, source.place)
        sources.append(_aligned(source, id_, keys))
        all_keys += [str(len(keys)), *in_order(keys)]
    if len(sources) == 1 and sources[0].frame.height < 2:
        raise DataError(f"{path} has 1 row; it takes one to train on and one to test on")
    return sources, all_keys


def _aligned(source: Source, id_: str, keys: Sequence[str]) -> Source:
    """A table in the order of its keys; its rows are still found where they are in the file."""
    rows = sorted(range(len(keys)), key=keys.__getitem__)
    frame = align_table(source.frame, id_, keys, source.name)
    return Source(source.name, frame, lambda index: source.place(rows[index]))


def _rows(choice: Choice, raw: Sequence[Tensor]) -> dict[Purpose, Tensor]:
    rows = choice.rows(len(raw[0]), len(raw[1]) if len(raw) > 1 else None)
    if not rows["train"].numel():
        raise ConfigError(
            f"data.validation is {choice.validation}, which leaves no record to train on"
        )
    return rows


def _of(parts: Sequence[Tensor], purpose: Purpose) -> Tensor:
    """The table that the records of that purpose are in."""
    return parts[-1] if purpose == "test" else parts[0]


def _check_known(source: Source, options: OwnTable | DataConfig, **more: Iterable[str]) -> None:
    """Refuse columns that are not there; ``more`` has a key's name and the columns it has."""
    named: dict[str, Iterable[str]] = {
        **more,
        "drop": options.drop,
        "categorical": options.categorical,
        "ranges": options.ranges,
        "categories": options.categories,
    }
    wanted = [(f"{key} names", column) for key, columns in named.items() for column in columns]
    check_known(source, wanted)
