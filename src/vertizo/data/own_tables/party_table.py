"""One party's own table, in the order that all parties agreed on.

Rows are sorted by their keys, so that record number n is the same person everywhere once the tables
were aligned (`vertizo.data.alignment`). Which records train, validate and test follows from their
number and public randomness, unless the label holder tells its choice. Each party prepares its own
columns by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor

from vertizo.core.errors import ConfigError, DataError
from vertizo.core.randomness import Stream
from vertizo.data.alignment import contents_of, fingerprint, in_order, keys_of, likeness_of, remarks
from vertizo.data.labels import labels_of
from vertizo.data.options import DataConfig, OwnTable
from vertizo.data.prepared import Preparation
from vertizo.data.record_split import (
    AT_RANDOM,
    ChosenRows,
    Criterion,
    choose,
    criterion_of,
    set_apart,
)
from vertizo.data.tables import source_of
from vertizo.data.tabular.columns import Source, check_known, dates_of, matrices, moments, notes
from vertizo.data.tabular.csv_lines import CsvFormat
from vertizo.data.tabular.preprocessing import Preprocessing, check_public
from vertizo.data.vertical import Holding, VerticalData, hold, learned_task
from vertizo.data.weights import of_records, persons
from vertizo.models.losses import Regression
from vertizo.protocol.messages import Purpose


@dataclass(frozen=True)
class Choice:
    """The label holder's settings for which records train, validate and test."""

    stream: Stream
    validation: float
    test: float | None
    limit: int | None = None
    told: ChosenRows | None = None
    """The rows that the label holder chose by data that only it has; None if all can choose."""

    def rows(
        self, records: int, tested: int | None = None, by: Criterion = AT_RANDOM
    ) -> dict[Purpose, Tensor]:
        """Row numbers by purpose, ascending; ``tested`` counts the rows of a separate test file.

        Raises:
            ConfigError: no record is left to train on.
            DataError: the rows told are of other records, or more of them validate than the share.
        """
        if self.told is not None:
            chosen = self.told.rows(records)
            validated = len(chosen["validation"])
            used = validated + len(chosen["train"])
            if validated > round(self.validation * used):
                raise DataError(
                    f"the label holder chose {validated:,} of {used:,} records for validation, "
                    f"where data.validation is {self.validation:g}"
                )
            return chosen if tested is None else {**chosen, "test": torch.arange(tested)}
        if tested is not None:
            first, test = torch.arange(records), torch.arange(tested)
        else:
            first, test = set_apart(records, self.test, by)
        chosen = choose(len(first), self.validation, self.limit, self.stream, by.of(first))
        if not chosen["train"].numel():
            raise ConfigError(
                f"data.validation is {self.validation}, which leaves no record to train on"
            )
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
    """Fingerprint of the keys in their order; empty where there are none."""
    preparation: Preprocessing | None = None
    """How new records become features; None unless the data are a table."""
    notes: tuple[str, ...] = ()
    """Warnings about data that are valid but probably not meant, for this party's own people."""


def check(options: OwnTable) -> None:
    """Check that the table exists and has its keys and the columns that the options name.

    Errors are those of `features`.
    """
    _opened(options, columns=options.columns or ())


def features(options: OwnTable, choice: Choice, federation: str) -> Held:
    """Read a feature holder's own table; the fingerprint is keyed by the federation's name.

    ConfigError or DataError names the file, the column and what would be right.
    """
    sources, keys = _opened(options, columns=options.columns or ())
    train = sources[0]
    left_out = {options.id, *options.drop}
    columns = [c for c in options.columns or train.frame.columns if c not in left_out]
    if not columns:
        raise DataError(f"{train.name} has no column but {options.id!r} and what data.drop names")
    _, own, prepare, said = _features("own", sources, columns, options, choice)
    made = fingerprint(federation, keys)
    assert own is not None, "there are columns"
    assert prepare is not None, "and they are prepared"
    return Held(own.values, own.cardinalities, prepare.fitted, made, prepare, said)


def labels(
    options: DataConfig, choice: Choice, members: Sequence[str], federation: str
) -> tuple[VerticalData, bytes, ChosenRows | None]:
    """Read the label holder's own table for those feature holders, and fingerprint its keys.

    Columns beside the key and the label are features of its own; they enter the server model. The
    third result is its choice of records, where nobody else can make it; else None. ConfigError or
    DataError names the file, the column and what would be right.
    """
    assert options.path is not None, "a table has a path"
    assert options.label is not None, "and a label"
    predicted = options.label_columns
    if options.id is None:
        raise ConfigError("data.id is not set; name the column of keys that all parties have")
    single = {key: getattr(options, key) for key in ("weight", "person", "time")}
    named = {"label": predicted} | {key: (one,) for key, one in single.items() if one}
    sources, keys = _opened(options, **named)
    train, holder = sources[0], options.label_holder or "label holder"
    task = options.task if options.label_range is None else "regression"
    label = predicted if options.has_several_labels else predicted[0]
    raw_task, raw, names = labels_of(sources, label, task, options.classes, options.label_range)
    by = criterion_of(options, options.path.stem, raw_task, raw[0], moments(train, options.time))
    left_out = {options.id, *chain(*named.values()), *options.drop}
    columns = [column for column in train.frame.columns if column not in left_out]
    rows, own, prepare, said = _features(holder, sources, columns, options, choice, by)
    chosen, first = rows["train"].tolist(), keys[1 : 1 + train.frame.height]
    by_purpose = _chosen(raw, rows)
    learned = learned_task(options.path.stem, raw_task, by_purpose["train"], options, names)
    public = options.label_range if isinstance(raw_task, Regression) else options.classes
    prepared = {} if prepare is None else {holder: prepare}
    fitted = tuple(party for party, each in prepared.items() if each.fitted)
    weights = of_records(train, options.weight)
    people = persons(train, options.person, options.id)
    data = VerticalData(
        name=options.path.stem,
        task=learned,
        parties=tuple(members),
        features=(),
        labels=by_purpose,
        fitted_scaling=bool(fitted),
        own=own,
        fitted=fitted,
        fitted_labels=public is None,
        class_names=names,
        preparation=Preparation(prepared, label, learned, names),
        keys=lambda: [first[place] for place in chosen],
        contents=lambda: contents_of(train.frame[chosen]),
        likeness=lambda: likeness_of(
            train.frame[chosen], [*predicted, options.id, options.person, options.weight]
        ),
        weights=None if weights is None else weights[chosen],
        persons=None if people is None else people[chosen],
        notes=said
        + tuple(
            line
            for column in dict.fromkeys(filter(None, (options.id, options.person)))
            for line in remarks(train.frame, column, train.name)
        ),
    )
    of_first = {p: ids for p, ids in rows.items() if p != "test" or len(sources) == 1}
    told = None if by == AT_RANDOM else ChosenRows.of(train.frame.height, of_first)
    return data, fingerprint(federation, keys), told


def part(whole: VerticalData, index: int) -> Held:
    """One party's part of a named data set, which everybody has, to try a federation out."""
    party = whole.parties[index]
    return Held(
        whole.features[index],
        whole.cardinalities[index] if whole.cardinalities else (),
        party in whole.fitted,
        b"",
        whole.preparation.parties[party] if whole.preparation is not None else None,
    )


def without_features(whole: VerticalData, members: Sequence[str]) -> VerticalData:
    """The label holder's part of a named data set; parties get the members' names."""
    names = dict(zip(whole.parties, members, strict=True))
    fitted = [party for party in whole.fitted if party not in whole.parties]
    return replace(
        whole, parties=tuple(names.values()), features=(), cardinalities=(), fitted=tuple(fitted)
    )


def _opened(
    options: OwnTable | DataConfig, **named: Iterable[str]
) -> tuple[list[Source], list[str]]:
    """Read the tables in the order of their keys, and list the number of keys of each and the keys.

    A source still names the lines of its file. Columns that are missing are refused, those of the
    usual configuration keys and of ``named``, which maps a key to its columns.
    """
    assert options.id is not None, "the caller has looked"
    assert options.path is not None, "the caller has looked"
    sources: list[Source] = []
    all_keys: list[str] = []
    for path in (options.path, options.test_path):
        if path is None:
            continue
        source = source_of(path, CsvFormat.of(options))
        keys = keys_of(source.frame, options.id, source.name, source.place)
        rows = sorted(range(len(keys)), key=keys.__getitem__)
        sources.append(source.reordered(rows))
        all_keys += [str(len(keys)), *in_order(keys)]
    if len(sources) == 1 and sources[0].frame.height < 2:
        raise DataError(f"{path} has 1 row; it takes one to train on and one to test on")
    for key in ("drop", "categorical", "ranges", "categories"):
        named[key] = getattr(options, key)
    check_known(sources[0], ((f"{key} names", columns) for key, columns in named.items()))
    return sources, all_keys


def _features(
    name: str,
    sources: Sequence[Source],
    columns: Sequence[str],
    options: OwnTable | DataConfig,
    choice: Choice,
    by: Criterion = AT_RANDOM,
) -> tuple[dict[Purpose, Tensor], Holding | None, Preprocessing | None, tuple[str, ...]]:
    """The rows by purpose, features prepared from those columns, how, and notes on them.

    Features and their preprocessing are None where there are no columns.
    """
    ranges, categories = options.ranges, options.categories
    named = {*options.categorical, *categories}
    dates = dates_of(sources[0], columns, named)
    raw, levels = matrices(sources, columns, named, ranges, dates)
    said = tuple(notes(sources[0], columns, levels, named=named))
    check_public(sources[0].name, columns, levels, ranges, categories)
    rows = choice.rows(len(raw[0]), len(raw[1]) if len(raw) > 1 else None, by)
    if not columns:
        return rows, None, None, said
    return rows, *hold(name, _chosen(raw, rows), columns, levels, ranges, categories, dates), said


def _chosen(parts: Sequence[Tensor], rows: Mapping[Purpose, Tensor]) -> dict[Purpose, Tensor]:
    """Rows by purpose, of the table that the records of that purpose are in."""
    return {p: (parts[-1] if p == "test" else parts[0])[ids] for p, ids in rows.items()}
