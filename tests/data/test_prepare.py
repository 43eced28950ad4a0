"""From options to what every party holds."""

from __future__ import annotations

from typing import Any

import torch

from vertizo.core.randomness import Stream
from vertizo.data.options import DataConfig
from vertizo.data.prepare import prepare


def test_fewer_test_records_are_the_same_for_every_run() -> None:
    whole = prepare(DataConfig(), Stream.from_seed(0))
    found = [prepare(DataConfig(test_limit=50), Stream.from_seed(seed)) for seed in (0, 1)]
    for data in found:
        assert data.labels["test"].numel() == 50
        assert data.features[0]["test"].shape[0] == 50
        assert torch.equal(data.labels["test"], found[0].labels["test"])
    assert found[0].records == whole.records
    assert len(found[0].labels["test"].unique()) > 5  # not one class of a sorted file
    more = prepare(DataConfig(test_limit=10**6), Stream.from_seed(0))
    assert torch.equal(more.labels["test"], whole.labels["test"])


def test_a_named_record_is_itself_without_a_column_and_coded_otherwise() -> None:
    """Or leaving out a column would make strangers of people that a ledger is charged for."""

    def keys(**changes: Any) -> list[str]:
        options = DataConfig(name="breast-cancer", **changes)
        return prepare(options, Stream.from_seed(0)).keys()

    people = keys()
    assert len(set(people)) == len(people)
    assert keys(drop=["mean radius"]) == people
    assert keys(categorical=["mean texture"], ranges={"mean area": [0.0, 3000.0]}) == people
