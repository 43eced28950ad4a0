"""Gradients that are read off replies, against the gradients that were."""

from __future__ import annotations

import torch
from tests.lab.attacks.trials import LABORATORY
from torch import Tensor

from vertizo.lab.attacks import arena
from vertizo.lab.attacks.estimates import kind, record_gradients
from vertizo.lab.attacks.settings import setting
from vertizo.lab.attacks.transcript import Exchange
from vertizo.methods.choice import METHODS, asking


def first_exchange(method: str, *overrides: str) -> tuple[Exchange, Tensor, Tensor]:
    """The curious client's first batch: its exchange, the estimates and the true gradients."""
    small = ("data.limit=64", "batch_size=16")
    config = setting("sum-frozen", method, overrides=(*small, *overrides))
    data = LABORATORY.data(config)
    ground = arena.train(config, data, watch_server=True)
    client = ground.client()
    exchange = client.exchanges[0]
    rows = ground.watched.rows[0]
    ones = torch.nn.functional.one_hot(data.labels["train"][exchange.ids], 10)
    truth = torch.softmax(rows[:, :10] + rows[:, 10:], 1) - ones
    return exchange, record_gradients(exchange, client.public, client.shared), truth


def error(method: str, *overrides: str) -> float:
    _, estimate, truth = first_exchange(method, *overrides)
    return float((estimate - truth).norm() / truth.norm())


def test_every_method_is_read_somehow() -> None:
    for name in asking():
        method = METHODS[name]
        assert kind(method()) in ("gradient", "slopes", "scalar"), name


def test_first_order_replies_and_as_many_slopes_as_numbers_are_the_gradient() -> None:
    """μ = 0.01 keeps the rounding of float32 losses small; the curvature's share is O(μ)."""
    for method in ("vafl", "split", "fedbcd"):
        assert error(method) < 1e-5, method
    fine = "method.smoothing=0.01"
    assert error("czofo", fine, "method.num_directions=200") < 0.05  # 160 numbers
    assert error("czofo", fine, "method.scalars=record", "method.num_directions=20") < 0.05
    few = error("czofo", "method.num_directions=40")
    assert 0.5 < few < 1  # a projection to a quarter of the dimensions: √(3/4) in the mean


def test_a_scalar_is_the_slope_along_the_difference_of_the_points() -> None:
    """Σ_i g_i · u_i is what was told; the estimate is that number times u_i, for every record."""
    for method in ("dpzv", "cascaded", "zoo-vfl", "syn-zoo-vfl"):
        exchange, estimate, truth = first_exchange(method)
        first, second = exchange.embeddings[:2]
        moved = (first - second) / 2e-3 if method == "dpzv" else (second - first) / 1e-3
        slope = float((truth * moved).sum()) / 16
        wanted, slack = 16 * slope * moved, 0.05 * abs(slope) * 16
        assert torch.allclose(estimate, wanted, rtol=0.1, atol=slack), method
