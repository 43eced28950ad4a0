"""What every kind of model keeps to, whatever it is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.autograd import normal
from torch import Tensor, nn

from vertizo.core.randomness import Stream
from vertizo.models.array import ArrayModel
from vertizo.models.base import DifferentiableModel, Model, Points
from vertizo.models.linear_stack import LinearStack
from vertizo.models.networks import cnn, mlp
from vertizo.models.torch import TorchModel, wrap
from vertizo.zeroth_order.directions import LAWS, Directions
from vertizo.zeroth_order.estimators import at_once, in_place, outputs

Array = NDArray[np.float32]
BATCH, OUTPUTS = 7, 3
OFFSETS = (1e-2, -1e-2, 0.0, 0.3)


class Thresholds(nn.Module):
    """Not differentiable: a rule for each feature."""

    def __init__(self) -> None:
        super().__init__()
        self.cuts = nn.Parameter(torch.randn(5))
        self.scores = nn.Parameter(torch.randn(OUTPUTS, 5))

    def forward(self, inputs: Tensor) -> Tensor:
        return (inputs > self.cuts).to(inputs) @ self.scores.T


def rules(w: Array, x: Array) -> Array:
    """Soft rules in plain NumPy; w is 5 cuts and 5·3 scores."""
    return np.tanh(x - w[:5]) @ w[5:].reshape(5, OUTPUTS)


@dataclass(frozen=True)
class Kind:
    make: Callable[[], Model]
    type: type
    shape: tuple[int, ...]
    rough: bool = False
    """Outputs jump, so that rounding of the parameters can show."""

    def inputs(self, seed: int = 1) -> Tensor:
        return normal(seed, BATCH, *self.shape)


def normalised() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(96, 3)
    )


KINDS = {
    "linear": Kind(lambda: wrap(nn.Linear(5, 3, bias=False)), LinearStack, (5,)),
    "mlp": Kind(lambda: wrap(mlp(6, [8, 5], 3, final_relu=False)), LinearStack, (2, 3)),
    "mlp-relu": Kind(lambda: wrap(mlp(6, [], 3, final_relu=True)), LinearStack, (6,)),
    "tanh": Kind(
        lambda: wrap(nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))), TorchModel, (5,)
    ),
    "cnn": Kind(lambda: wrap(cnn((1, 4, 6), [3, 4], 3)), TorchModel, (1, 4, 6)),
    "group-norm": Kind(lambda: wrap(normalised()), TorchModel, (1, 4, 6)),
    "thresholds": Kind(lambda: wrap(Thresholds()), TorchModel, (5,), rough=True),
    "array": Kind(lambda: ArrayModel(rules, torch.randn(20)), ArrayModel, (5,)),
}
DIFFERENTIABLE = ["linear", "mlp", "mlp-relu", "tanh", "cnn", "group-norm"]
FLAT = ["linear", "mlp-relu", "tanh"]


def made() -> Iterator[tuple[str, Kind, Model]]:
    """Every kind, with a new model of it."""
    for name, kind in KINDS.items():
        torch.manual_seed(0)
        yield name, kind, kind.make()


def differentiable(names: list[str]) -> Iterator[tuple[str, DifferentiableModel, Tensor]]:
    """Those that are, each with inputs."""
    for name, kind, model in made():
        if name in names:
            assert isinstance(model, DifferentiableModel)
            yield name, model, kind.inputs()


def direction_for(model: Model) -> Tensor:
    return normal(5, model.parameters.numel())


def at(model: Model, parameters: Tensor, inputs: Tensor) -> Tensor:
    """Outputs at other parameters, which are put in place and taken out again."""
    saved = model.parameters.clone()
    model.parameters.copy_(parameters)
    try:
        return model(inputs).clone()
    finally:
        model.parameters.copy_(saved)


def test_outputs_are_plain_rows_that_nothing_but_the_parameters_decides() -> None:
    for name, kind, model in made():
        inputs = kind.inputs()
        result, kept = model(inputs).clone(), inputs.clone()
        assert type(model) is kind.type, name
        assert isinstance(model, DifferentiableModel) == (kind.type is not ArrayModel), name
        assert (result.shape, result.dtype) == ((BATCH, OUTPUTS), torch.float32), name
        assert (model.parameters.dim(), model.parameters.requires_grad) == (1, False), name
        assert not model(inputs).requires_grad, name
        torch.manual_seed(99)
        model.along(direction_for(model), OFFSETS, inputs)
        assert torch.equal(model(inputs), result), name
        assert torch.equal(inputs, kept), name


def test_parameters_are_live_and_outputs_outlive_their_change() -> None:
    for name, kind, model in made():
        inputs = kind.inputs()
        result = model(inputs)
        before = result.clone()
        model.parameters.add_(direction_for(model))
        assert not torch.allclose(model(inputs), before), name
        model(kind.inputs(2))
        assert torch.equal(result, before), name
        model.parameters.zero_()
        assert not model(inputs).any(), name


def test_along_is_evaluation_at_shifted_parameters() -> None:
    for name, kind, model in made():
        inputs, direction = kind.inputs(), direction_for(model)
        before, kept = model.parameters.clone(), direction.clone()
        result = model.along(direction, OFFSETS, inputs)
        assert torch.equal(model.parameters, before), name
        assert torch.equal(direction, kept), name
        assert result.shape == (len(OFFSETS), BATCH, OUTPUTS), name
        assert result.dtype == torch.float32, name
        assert not result.requires_grad, name
        for offset, found in zip(OFFSETS, result, strict=True):
            expected = at(model, model.parameters + offset * direction, inputs)
            assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5), (name, offset)
        assert not torch.allclose(result[0], result[3], rtol=1e-2), name
        longer = torch.cat([torch.full((4,), 50.0), direction, torch.full((3,), -50.0)])
        part = model.along(longer[4:-3], OFFSETS, inputs)
        assert torch.equal(part, model.along(direction, OFFSETS, inputs)), name


def test_in_place_and_at_once_agree() -> None:
    """In place the parameters come back."""
    offsets = (1e-3, -1e-3)
    for law, (name, kind, model) in product(LAWS, made()):
        inputs, before = kind.inputs(), model.parameters.clone()
        directions = Directions(law, before.numel(), Stream.from_seed(8).child(law))
        for number in range(19 if law == "scaled-sphere" else 0, -1, -1):
            direction = directions.draw(number)
            one = in_place(model, inputs, direction, offsets)
        assert torch.allclose(model.parameters, before, rtol=1e-6, atol=1e-6), (name, law)
        other = at_once(model, inputs, direction, offsets)
        chosen = outputs(model, inputs, direction, offsets)
        assert one.shape == other.shape == (2, BATCH, OUTPUTS), (name, law)
        assert torch.allclose(one, other, rtol=1e-5, atol=2e-6), (name, law)
        assert torch.allclose(chosen, other, rtol=1e-5, atol=2e-6), (name, law)
        if not kind.rough:
            slopes = [(plus - minus) / 2e-3 for plus, minus in (one, other)]
            assert torch.allclose(*slopes, rtol=1e-2, atol=5e-3), (name, law)


def test_a_record_leaves_the_others_alone() -> None:
    for name, kind, model in made():
        inputs, direction = kind.inputs(), direction_for(model)
        for record, value in product((0, 3, BATCH - 1), ("other", 1e30, torch.nan)):
            replaced = inputs.clone()
            replaced[record] = kind.inputs(2)[record] if value == "other" else value
            others = [i for i in range(BATCH) if i != record]
            case = name, record, value
            assert torch.equal(model(inputs)[others], model(replaced)[others]), case
            one, other = (model.along(direction, OFFSETS, x)[:, others] for x in (inputs, replaced))
            assert torch.equal(one, other), case


def test_order_and_company_do_not_matter() -> None:
    for name, kind, model in made():
        inputs = kind.inputs()
        whole = model(inputs)
        assert torch.allclose(model(inputs.flip(0)).flip(0), whole, rtol=1e-5, atol=1e-6), name
        apart = torch.cat([model(inputs[i : i + 1]) for i in range(BATCH)])
        assert torch.allclose(apart, whole, rtol=1e-5, atol=1e-6), name


def shift(points: int, columns: int, seed: int = 4) -> Tensor:
    return 0.5 * normal(seed, points, BATCH, columns)


SHIFTS = {
    "none": (),
    "all columns": ((0, shift(1, 5)),),
    "some columns": ((1, shift(2, 3)),),
    "two clients": ((3, shift(2, 2)), (0, shift(1, 3))),
    "the same columns twice": ((2, shift(1, 2)), (2, shift(3, 2, seed=5))),
}


def written_out(rows: Tensor, shifts: tuple[tuple[int, Tensor], ...]) -> Tensor:
    """All points, [points, batch, width], in order; the rows themselves last."""
    points = []
    for start, shifts_of_one in shifts:
        for one in shifts_of_one:
            point = rows.clone()
            point[:, start : start + one.shape[1]] += one
            points.append(point)
    return torch.stack([*points, rows])


def test_forward_at_several_points() -> None:
    for (name, model, rows), (which, shifts) in product(differentiable(FLAT), SHIFTS.items()):
        case, points = (name, which), written_out(rows, shifts)
        result, pullback = model.forward(Points(rows, shifts))
        assert result.shape == (len(points) * BATCH, OUTPUTS), case
        assert not result.requires_grad, case
        expected = torch.cat([model(point) for point in points])
        assert torch.allclose(result, expected, rtol=1e-5, atol=1e-5), case
        alone, at_rows = model.forward(Points(rows))
        weights = normal(2, *alone.shape)
        assert torch.allclose(pullback.inputs(weights), at_rows.inputs(weights), atol=1e-6), case
        kept = pullback(weights).clone()
        assert torch.allclose(kept, at_rows(weights), rtol=1e-5, atol=1e-6), case


def test_a_record_leaves_the_others_alone_at_every_point() -> None:
    others = [i for i in range(BATCH) if i != 2]
    for (name, model, rows), value in product(differentiable(FLAT), (3.0, 1e25, torch.nan)):
        replaced, moved, results = rows.clone(), shift(2, 3), []
        replaced[2] = value
        changed = moved.clone()
        changed[:, 2] = -value
        for batch, by in ((rows, moved), (replaced, changed)):
            result, pullback = model.forward(Points(batch, ((1, by),)))
            slopes = pullback.inputs(torch.ones(BATCH, OUTPUTS))
            results.append((result.view(3, BATCH, OUTPUTS)[:, others], slopes[others]))
        assert torch.equal(results[0][0], results[1][0]), (name, value)
        assert torch.equal(results[0][1], results[1][1]), (name, value)


def test_forward_gives_outputs_and_their_slopes() -> None:
    """``pullback(g) · u`` is the derivative of ``Σ g·h`` along u, taken by differences."""
    for name, model, inputs in differentiable(DIFFERENTIABLE):
        untouched = inputs.clone()
        result, pullback = model.forward(Points(inputs))
        assert not result.requires_grad, name
        assert torch.allclose(result, model(inputs), rtol=1e-5, atol=1e-6), name
        assert torch.equal(inputs, untouched), name
        weights = normal(2, *result.shape)
        kept = weights.clone()
        gradient = pullback(weights).clone()
        assert gradient.shape == model.parameters.shape, name
        direction = direction_for(model)
        direction /= direction.norm()
        plus, minus = model.along(direction, (5e-3, -5e-3), inputs)
        slope = float(((plus - minus) / 1e-2 * weights).sum())
        assert float(gradient @ direction) == pytest.approx(slope, rel=2e-2, abs=2e-2), name
        assert torch.equal(weights, kept), name

        gradient = pullback.inputs(weights)
        assert gradient.shape == inputs.shape, name
        by = normal(3, *inputs.shape)
        slope = float(((model(inputs + 1e-3 * by) - model(inputs - 1e-3 * by)) * weights).sum())
        expected = pytest.approx(slope / 2e-3, rel=2e-2, abs=5e-2)
        assert float((gradient * by).sum()) == expected, name


def test_pullbacks_add_up() -> None:
    """Linear in the gradient, the rows' sum to the batch's, and an input's is its record's own."""
    for name, model, inputs in differentiable(DIFFERENTIABLE):
        result, pullback = model.forward(Points(inputs))
        weights = normal(2, *result.shape)
        whole = pullback(weights).clone()
        assert torch.allclose(pullback(2 * weights), 2 * whole, rtol=1e-5, atol=1e-5), name
        parts = torch.zeros_like(whole)
        for row in range(BATCH):
            _, one = model.forward(Points(inputs[row : row + 1]))
            parts += one(weights[row : row + 1])
        assert torch.allclose(parts, whole, rtol=1e-4, atol=1e-4), name
        own = pullback.inputs(torch.ones_like(result)).clone()
        replaced = inputs.clone()
        replaced[2] += 5.0
        result, pullback = model.forward(Points(replaced))
        gradients = pullback.inputs(torch.ones_like(result))
        others = torch.arange(BATCH) != 2
        assert torch.equal(own[others], gradients[others]), name
