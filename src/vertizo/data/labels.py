"""Labels of tables: the task, classification or regression, and each record's label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertizo.core.errors import ConfigError, DataError
from vertizo.data.tabular import category_text
from vertizo.data.tabular.columns import (
    LABEL,
    Source,
    all_numbers,
    check_dates,
    check_text,
    codes,
    in_order,
    numbers,
    rows_in_words,
    texts,
)
from vertizo.models.losses import Classification, MultiLabel, Regression, Task

MOST_CLASSES = 20
"""Most different whole numbers that are taken for classes, unless data.task says otherwise."""

ROUNDING = 1e-3
"""Largest rounding error of labels in float32, as a share of their standard deviation."""

TaskName = Literal["classification", "regression"]


def labels_of(
    sources: Sequence[Source],
    label: str | Sequence[str],
    task: TaskName | None,
    classes: Sequence[str] | None,
    bounds: Sequence[float] | None = None,
) -> tuple[Task, list[Tensor], tuple[str, ...] | None]:
    """The task (inferred if None), every frame's labels, and the names of the classes.

    Public ``classes`` take the place of those that occur in the first frame; with public ``bounds``
    rounding is checked by them, not by the labels. Several columns are several labels of a record,
    each of the same two classes, no and yes. ConfigError or DataError names the frame and what does
    not fit.
    """
    if not isinstance(label, str):
        return _several(sources, label, classes)
    for source in sources:
        source.check_has(label, None if source is sources[0] else sources[0].name)
        values = source.frame[label]
        rows = np.flatnonzero(texts(source, label, LABEL).is_null().to_numpy()).tolist()
        if rows:
            raise DataError(
                f"{source.name}: the label {label!r} is missing in {len(rows)} of {len(values)} "
                f"rows: {rows_in_words(rows, source.place)}; leave those rows out"
            )
    if task is None:
        task = _inferred(sources, label) if classes is None else "classification"
    if task == "regression":
        first = sources[0]
        given = all_numbers(sources, label, LABEL)
        if given is None:
            row = numbers(first, label)[1] or 0
            raise ConfigError(
                f"data.task, or data.label_range, makes it a regression but the label {label!r} of "
                f"{first.name} holds "
                f"{texts(first, label)[row]!r} in {first.place(row)}, which is no number"
            )
        if bounds is None:
            _check_rounding(sources, given, label)
        else:
            check_bounds(bounds)
        return Regression(), [torch.from_numpy(each.astype(np.float32)) for each in given], None
    found = [texts(source, label, LABEL) for source in sources]
    if classes is not None:
        classes = category_text.names(classes, "data.classes")
    names = list(classes or in_order(found[0].unique().to_list()))
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
    known = f"is no class of data.classes, {', '.join(map(repr, classes or ()))}"
    if classes is None:
        known = f"does not occur in {sources[0].name}"
    for source, series in zip(sources, found, strict=True):
        for row in np.flatnonzero((~series.is_in(names)).to_numpy()).tolist():
            raise DataError(
                f"{source.name}: the label {label!r} is {series[row]!r} in {source.place(row)}, "
                f"which {known}"
            )
    coded = [torch.from_numpy(codes(series, names).astype(np.int64)) for series in found]
    return Classification(len(names)), coded, tuple(names)


def notes(source: Source, label: str, names: Sequence[str] | None) -> list[str]:
    """Warnings about a training table's label that is valid but probably not meant."""
    where = f"{source.name}: the label {label!r} has"
    if names is None:
        different = np.unique(numbers(source, label)[0])
        if len(different) != 2:
            return []
        two = " and ".join(f"{value:.15g}" for value in different)
        return [f"{where} the values {two} alone, learnt as numbers; data.task says what they are"]
    alike = [[each for each in names if each.casefold() == name.casefold()] for name in names]
    twins = next((group for group in alike if len(group) > 1), None)
    if twins is None:
        return []
    return [f"{where} the classes {' and '.join(map(repr, twins))}; are they one?"]


def _check_rounding(
    sources: Sequence[Source], given: Sequence[NDArray[np.float64]], label: str
) -> None:
    """Raise DataError where rounding to float32 loses too much of the labels' differences."""
    differ = len(np.unique(given[0])) > 1  # the deviation of equal numbers is rarely 0
    spread = float(given[0].std()) if differ else 0.0
    for source, values in zip(sources, given, strict=True):
        lost = float(np.abs(values - values.astype(np.float32)).max(initial=0.0))
        if lost > ROUNDING * spread > 0:
            raise DataError(
                f"{source.name}: the label {label!r} has values near {values[0]:.15g}, which "
                f"float32 rounds by up to {lost:.2g}, and they differ by {spread:.2g} (standard "
                "deviation); subtract a constant from the label, such as its smallest value"
            )


def check_bounds(bounds: Sequence[float]) -> None:
    """Raise ConfigError where float32 would round labels within these bounds too much.

    It follows from the public bounds alone: no label decides whether training starts.
    """
    low, high = bounds
    lost = float(np.spacing(np.float32(max(abs(low), abs(high))))) / 2
    if lost > ROUNDING * (high - low) / 2:
        raise ConfigError(
            f"data.label_range is [{low:.15g}, {high:.15g}], and float32 rounds such labels by up "
            f"to {lost:.2g}; subtract a constant from the label, and from both"
        )


def _several(
    sources: Sequence[Source], columns: Sequence[str], classes: Sequence[str] | None
) -> tuple[MultiLabel, list[Tensor], tuple[str, ...]]:
    values = classes
    each = []
    for column in columns:
        _, coded, names = labels_of(sources, column, "classification", classes)
        assert names is not None, "of classes"
        if len(names) != 2:
            raise DataError(
                f"{sources[0].name}: data.label is a list, so that each label has two values, but "
                f"{column!r} has {len(names)}: {', '.join(map(repr, names[:5]))}"
            )
        values = values or names
        if set(names) != set(values):
            raise DataError(
                f"{sources[0].name}: the label {columns[0]!r} is {values[0]!r} or {values[1]!r} "
                f"but {column!r} is {names[0]!r} or {names[1]!r}; all labels must have the same "
                "two values"
            )
        each.append(coded)
    assert values is not None, "there are columns"
    stacked = [torch.stack(parts, 1).float() for parts in zip(*each, strict=True)]
    return MultiLabel(columns), stacked, tuple(values)


def _inferred(sources: Sequence[Source], label: str) -> TaskName:
    check_dates(sources[0], label, LABEL)
    given = all_numbers(sources[:1], label, LABEL)
    if given is None:
        check_text(sources[0], label, False, LABEL)
        return "classification"
    different = np.unique(given[0])
    whole = bool(np.all(different == np.round(different)))
    return "classification" if whole and len(different) <= MOST_CLASSES else "regression"
