"""Preparation of a ``data`` section: load the data set, and cut it between the parties."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from vertizo.core.errors import ConfigError
from vertizo.core.plugins.lazy_import import polars as pl
from vertizo.core.randomness import Stream
from vertizo.data import tables, vertical
from vertizo.data.alignment import contents_of, hashed, likeness_of
from vertizo.data.datasets import catalog
from vertizo.data.options import DataConfig
from vertizo.data.splits import describe
from vertizo.data.tabular.columns import Source
from vertizo.data.vertical import VerticalData
from vertizo.models.losses import Classification


def prepare(options: DataConfig, stream: Stream) -> VerticalData:
    """Load the named data set and cut it; the stream chooses validation records.

    ConfigError or DataError says what does not fit, or is missing.
    """
    pooled = catalog.load(options.name, options.root, options)
    for key in ("columns", "drop", "categorical", "ranges", "categories"):
        if getattr(options, key) and pooled.kind != "table":
            raise ConfigError(f"data.{key} is for tables but {describe(pooled)}")
    if options.encoder is not None and pooled.kind != "tokens":
        raise ConfigError(f"data.encoder is for texts but {describe(pooled)}")
    if options.test_limit is not None:  # a random part, every run's the same
        order = Stream.from_seed(0).child("test records").generator().permutation(len(pooled.test))
        ids = torch.from_numpy(order[: options.test_limit]).sort()[0]
        pooled = replace(pooled, test=pooled.test[ids], test_labels=pooled.test_labels[ids])
    if pooled.keys is None:
        pooled = replace(pooled, keys=partial(_contents, options))
    return _with_every_class(vertical.cut(pooled, options, stream))


def _contents(options: DataConfig) -> list[str]:
    """Digests of a named data set's training records: their keys, as they have no identifiers.

    The data set is loaded again, which only runs with a ledger need, and without keys that drop or
    recode columns: a record without one of its columns is still that record.
    """
    known = ("name", "root", "test", "stratify")
    whole = DataConfig(**{key: getattr(options, key) for key in known})
    pooled = catalog.load(whole.name, whole.root, whole)
    labels = pooled.train_labels.tolist()
    return [
        hashed((record.numpy().tobytes(), repr(label).encode())).hex()
        for record, label in zip(pooled.train, labels, strict=True)
    ]


def prepare_frame(
    frame: pl.DataFrame,
    options: DataConfig,
    stream: Stream,
    everything: Callable[[], pl.DataFrame],
) -> VerticalData:
    """Cut records in memory as a file of the same rows would be; none of them is for testing.

    The frame has the features and the label, which the options name; ``data.name`` is ``frame``.
    ``everything`` gives all columns of the records, used or not, without labels and weights; a
    ledger identifies records by them. ConfigError or DataError says what does not fit.
    """
    pooled = tables.own(options.name, Source("X", frame), Source("X", frame.clear()), options)
    pooled = replace(
        pooled,
        keys=lambda: contents_of(everything()),
        likeness=lambda: likeness_of(everything(), [options.person]),
    )
    return _with_every_class(vertical.cut(pooled, options, stream))


def _with_every_class(data: VerticalData) -> VerticalData:
    """Add a note on classes that no training record has."""
    if not isinstance(data.task, Classification) or not data.records:
        return data
    names = data.class_names or tuple(map(str, range(data.task.outputs)))
    there = set(data.labels["train"].tolist())
    absent = [name for place, name in enumerate(names) if place not in there]
    if not absent:
        return data
    note = (
        f"{data.name}: no training record is of class {', '.join(map(repr, absent))}, which is "
        "never predicted with reason"
    )
    return replace(data, notes=(*data.notes, note))
