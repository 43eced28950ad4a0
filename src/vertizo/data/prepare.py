"""From the ``data`` section of a configuration to what every party holds."""

from __future__ import annotations

from dataclasses import replace

import torch

from vertizo.data import catalog, vertical
from vertizo.data.options import DataConfig
from vertizo.data.pooled import Pooled
from vertizo.data.splits import describe
from vertizo.data.vertical import VerticalData
from vertizo.errors import ConfigError
from vertizo.randomness import Stream


def prepare(options: DataConfig, stream: Stream) -> VerticalData:
    """Load the data set that is named, and cut it between the parties.

    Args:
        options: validated.
        stream: randomness of the choice of validation records.

    Raises:
        ConfigError, DataError: one line that says what does not fit, or is missing.
    """
    pooled = catalog.load(options.name, options.root, options)
    unfit = next(iter(options.table_keys()), None)
    if unfit is not None and pooled.kind != "table":
        raise ConfigError(f"data.{unfit} is for tables but {describe(pooled)}")
    if options.test_limit is not None:
        pooled = _fewer_tests(pooled, options.test_limit)
    return vertical.cut(
        pooled,
        split=options.split,
        parties=options.parties,
        columns=options.columns,
        validation=options.validation,
        limit=options.limit,
        stream=stream,
        ranges=options.ranges,
        categories=options.categories,
        label_holder=options.label_holder,
        label_range=options.label_range,
    )


def _fewer_tests(pooled: Pooled, limit: int) -> Pooled:
    """A random part of the test records; every run's the same."""
    order = Stream.from_seed(0).child("test records").generator().permutation(len(pooled.test))
    chosen = torch.from_numpy(order[:limit]).sort()[0]
    return replace(
        pooled,
        test=pooled.test.index_select(0, chosen),
        test_labels=pooled.test_labels.index_select(0, chosen),
    )
