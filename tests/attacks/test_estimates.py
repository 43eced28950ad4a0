"""Gradients that are read off replies, against the gradients that were."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vertizo.attacks import arena
from vertizo.attacks.estimates import kind, record_gradients
from vertizo.attacks.runner import Laboratory
from vertizo.attacks.settings import setting
from vertizo.methods.choice import METHODS

SMALL = ("data.limit=64", "batch_size=16")


def estimates_and_truth(method: str, *overrides: str) -> tuple[Tensor, Tensor]:
    """Of every record in the curious client's first batch."""
    config = setting("sum-frozen", method, overrides=(*SMALL, *overrides))
    data = Laboratory().data(config)
    ground = arena.train(config, data, watch_server=True)
    client = ground.client()
    exchange = client.exchanges[0]
    rows = ground.watched.rows[0]
    ones = torch.nn.functional.one_hot(data.labels["table"][exchange.ids], 10)
    truth = torch.softmax(rows[:, :10] + rows[:, 10:], 1) - ones
    return record_gradients(exchange, client.public, client.shared), truth


def error(estimate: Tensor, truth: Tensor) -> float:
    return float((estimate - truth).norm() / truth.norm())


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_read_somehow(method: str) -> None:
    assert kind(METHODS[method]()) in ("gradient", "slopes", "scalar")


@pytest.mark.parametrize("method", ["vafl", "split", "fedbcd"])
def test_first_order_replies_are_the_gradient(method: str) -> None:
    assert error(*estimates_and_truth(method)) < 1e-5


def test_as_many_slopes_as_numbers_are_the_gradient() -> None:
    """μ = 0.01 keeps the rounding of float32 losses small; the curvature's share is O(μ)."""
    overrides = ("method.smoothing=0.01", "method.num_directions=200")  # 160 numbers
    assert error(*estimates_and_truth("czofo", *overrides)) < 0.05
    few = error(*estimates_and_truth("czofo", "method.num_directions=40"))
    assert 0.5 < few < 1  # a projection to a quarter of the dimensions: √(3/4) in the mean


def test_slopes_of_each_record_are_its_gradient() -> None:
    overrides = ("method.smoothing=0.01", "method.scalars=record", "method.num_directions=20")
    assert error(*estimates_and_truth("czofo", *overrides)) < 0.05


@pytest.mark.parametrize("method", ["dpzv", "cascaded", "zoo-vfl", "syn-zoo-vfl"])
def test_a_scalar_is_the_slope_along_the_difference_of_the_points(method: str) -> None:
    """Σ_i g_i · u_i is what was told; the estimate is that number times u_i, for every record."""
    config = setting("sum-frozen", method, overrides=SMALL)
    data = Laboratory().data(config)
    ground = arena.train(config, data, watch_server=True)
    client = ground.client()
    exchange = client.exchanges[0]
    points = exchange.embeddings
    step = 2e-3 if method == "dpzv" else 1e-3
    moved = (points[0] - points[1] if method == "dpzv" else points[1] - points[0]) / step
    ones = torch.nn.functional.one_hot(data.labels["table"][exchange.ids], 10)
    rows = ground.watched.rows[0]
    truth = torch.softmax(rows[:, :10] + rows[:, 10:], 1) - ones
    slope = float((truth * moved).sum()) / 16
    estimate = record_gradients(exchange, client.public, client.shared)
    assert torch.allclose(estimate, 16 * slope * moved, rtol=0.1, atol=0.05 * abs(slope) * 16)
