"""Estimates converge to the gradient, and their second moments are what theory says.

On a quadratic ``f(w) = ½ wᵀA w + bᵀw`` the two-point slope along u is exactly ``g·u`` and the
forward difference ``g·u + μ/2 uᵀA u``, so that moments are known in closed form.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from vertizo.core.randomness import Stream
from vertizo.models.architectures.networks import cnn, mlp
from vertizo.models.torch import wrap
from vertizo.zeroth_order.directions import LAWS, Direction, Directions
from vertizo.zeroth_order.estimators import (
    Along,
    Sum,
    estimate,
    forward_difference,
    outputs,
    two_point,
)

Array = NDArray[np.float64]
Function = Callable[[Array], float]

D = 6
N = 6_000
RNG = np.random.default_rng(1)
HALF = RNG.standard_normal((D, D))
A = HALF @ HALF.T / D + np.diag([2.0, 0.0, 1.0, -1.0, 0.5, 0.0])
B = RNG.standard_normal(D)
W = RNG.standard_normal(D)
G = A @ W + B


def quadratic(w: Array) -> float:
    return float(w @ A @ w / 2 + B @ w)


def central(f: Function, w: Array, u: Array, smoothing: float) -> float:
    return two_point(f(w + smoothing * u), f(w - smoothing * u), smoothing)


def forward(f: Function, w: Array, u: Array, smoothing: float) -> float:
    return forward_difference(f(w + smoothing * u), f(w), smoothing)


Slope = Callable[[Function, Array, Array, float], float]


def vector(direction: Direction) -> Array:
    """u in double precision."""
    u = torch.zeros(direction.dimension, dtype=torch.float64)
    direction.add_to(u, 1.0)
    return u.numpy()


@cache
def drawn(law: str) -> list[tuple[Direction, Array]]:
    directions = Directions(law, D, Stream.from_seed(31).child(law))
    kept = [directions.draw(n) for n in range(N)]
    return [(direction, vector(direction)) for direction in kept]


def estimates(law: str, slope: Slope, f: Function, w: Array, smoothing: float) -> Array:
    """One gradient estimate for each direction, [N, D]."""
    result = torch.zeros(N, D, dtype=torch.float64)
    for row, (direction, u) in zip(result, drawn(law), strict=True):
        estimate(direction, slope(f, w, u, smoothing)).add_to(row, 1.0)
    return result.numpy()


def mean_and_error(values: Array) -> tuple[Array, Array]:
    return values.mean(0), values.std(0) / len(values) ** 0.5


def test_slopes_divide_by_the_way_between() -> None:
    plus, minus = torch.tensor([3.0, 1.0]), torch.tensor([1.0, 2.0])
    assert two_point(3.0, 1.0, 0.25) == 4.0
    assert two_point(plus, minus, 0.25).tolist() == [4.0, -2.0]
    assert forward_difference(3.0, 1.0, 0.25) == 8.0
    assert forward_difference(plus[:1], minus[:1], 0.25).tolist() == [8.0]


def test_along_is_the_vector_it_stands_for() -> None:
    for law in LAWS:
        direction = Direction(law, 300, 9, keep=False)
        along = estimate(direction, -0.7)
        dense = torch.ones(300, dtype=torch.float64)
        along.add_to(dense, 0.1)
        expected = 1 - 0.1 * 0.7 * direction.factor * vector(direction)
        assert np.allclose(dense.numpy(), expected, rtol=1e-9), law
        length = 0.7 * direction.factor * np.linalg.norm(vector(direction))
        assert along.norm() == pytest.approx(length, rel=1e-6), law
        assert Along(direction, 3.0).norm() == pytest.approx(3 * direction.norm()), law


def second_moment_of_forward_difference(law: str, smoothing: float) -> float:
    """Exact: ``φ² E[‖u‖² (g·u + μ/2 uᵀA u)²]``; the cross term vanishes for symmetric laws."""
    g2, trace, squares = G @ G, np.trace(A), (A * A).sum()
    curved = smoothing**2 / 4
    off = squares - (np.diag(A) ** 2).sum()
    return float(
        {
            "sphere": D * (g2 + curved * (trace**2 + 2 * squares) / (D + 2)),
            "scaled-sphere": D * (g2 + curved * D / (D + 2) * (trace**2 + 2 * squares)),
            "gaussian": (D + 2) * g2 + curved * (D + 4) * (trace**2 + 2 * squares),
            "rademacher": D * (g2 + curved * (trace**2 + 2 * off)),
            "coordinate": D * ((G + smoothing / 2 * np.diag(A)) ** 2).sum(),
        }[law]
    )


@pytest.mark.full
def test_moments_on_a_quadratic() -> None:
    """``E‖ĝ‖² = φ² E[(g·u)² ‖u‖²]`` is d‖g‖², and (d + 2)‖g‖² where the norm varies as well."""
    two_sided = ((central, law, smoothing) for law in LAWS for smoothing in (1e-3, 0.1, 1.0))
    one_sided = ((forward, law, smoothing) for law in LAWS for smoothing in (1e-3, 0.5, 1.0))
    for case in (*two_sided, *one_sided):
        slope, law, smoothing = case
        bias, second, largest = 0.0, float((D + 2 if law == "gaussian" else D) * G @ G), 0.05
        if slope is forward:
            bias = smoothing / 2 * np.diag(A) if law == "coordinate" else 0.0
            second, largest = second_moment_of_forward_difference(law, smoothing), 0.06
        values = estimates(law, slope, quadratic, W, smoothing)
        mean, error = mean_and_error(values)
        assert np.all(np.abs(mean - G - bias) <= 5 * error), case
        assert np.all(error < largest * np.linalg.norm(G)), case  # a wrong factor could not hide
        mean, error = mean_and_error((values**2).sum(1))
        assert abs(mean - second) <= 5 * error, case
        assert error < 0.05 * (second if slope is central else mean), case


AMPLITUDES = np.array([1.0, 2.0, 0.5, 1.5, 0.1, 2.0])
SMOOTHNESS = AMPLITUDES.max()


def waves(w: Array) -> float:
    """2-smooth and not convex."""
    return float(AMPLITUDES @ np.sin(w))


@pytest.mark.full
def test_dpzv_lemma_5_6() -> None:
    """DPZV's bounds (13) to (15) on the two-point estimate of an L-smooth function."""
    for law, smoothing, where in product(
        ["scaled-sphere", "rademacher"], [0.01, 0.3, 1.0, 3.0], [0.0, 1.0, 1.4]
    ):
        case = law, smoothing, where
        w = where * np.linspace(0.5, 1.1, D)
        gradient = AMPLITUDES * np.cos(w)
        g2, curved = gradient @ gradient, SMOOTHNESS**2 * smoothing**2 * D**3 / 2
        values = estimates(law, central, waves, w, smoothing)
        norms, norms_error = mean_and_error((values**2).sum(1))
        assert norms <= 2 * D * g2 + curved + 5 * norms_error, case
        mean, error = mean_and_error(values)
        bias = np.linalg.norm(mean - gradient)
        assert bias <= SMOOTHNESS / 2 * smoothing * D**1.5 + 5 * np.linalg.norm(error), case
        smoothed = np.array([waves(w + smoothing * u) for _, u in drawn(law)])
        value, value_error = mean_and_error(smoothed)
        assert abs(value - waves(w)) <= SMOOTHNESS / 2 * smoothing**2 * D + 5 * value_error, case


def test_a_factor_of_two_breaks_the_lemma() -> None:
    """DPZV's eq. 7 divides by λ; the bound of its own lemma refuses that."""
    w = np.zeros(D)
    doubled = 2 * estimates("scaled-sphere", central, waves, w, 0.01)
    gradient = AMPLITUDES * np.cos(w)
    bound = 2 * D * gradient @ gradient + SMOOTHNESS**2 * 0.01**2 * D**3 / 2
    norms, error = mean_and_error((doubled**2).sum(1))
    assert norms > bound + 5 * error


def relative_errors(
    module: nn.Module, inputs: torch.Tensor, law: str, counts: list[int]
) -> tuple[list[float], list[float]]:
    """Relative error and cosine of the mean of so many estimates against autograd."""
    labels = torch.arange(len(inputs)) % 3
    loss = F.cross_entropy(module(inputs), labels)
    true = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(module.parameters()))])
    model = wrap(module)
    directions = Directions(law, model.parameters.numel(), Stream.from_seed(3).child(law))
    total, errors, cosines = torch.zeros_like(true), [], []
    for n in range(counts[-1]):
        direction = directions.draw(n)
        plus, minus = (
            float(F.cross_entropy(logits, labels))
            for logits in outputs(model, inputs, direction, (1e-2, -1e-2))
        )
        estimate(direction, two_point(plus, minus, 1e-2)).add_to(total, 1.0)
        if n + 1 in counts:
            errors.append(float((total / (n + 1) - true).norm() / true.norm()))
            cosines.append(float(F.cosine_similarity(total, true, 0)))
    return errors, cosines


def test_many_directions_approach_the_gradient_of_a_network() -> None:
    for law in LAWS:
        torch.manual_seed(4)
        module = mlp(4, [6], 3, final_relu=False)
        counts = [100, 800, 3200]
        errors, cosines = relative_errors(module, torch.randn(16, 4), law, counts)
        size = sum(p.numel() for p in module.parameters())
        for count, error, cosine in zip(counts, errors, cosines, strict=True):
            expected = ((size + 1 if law == "gaussian" else size - 1) / count) ** 0.5
            assert 0.5 * expected < error < 1.6 * expected, law
            assert cosine > 1 / (1 + (1.6 * expected) ** 2) ** 0.5 - 0.05, law
        assert errors[0] > 1.7 * errors[1] > 1.7**1.5 * errors[2], law
        assert cosines[-1] > 0.97, law


def test_many_directions_approach_the_gradient_of_a_convolution() -> None:
    torch.manual_seed(4)
    module = cnn((1, 4, 4), [2], 3)
    errors, cosines = relative_errors(module, torch.randn(8, 1, 4, 4), "rademacher", [100, 1600])
    assert errors[0] > 2.5 * errors[1]
    assert cosines[-1] > 0.96


def test_a_sum_is_the_sum_of_its_parts() -> None:
    for law in LAWS:
        directions = Directions(law, 300, Stream.from_seed(3), count=3)
        coefficients = (0.5, -2.0, 1.25)
        parts = tuple(Along(directions.draw(n), c) for n, c in enumerate(coefficients))
        expected = sum(
            (c * vector(part.direction) for part, c in zip(parts, coefficients, strict=True)),
            np.zeros(300),
        )
        total = Sum(parts)
        dense = torch.ones(300, dtype=torch.float64)
        total.add_to(dense, -0.1)
        assert np.allclose(dense.numpy(), 1 - 0.1 * expected, rtol=1e-9), law
        assert total.norm() == pytest.approx(np.linalg.norm(expected), rel=1e-5), law
        nothing = Sum((parts[0], Along(parts[0].direction, -0.5)))  # whose parts cancel
        assert nothing.norm() == pytest.approx(0, abs=1e-5), law


def test_the_mean_of_several_estimates_has_a_fraction_of_the_variance() -> None:
    rows = estimates("scaled-sphere", central, quadratic, W, 0.1)
    count = 4
    means = np.zeros((N // count, D))
    for k, row in enumerate(means):
        parts = []
        for direction, u in drawn("scaled-sphere")[count * k : count * (k + 1)]:
            parts.append(estimate(direction, central(quadratic, W, u, 0.1) / count))
        dense = torch.zeros(D, dtype=torch.float64)
        Sum(tuple(parts)).add_to(dense, 1.0)
        row[:] = dense.numpy()
    assert np.allclose(means.mean(0), rows.mean(0), rtol=1e-9)
    assert rows.var(0).sum() / means.var(0).sum() == pytest.approx(count, rel=0.15)
