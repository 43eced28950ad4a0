"""One number a record from each client, under a guarantee: every method's defaults learn it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.rows import each

from vertizo.config.schema import parse
from vertizo.core.errors import ConfigError
from vertizo.data.vertical import VerticalData
from vertizo.methods.choice import METHODS, asking
from vertizo.methods.first_order import FirstOrder
from vertizo.models.losses import Classification
from vertizo.run.experiment import Experiment

COLUMNS, PARTIES = 6, 2


def table(records: int = 12_000) -> VerticalData:
    """Labels by a linear rule that random numbers of the columns say little about."""
    generator = torch.Generator().manual_seed(1)
    rule = torch.randn(PARTIES, COLUMNS, generator=generator)
    features: list[dict[Any, torch.Tensor]] = [{} for _ in range(PARTIES)]
    labels: dict[Any, torch.Tensor] = {}
    for purpose, rows in (("train", records), ("validation", 0), ("test", 2000)):
        values = torch.randn(PARTIES, rows, COLUMNS, generator=generator)
        for party, own in zip(features, values, strict=True):
            party[purpose] = own.contiguous()
        labels[purpose] = (torch.einsum("prc,pc->r", values, rule) > 0).long()
    names = tuple(f"party{index}" for index in range(PARTIES))
    return VerticalData("made up", Classification(2), names, tuple(features), labels, False)


DATA = table()


def auc(method: str, control: str = "none", **privacy: str) -> float:
    settings = {
        "data": {"name": "frame", "validation": 0.0},
        "method": {"name": method},
        "client": {"model": {"outputs": 1}},
        "privacy": {"epsilon": 1.0, "delta": 1e-5, **privacy},
        "control": control,
        "evaluate_every": 10_000,
        "seed": 0,
    }
    summary = Experiment(parse(settings), DATA).run().summary
    assert summary["privacy"]["epsilon"] <= 1.0
    return float(summary["test_auc"])


@pytest.mark.full
@each("method", asking())
def test_narrow_clients_learn_under_a_guarantee(method: str) -> None:
    assert auc(method) > 0.85, method


def test_noise_on_gradients_of_narrow_clients_is_refused() -> None:
    """In a line that says what would learn."""
    for method in METHODS:
        if issubclass(METHODS.find(method, ""), FirstOrder):
            words = f"method '{method}' .* use method 'tangent' or 'dpzv'"
            with pytest.raises(ConfigError, match=words):
                auc(method, mechanism="gaussian")


@pytest.mark.full
def test_a_server_alone_learns_little_of_random_numbers() -> None:
    assert auc("dpzv", "frozen") < 0.75


def test_more_numbers_keep_the_defaults() -> None:
    """And so do narrow clients without a guarantee."""
    adult: dict[str, Any] = {"data": {"name": "adult"}}
    private = {**adult, "method": {"name": "cascaded"}, "privacy": {"epsilon": 1.0}}
    for outputs, share, reply, relu in ((3, 0.9, "losses", True), (2, 0.5, "difference", False)):
        config = parse({**private, "client": {"model": {"outputs": outputs}}})
        model = config.client.model.model_dump()
        assert (config.privacy.server_share, model["final_relu"]) == (share, relu)
        assert config.method.model_dump()["reply"] == reply
    free = parse({**adult, "method": {"name": "cascaded"}, "client": {"model": {"outputs": 1}}})
    assert free.method.model_dump()["reply"] == "losses"
