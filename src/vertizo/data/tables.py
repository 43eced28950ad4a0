"""Tables with columns of numbers and of categories: from frames to a raw `Pooled`."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertizo.data import frames
from vertizo.data.files import set_apart
from vertizo.data.options import DataConfig
from vertizo.data.pooled import Pooled
from vertizo.data.splits import nearest
from vertizo.errors import ConfigError, DataError
from vertizo.server.losses import Classification, Regression, Task

if TYPE_CHECKING:
    import polars as pl

MOST_CLASSES = 20
"""More different whole numbers than that are taken for a regression, unless data.task says."""
LARGEST = float(np.finfo(np.float32).max)

TaskName = Literal["classification", "regression"]


@dataclass(frozen=True)
class Source:
    """A frame, and what to call it in a complaint."""

    name: str
    frame: pl.DataFrame


def load(_: Path | None, options: DataConfig) -> Pooled:
    """The files of ``data.path`` and ``data.test_path``.

    Raises:
        ConfigError, DataError: one line with the file or key, the column and what would be right.
    """
    if options.path is None or options.label is None:
        raise ConfigError("data.name is 'table', which needs data.path and data.label")
    train = Source(str(options.path), frames.read(options.path, options.delimiter))
    test = None
    if options.test_path is not None:
        test = Source(str(options.test_path), frames.read(options.test_path, options.delimiter))
    name = options.path.stem
    task = options.task if options.label_range is None else "regression"
    pooled = pool(
        name,
        train,
        test,
        label=options.label,
        options=options,
        task=task,
        classes=options.classes,
    )
    classified = isinstance(pooled.task, Classification)
    return replace(pooled, fitted_labels=classified and options.classes is None)


def pool(
    name: str,
    train: Source,
    test: Source | None,
    *,
    label: str,
    options: DataConfig,
    task: TaskName | None = None,
    classes: Sequence[str] | None = None,
    categorical: Sequence[str] = (),
    groups: Mapping[str, Sequence[str]] | None = None,
) -> Pooled:
    """A raw table, to be prepared by every party once it is cut.

    Text is a column of categories, and so is what ``categorical``, data.categorical or
    data.categories name; all else is numbers. Where there is no test frame, a share of the rows is
    set apart.

    Args:
        name: of the data set.
        train: rows to train on, or all.
        test: rows to test on; it may have more columns, and in another order.
        label: the column to predict.
        options: heeds drop, categorical, categories and test.
        task: None to infer it from the label: text and at most `MOST_CLASSES` different whole
            numbers are classes.
        classes: the classes; None for those that occur.
        categorical: columns of numbers that are categories.
        groups: the natural parties.

    Raises:
        ConfigError, DataError: one line with the file or key, the column and what would be right.
    """
    _check_names(train, label, options)
    held = _held(train, options)
    columns = [c for c in held if c not in (label, options.id, *options.drop)]
    if not columns:
        raise DataError(f"{train.name} has no column but {label!r} and what data.drop leaves out")
    if test is None and train.frame.height < 2:
        raise DataError(f"{train.name} has 1 row; it takes one to train on and one to test on")
    sources = [train] if test is None else [train, test]
    forced = {*categorical, *options.categorical, *options.categories} - set(options.drop)
    features, levels = matrices(sources, columns, forced)
    learned, labels, class_names = labels_of(sources, label, task, classes)
    if test is None:
        ids = set_apart(len(features[0]), options.test)
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
        groups=_left(groups, columns),
        levels=levels,
        class_names=class_names,
    )


def matrices(
    sources: Sequence[Source], columns: Sequence[str], categorical: Container[str]
) -> tuple[list[Tensor], dict[str, tuple[str, ...]]]:
    """Columns of every frame as numbers, float64 [rows, columns], and what codes stand for.

    Args:
        sources: the first decides which columns hold text.
        columns: in order.
        categorical: columns that are categories even where they hold numbers.

    Raises:
        DataError: names the frame and the column.
    """
    levels: dict[str, tuple[str, ...]] = {}
    found = [np.empty((source.frame.height, len(columns))) for source in sources]
    for place, column in enumerate(columns):
        for source in sources:
            _check_has(source, column, sources[0].name)
        coded = None if column in categorical else _all_numbers(sources, column)
        if coded is None:
            levels[column], coded = _all_codes(sources, column)
        for matrix, values in zip(found, coded, strict=True):
            matrix[:, place] = values
    return [torch.from_numpy(matrix) for matrix in found], levels


def _check_has(source: Source, column: str, first: str) -> None:
    if column not in source.frame.columns:
        raise DataError(
            f"{source.name} does not have the column {column!r} of {first}"
            f"{nearest(column, source.frame.columns)}"
        )


def _held(train: Source, options: DataConfig) -> list[str]:
    """The columns that some party holds; the others may be anything."""
    there = train.frame.columns
    if options.columns is None:
        return list(there)
    held = {column for own in options.columns.values() for column in own}
    for party, own in options.columns.items():
        for column in own:
            if column not in there:
                raise ConfigError(
                    f"data.columns gives {party!r} the column {column!r}, which "
                    f"{Path(train.name).stem} does not have{nearest(column, there)}"
                )
    named = {*options.drop, *options.categorical, *options.ranges, *options.categories}
    return [column for column in there if column in held | named]


def _check_names(train: Source, label: str, options: DataConfig) -> None:
    """Refuse columns that are not there; a file of one column is often one of another delimiter."""
    known = train.frame.columns
    other = next((d for d in ";\t|," if len(known) == 1 and d in known[0]), None)
    if other is not None and label not in known:
        raise DataError(
            f"{train.name} has one column only, {known[0][:60]!r}; is data.delimiter {other!r}?"
        )
    named = {"label": [label], "drop": options.drop, "categorical": options.categorical}
    if options.id is not None:
        named["id"] = [options.id]
    for key, wanted in named.items():
        for column in wanted:
            if column not in known:
                hint = nearest(column, known) or f"; it has {', '.join(known[:20])}"
                raise ConfigError(
                    f"data.{key} names the column {column!r}, "
                    f"which {train.name} does not have{hint}"
                )


def _left(
    groups: Mapping[str, Sequence[str]] | None, columns: Sequence[str]
) -> Mapping[str, Sequence[str]] | None:
    """The natural parties with the columns that were not dropped; who has none is left out."""
    if groups is None:
        return None
    left = {party: [c for c in wanted if c in columns] for party, wanted in groups.items()}
    return {party: wanted for party, wanted in left.items() if wanted}


def _all_numbers(sources: Sequence[Source], column: str) -> list[NDArray[np.float64]] | None:
    """A column of every frame as numbers, NaN where missing; None if the first has text there."""
    result: list[NDArray[np.float64]] = []
    for source in sources:
        array, text = numbers(source, column)
        if text is not None and not result:
            return None
        if text is not None:
            raise DataError(
                f"{source.name}: column {column!r} holds {source.frame[column][text]!r}, "
                f"but only numbers in {sources[0].name}"
            )
        result.append(array)
    return result


def numbers(source: Source, column: str) -> tuple[NDArray[np.float64], int | None]:
    """A column as numbers, NaN where missing, and the first row that has text in it.

    Raises:
        DataError: the column holds neither, or a number that float32 cannot hold.
    """
    import polars as pl

    values = source.frame[column]
    if values.dtype == pl.Null:
        values = values.cast(pl.Float64)
    text = None
    if values.dtype in (pl.String, pl.Boolean, pl.Categorical, pl.Enum):
        found = values.cast(pl.String).cast(pl.Float64, strict=False)
        wrong = np.flatnonzero((found.is_null() & values.is_not_null()).to_numpy())
        text = int(wrong[0]) if len(wrong) else None
    elif values.dtype.is_numeric():
        found = values.cast(pl.Float64)
    else:
        raise DataError(
            f"{source.name}: column {column!r} holds {values.dtype}, neither numbers nor text; "
            "leave it out with data.drop"
        )
    array = found.fill_null(float("nan")).to_numpy()
    huge = array[np.abs(array) > LARGEST]
    if text is None and len(huge):
        raise DataError(
            f"{source.name}: column {column!r} holds {huge[0]:g}, which is too large a number"
        )
    return array, text


def texts(source: Source, column: str) -> pl.Series:
    """A column as text, null where missing; whole numbers without a fraction."""
    import polars as pl

    values = source.frame[column]
    if values.dtype.is_float():
        values = values.fill_nan(None)
        # Each value for itself, whatever the others are, and as a table of integers has it.
        whole = pl.col(column) == pl.col(column).cast(pl.Int64, strict=False)
        integer = pl.col(column).cast(pl.Int64, strict=False).cast(pl.String)
        text = pl.when(whole).then(integer).otherwise(pl.col(column).cast(pl.String))
        return values.to_frame().select(text.alias(column)).to_series()
    if values.dtype.is_nested() or values.dtype == pl.Binary:
        raise DataError(f"{source.name}: column {column!r} holds {values.dtype}, not categories")
    return values.cast(pl.String)


def _order(text: str) -> tuple[int, float, str]:
    """Numbers by size, then all else by name: a place that depends on no other text."""
    try:
        number = float(text)
    except ValueError:
        return 1, 0.0, text
    return (0, number, text) if number == number else (1, 0.0, text)


def _all_codes(
    sources: Sequence[Source], column: str
) -> tuple[tuple[str, ...], list[NDArray[np.float64]]]:
    """The different texts in a column of all frames, and each frame's codes; NaN where missing."""
    import polars as pl

    found = [texts(source, column) for source in sources]
    names = sorted(pl.concat(found).drop_nulls().unique().to_list(), key=_order)
    return tuple(names), [codes(series, names) for series in found]


def codes(found: pl.Series, names: Sequence[str]) -> NDArray[np.float64]:
    """Each text's place among the names; NaN where it is missing, or none of them."""
    import polars as pl

    if not names:
        return np.full(len(found), np.nan)
    places = found.cast(pl.Enum(names), strict=False).to_physical().cast(pl.Float64)
    return places.fill_null(float("nan")).to_numpy()


def labels_of(
    sources: Sequence[Source], label: str, task: TaskName | None, classes: Sequence[str] | None
) -> tuple[Task, list[Tensor], tuple[str, ...] | None]:
    """The task, every frame's labels, and what the classes are called.

    Args:
        sources: the first decides what classes there are.
        label: the column.
        task: None to infer it.
        classes: public ones; None for those that occur.

    Raises:
        ConfigError, DataError: names the frame and what does not fit.
    """
    for source in sources:
        _check_has(source, label, sources[0].name)
        values = source.frame[label]
        absent = values.null_count()
        if values.dtype.is_float():
            absent += int(values.is_nan().sum())
        if absent:
            raise DataError(
                f"{source.name}: the label {label!r} is missing in {absent} of {len(values)} rows; "
                "leave those rows out"
            )
    if task is None:
        task = _inferred(sources, label) if classes is None else "classification"
    if task == "regression":
        given = _all_numbers(sources[:1], label)
        if given is None:
            raise ConfigError(
                f"data.task is 'regression' but the label {label!r} of {sources[0].name} holds "
                f"text, such as {_text_in(sources[0], label)!r}"
            )
        given = _all_numbers(sources, label) or given
        return Regression(), [torch.from_numpy(array.astype(np.float32)) for array in given], None
    found = [texts(source, label) for source in sources]
    names = list(classes or sorted(found[0].unique().to_list(), key=_order))
    if len(names) > max(MOST_CLASSES, len(found[0]) // 2):
        raise DataError(
            f"{sources[0].name}: the label {label!r} has {len(names)} different values in "
            f"{len(found[0])} rows, which are no classes; is it an identifier?"
        )
    if len(names) < 2:
        raise DataError(
            f"{sources[0].name}: the label {label!r} is {names[0]!r} in every row; "
            "there must be two classes at least"
        )
    for source, series in zip(sources, found, strict=True):
        unknown = series.filter(~series.is_in(names))
        if len(unknown):
            where = f"does not occur in {sources[0].name}" if classes is None else "is no class"
            raise DataError(
                f"{source.name}: the label {label!r} is {unknown[0]!r}, which {where}"
                + ("" if classes is None else f" of data.classes, {', '.join(map(repr, classes))}")
            )
    coded = [torch.from_numpy(codes(series, names).astype(np.int64)) for series in found]
    return Classification(len(names)), coded, tuple(names)


def _text_in(source: Source, column: str) -> str:
    """The first value of a column that is no number."""
    import polars as pl

    found = texts(source, column)
    return str(found.filter(found.cast(pl.Float64, strict=False).is_null())[0])


def _inferred(sources: Sequence[Source], label: str) -> TaskName:
    given = _all_numbers(sources[:1], label)
    if given is None:
        return "classification"
    different = np.unique(given[0])
    whole = bool(np.all(different == np.round(different)))
    return "classification" if whole and len(different) <= MOST_CLASSES else "regression"
