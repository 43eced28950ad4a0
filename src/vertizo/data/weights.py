"""Weights of records in the loss, and which records belong to one person.

A class's weight is a public constant, a record's own weight a part of the record at the label
holder, like its label. Nothing is divided by a sum of weights, which would depend on all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from vertizo.core.errors import DataError
from vertizo.core.plugins.lazy_import import torch

if TYPE_CHECKING:
    from torch import Tensor

    from vertizo.data.tabular.columns import Source

ROUNDING = 1e-3
"""By how much the sum of the classes' shares may miss 1."""


def check_classes(options: Any) -> None:
    """Raise ValueError for invalid class weights or shares in a `DataConfig`."""
    weights, shares = options.class_weights, options.class_shares
    if weights is None:
        if shares is not None:
            raise ValueError("data.class_shares is set but data.class_weights is not 'balanced'")
        return
    if options.task == "regression" or options.label_range is not None:
        raise ValueError("data.class_weights is set but the task is a regression")
    if isinstance(weights, Mapping):
        for name, weight in weights.items():
            if weight < 0:
                raise ValueError(f"data.class_weights.{name} is {weight}; it must be 0 or above")
        if not any(weights.values()):
            raise ValueError(f"data.class_weights is {weights}; some class must weigh more than 0")
        if shares is not None:
            raise ValueError(
                "data.class_shares is set but data.class_weights names the weights themselves; "
                "keep one of them"
            )
    if shares is not None:
        total = sum(shares.values())
        if abs(total - 1) > ROUNDING or min(shares.values(), default=0) <= 0:
            raise ValueError(
                f"data.class_shares is {shares}; shares must be above 0 and 1 together, "
                f"not {total:g}"
            )


def check_public(options: Any, mechanism: str) -> None:
    """Raise ValueError for weights that a mechanism cannot protect, or that come from labels."""
    if mechanism in ("none", "embedding-noise"):
        return
    if options.class_weights == "balanced" and options.class_shares is None:
        raise ValueError(
            f"data.class_weights is 'balanced' but privacy.mechanism is {mechanism!r}: weights "
            "counted from the labels would tell of them; give the classes' public shares in "
            "data.class_shares, or the weights themselves"
        )
    if options.weight is not None and mechanism in ("randomised-response", "teacher"):
        raise ValueError(
            f"data.weight is {options.weight!r} but privacy.mechanism is {mechanism!r}, whose "
            "replies carry no noise: they would tell of each record's weight; use 'gaussian'"
        )


def of_labels(labels: Tensor, classes: Tensor | None, records: Tensor | None) -> Tensor | None:
    """Weight of each record, its class's times its own, [records]; None where all are equal."""
    if classes is None:
        return records
    return classes[labels] if records is None else classes[labels] * records


def of_records(source: Source, column: str | None) -> Tensor | None:
    """Read a column of weights, float32 [records]; DataError for one missing or below 0."""
    from vertizo.data.tabular.columns import numbers

    if column is None:
        return None
    values, text = numbers(source, column)
    wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if text is not None or len(wrong):
        row = int(wrong[0]) if text is None else text
        raise DataError(
            f"{source.name}: the weight {column!r} is {source.frame[column][row]!r} in "
            f"{source.place(row)}; it must be a number from 0"
        )
    return torch.from_numpy(values.astype(np.float32))


def persons(source: Source, person: str | None, id_: str | None) -> Tensor | None:
    """A number for the person of each record, int64 [records]; None without a column.

    The column of persons decides, else that of identifiers. A record without an identifier counts
    as a person of its own; DataError for one without a person.
    """
    from vertizo.data.alignment import known_keys

    column = id_ if person is None else person
    if column is None:
        return None
    keys = known_keys(source.frame, column, source.name)
    if person is not None and None in keys:
        raise DataError(
            f"{source.name}: the person {person!r} is missing in {source.place(keys.index(None))}"
        )
    known = {key: place for place, key in enumerate(keys)}
    found = [place if key is None else known[key] for place, key in enumerate(keys)]
    return torch.tensor(found, dtype=torch.int64)
