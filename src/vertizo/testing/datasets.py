"""The check of data sets: what every `vertizo.data.pooled.Pooled` must be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vertizo.config.schema import parse
from vertizo.core.randomness import Stream
from vertizo.data.datasets import catalog
from vertizo.data.datasets.catalog import Loader
from vertizo.data.options import DataConfig
from vertizo.data.pooled import Pooled
from vertizo.data.prepare import prepare
from vertizo.models.losses import Classification, MultiLabel, blank_labels
from vertizo.testing.demands import demand, path_of, same


def check_dataset(data: str | Loader, options: Mapping[str, Any] | None = None) -> None:
    """Check that a data set is what every data set must be; else raise AssertionError.

    It loads to the same records every time, without a draw from a global generator; training and
    test records are of one kind, as many as their labels; numbers are finite but for the missing
    ones of a raw table, categories and classes are among those that it names; and it can be cut
    among parties, none of whom is left without a column. DataError and ConfigError are as of a run.

    Args:
        data: its name or import path, or the loading function, found in its module by its name.
        options: keys of the section ``data`` beside ``name``.
    """
    name = path_of(data)
    config = parse({"data": {"name": name, **(options or {})}}).data
    before = bytes(torch.get_rng_state().numpy())
    pooled, again = (catalog.load(name, config.root, config) for _ in range(2))
    drawn = bytes(torch.get_rng_state().numpy()) != before
    demand(not drawn, f"{name} draws from a global generator")
    for part in ("train", "train_labels", "test", "test_labels"):
        one, other = getattr(pooled, part), getattr(again, part)
        equal = torch.equal(one.nan_to_num(7), other.nan_to_num(7)) and one.dtype == other.dtype
        demand(equal, f"{name}: loaded twice, {part} differs")
    _records_and_labels_fit(pooled, name)
    _features_are_as_said(pooled, name)
    _parties_have_their_parts(name, config)


def _records_and_labels_fit(pooled: Pooled, name: str) -> None:
    demand(len(pooled.train) > 0, f"{name} has no training records")
    shape, dtype = pooled.train.shape[1:], pooled.train.dtype
    same(pooled.test.shape[1:], shape, f"{name}: shape of a test record")
    same(pooled.test.dtype, dtype, f"{name}: type of test records")
    for purpose, records, labels in (
        ("training", pooled.train, pooled.train_labels),
        ("test", pooled.test, pooled.test_labels),
    ):
        shape_ = tuple(blank_labels(pooled.task, len(records)).shape)
        same(tuple(labels.shape), shape_, f"{name}: shape of {purpose} labels")
        if isinstance(pooled.task, Classification):
            same(labels.dtype, torch.int64, f"{name}: type of {purpose} labels")
            there = _within(labels, pooled.task.outputs)
            demand(there, f"{name}: a {purpose} label is no class of {pooled.task.outputs}")
        else:
            same(labels.dtype, torch.float32, f"{name}: type of {purpose} labels")
            demand(bool(labels.isfinite().all()), f"{name}: a {purpose} label is not finite")
    if pooled.class_names is not None:
        names = 2 if isinstance(pooled.task, MultiLabel) else pooled.task.outputs
        same(len(pooled.class_names), names, f"{name}: class names")
    for what, values in (("weights", pooled.weights), ("persons", pooled.persons)):
        if values is not None:
            same(len(values), len(pooled.train), f"{name}: {what}")
    if pooled.keys is not None:
        keys = list(pooled.keys())
        same(len(keys), len(pooled.train), f"{name}: keys of training records")
        demand(len(set(keys)) == len(keys), f"{name}: two training records have the same key")


def _within(values: Tensor, count: int) -> bool:
    return bool(((values >= 0) & (values < count)).all())


def _features_are_as_said(pooled: Pooled, name: str) -> None:
    raw = pooled.levels is not None
    allowed = {
        "images": torch.float32,
        "views": torch.float32,
        "tokens": torch.int32,
        "table": torch.float64 if raw else torch.float32,
    }
    same(pooled.train.dtype, allowed[pooled.kind], f"{name}: type of {pooled.kind}")
    for records in (pooled.train, pooled.test):
        if not raw:
            demand(bool(records.isfinite().all()), f"{name}: a number is not finite")
        demand(not records.isinf().any(), f"{name}: a number is infinite")
    if pooled.kind != "table":
        return
    columns = pooled.columns or ()
    same(len(columns), pooled.train.shape[1], f"{name}: names of columns")
    same(len(set(columns)), len(columns), f"{name}: different names of columns")
    predicted = (pooled.label,) if isinstance(pooled.label, str) else pooled.label or ()
    for label in predicted:
        demand(label not in columns, f"{name}: its label {label!r} is a feature")
    for column, levels in (pooled.levels or {}).items():
        demand(column in columns, f"{name}: levels are of {column!r}, which is no column")
        for records in (pooled.train, pooled.test):
            codes = records[:, columns.index(column)]
            known = _within(codes[~codes.isnan()], len(levels))
            demand(known, f"{name}: {column!r} has a code that its levels do not name")
    members = [column for group in (pooled.groups or {}).values() for column in group]
    for column in members:
        demand(column in columns, f"{name}: a group has {column!r}, which is no column")
    same(len(set(members)), len(members), f"{name}: columns that one group alone has")


def _parties_have_their_parts(name: str, config: DataConfig) -> None:
    held = prepare(config, Stream.from_seed(0))
    demand(held.parties, f"{name} has no parties")
    for party, features in zip(held.parties, held.features, strict=True):
        for purpose, values in features.items():
            same(len(values), len(held.labels[purpose]), f"{name}: {purpose} records of {party}")
            finite = bool(values.isfinite().all()) and values[:1].numel() > 0
            demand(finite or not len(values), f"{name}: {party} has no or unusable numbers")
