"""Loading of tables with columns of numbers and categories, as raw `Pooled` data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from vertizo.core.errors import ConfigError, DataError
from vertizo.data.alignment import contents_of, known_keys, likeness_of
from vertizo.data.alignment import remarks as identifier_remarks
from vertizo.data.labels import TaskName, labels_of
from vertizo.data.labels import notes as label_notes
from vertizo.data.options import DataConfig
from vertizo.data.pooled import Pooled
from vertizo.data.record_split import criterion_of, set_apart
from vertizo.data.tabular import frames
from vertizo.data.tabular.category_text import names
from vertizo.data.tabular.columns import (
    Source,
    check_known,
    dates_of,
    in_order,
    matrices,
    moments,
    notes,
    texts,
    unknown,
)
from vertizo.data.tabular.csv_lines import CsvFormat
from vertizo.data.weights import of_records, persons
from vertizo.models.losses import Regression


def source_of(path: Path, form: CsvFormat) -> Source:
    """Read a file as a table; errors as of `vertizo.data.tabular.frames.read`."""
    return Source(str(path), frames.read(path, form), frames.place_in(path, form))


def load(_: Path | None, options: DataConfig) -> Pooled:
    """Load the files of ``data.path`` and ``data.test_path``.

    ConfigError or DataError names the file or key, the column and what would be right.
    """
    path, form = options.path, CsvFormat.of(options)
    if path is None or not options.label_columns:
        raise ConfigError("data.name is 'table', which needs data.path and data.label")
    test = None if options.test_path is None else source_of(options.test_path, form)
    pooled = own(path.stem, source_of(path, form), test, options)
    kept = pooled.kept

    def training() -> Source:
        """The training records; the file is read again, which only ledgers need."""
        whole = source_of(path, form)
        return whole if kept is None else whole.reordered(kept.tolist())

    no_features = [*options.label_columns, options.id, options.person, options.weight]
    return replace(
        pooled,
        keys=lambda: _keys(training(), options.id),
        contents=lambda: contents_of(training().frame),
        likeness=lambda: likeness_of(training().frame, no_features),
    )


def _keys(table: Source, id_: str | None) -> list[str]:
    """A key of each record: its identifier, or else all of its values.

    A row whose identifier is missing or occurs twice changes no other row's key.
    """
    known: list[str | None] = [None] * table.frame.height
    if id_ is not None:
        known = known_keys(table.frame, id_, table.name)
    rows = zip(known, table.frame.iter_rows(), strict=True)
    return [key or "\0".join(map(repr, values)) for key, values in rows]


def own(name: str, train: Source, test: Source | None, options: DataConfig) -> Pooled:
    """Make a raw table of a user's own, in which ``data.label`` is predicted; see `pool`."""
    if options.label is None:
        raise ConfigError(f"data.name is {options.name!r}, which needs data.label")
    task = options.task if options.label_range is None else "regression"
    classes = options.classes
    label = tuple(options.label) if isinstance(options.label, list) else options.label
    pooled = pool(name, train, test, label=label, options=options, task=task, classes=classes)
    classified = not isinstance(pooled.task, Regression)
    return replace(pooled, fitted_labels=classified and options.classes is None)


def pool(
    name: str,
    train: Source,
    test: Source | None,
    *,
    label: str | tuple[str, ...],
    options: DataConfig,
    task: TaskName | None = None,
    classes: Sequence[str] | None = None,
    categorical: Sequence[str] = (),
    groups: Mapping[str, Sequence[str]] | None = None,
) -> Pooled:
    """Make a raw table, which every party prepares for itself once it is cut.

    Columns of text hold categories, and so do those that ``categorical``, data.categorical or
    data.categories name; all others hold numbers. Without a test frame a share of the rows is set
    apart.

    Args:
        name: name of the data set.
        train, test: rows; the latter may have more columns, and in another order.
        label: the column to predict, or several.
        options: the ``data`` section.
        task: None to infer it from the label: text and at most `MOST_CLASSES` different whole
            numbers are classes.
        classes: public classes; None for those that occur.
        categorical: columns of numbers that are categories.
        groups: the natural parties, name → columns.

    Raises:
        ConfigError, DataError: one line with the file or key, the column and what would be right.
    """
    predicted = (label,) if isinstance(label, str) else label
    _check_names(train, predicted, options)
    held = _held(train, options)
    listed = {column for own in (options.columns or {}).values() for column in own}
    time = None if options.time in listed else options.time
    no_features = (*predicted, options.id, options.weight, options.person, time, *options.drop)
    columns = [c for c in held if c not in no_features]
    if not columns:
        raise DataError(
            f"{train.name} has no column but {', '.join(map(repr, predicted))} and what data.drop "
            "leaves out"
        )
    if test is None and train.frame.height < 2:
        raise DataError(f"{train.name} has 1 row; it takes one to train on and one to test on")
    sources = [train] if test is None else [train, test]
    forced = {*categorical, *options.categorical, *options.categories} - set(options.drop)
    dates = dates_of(train, columns, forced)
    features, levels = matrices(sources, columns, forced, options.ranges, dates)
    remarks = notes(train, columns, levels, options.id, forced)
    for column in dict.fromkeys(filter(None, (options.id, options.person))):
        remarks += identifier_remarks(train.frame, column, train.name)
    if test is not None:
        seen = {
            column: in_order(texts(train, column).drop_nulls().unique().to_list())
            for column in levels
        }
        public = {c: names(own, f"data.categories.{c}") for c, own in options.categories.items()}
        known = {column: public.get(column, seen[column]) for column in levels}
        remarks += unknown(test, known, columns, dates).values()
    bounds = options.label_range
    learned, labels, class_names = labels_of(sources, label, task, classes, bounds)
    if isinstance(label, str) and (task is None or class_names is not None):
        remarks += label_notes(train, label, class_names)  # nobody wonders at what was asked for
    # The natural parties with the columns that were not dropped; who has none is left out.
    kept = {party: [c for c in own if c in columns] for party, own in (groups or {}).items()}
    left = {party: own for party, own in kept.items() if own}
    counts, times = of_records(train, options.weight), moments(train, options.time)
    people, rows = persons(train, options.person, options.id), None
    if test is None:
        by = criterion_of(options, name, learned, labels[0], times)
        ids = set_apart(len(features[0]), options.test, by)
        rows = ids[0]
        counts, people, times = (x if x is None else x[rows] for x in (counts, people, times))
        features, labels = [features[0][i] for i in ids], [labels[0][i] for i in ids]
    return Pooled(
        name=name,
        train=features[0],
        train_labels=labels[0],
        test=features[1],
        test_labels=labels[1],
        task=learned,
        label=label,
        columns=tuple(columns),
        groups=groups if groups is None else left,
        levels=levels,
        dates=tuple(dates),
        class_names=class_names,
        notes=tuple(remarks),
        kept=rows,
        times=times,
        weights=counts,
        persons=people,
    )


def _held(train: Source, options: DataConfig) -> list[str]:
    """The columns that some party holds or a key names; no others are checked."""
    there = train.frame.columns
    if options.columns is None:
        return list(there)
    held = {column for own in options.columns.values() for column in own}
    named = {*options.drop, *options.categorical, *options.ranges, *options.categories}
    return [column for column in there if column in held | named]


def _check_names(train: Source, label: Sequence[str], options: DataConfig) -> None:
    """Refuse names of columns that the table does not have."""
    single = {key: getattr(options, key) for key in ("id", "weight", "person", "time")}
    several = ("drop", "categorical", "ranges", "categories")
    wanted: list[tuple[str, Iterable[str]]] = [
        ("label names", label),
        *((f"{key} names", [column]) for key, column in single.items() if column is not None),
        *((f"columns gives {party!r}", own) for party, own in (options.columns or {}).items()),
        *((f"{key} names", getattr(options, key)) for key in several),
    ]
    check_known(train, wanted)
