"""What every kind of model keeps to, whatever it is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
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
        return torch.randn(BATCH, *self.shape, generator=torch.Generator().manual_seed(seed))


def normalised() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(96, 3)
    )


def smooth() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def of_rules() -> Model:
    return ArrayModel(rules, torch.randn(20))


KINDS = {
    "linear": Kind(lambda: wrap(nn.Linear(5, 3, bias=False)), LinearStack, (5,)),
    "mlp": Kind(lambda: wrap(mlp(6, [8, 5], 3, final_relu=False)), LinearStack, (2, 3)),
    "mlp-relu": Kind(lambda: wrap(mlp(6, [], 3, final_relu=True)), LinearStack, (6,)),
    "tanh": Kind(lambda: wrap(smooth()), TorchModel, (5,)),
    "cnn": Kind(lambda: wrap(cnn((1, 4, 6), [3, 4], 3)), TorchModel, (1, 4, 6)),
    "group-norm": Kind(lambda: wrap(normalised()), TorchModel, (1, 4, 6)),
    "thresholds": Kind(lambda: wrap(Thresholds()), TorchModel, (5,), rough=True),
    "array": Kind(of_rules, ArrayModel, (5,)),
}
DIFFERENTIABLE = ["linear", "mlp", "mlp-relu", "tanh", "cnn", "group-norm"]
FLAT = ["linear", "mlp-relu", "tanh"]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture
def model(kind: Kind) -> Model:
    torch.manual_seed(0)
    return kind.make()


@pytest.fixture(params=DIFFERENTIABLE)
def differentiable(request: pytest.FixtureRequest) -> tuple[DifferentiableModel, Tensor]:
    torch.manual_seed(0)
    kind = KINDS[request.param]
    made = kind.make()
    assert isinstance(made, DifferentiableModel)
    return made, kind.inputs()


def direction_for(model: Model) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(model.parameters.numel(), generator=generator)


def at(model: Model, parameters: Tensor, inputs: Tensor) -> Tensor:
    """Outputs at other parameters, which are put in place and taken out again."""
    saved = model.parameters.clone()
    model.parameters.copy_(parameters)
    try:
        return model(inputs).clone()
    finally:
        model.parameters.copy_(saved)


def test_kind(kind: Kind, model: Model) -> None:
    assert type(model) is kind.type


def test_outputs_are_plain_rows(kind: Kind, model: Model) -> None:
    result = model(kind.inputs())
    assert result.shape == (BATCH, OUTPUTS)
    assert result.dtype == torch.float32
    assert not result.requires_grad
    assert model.parameters.dim() == 1
    assert not model.parameters.requires_grad


def test_nothing_but_the_parameters_decides(kind: Kind, model: Model) -> None:
    inputs = kind.inputs()
    first = model(inputs).clone()
    kept = inputs.clone()
    torch.manual_seed(99)
    model.along(direction_for(model), OFFSETS, inputs)
    assert torch.equal(model(inputs), first)
    assert torch.equal(inputs, kept)


def test_outputs_outlive_a_change_of_the_parameters(kind: Kind, model: Model) -> None:
    result = model(kind.inputs())
    copy = result.clone()
    model.parameters.add_(1.0)
    model(kind.inputs(2))
    assert torch.equal(result, copy)


def test_parameters_are_live(kind: Kind, model: Model) -> None:
    inputs = kind.inputs()
    before = model(inputs).clone()
    model.parameters.add_(direction_for(model))
    assert not torch.allclose(model(inputs), before)
    model.parameters.zero_()
    assert not model(inputs).any()


def test_along_is_evaluation_at_shifted_parameters(kind: Kind, model: Model) -> None:
    inputs, direction = kind.inputs(), direction_for(model)
    result = model.along(direction, OFFSETS, inputs)
    assert result.shape == (len(OFFSETS), BATCH, OUTPUTS)
    assert result.dtype == torch.float32
    assert not result.requires_grad
    for offset, found in zip(OFFSETS, result, strict=True):
        expected = at(model, model.parameters + offset * direction, inputs)
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(result[0], result[3], rtol=1e-2)


def test_along_leaves_the_parameters_bit_for_bit(kind: Kind, model: Model) -> None:
    before, direction = model.parameters.clone(), direction_for(model)
    kept = direction.clone()
    model.along(direction, OFFSETS, kind.inputs())
    assert torch.equal(model.parameters, before)
    assert torch.equal(direction, kept)


def test_along_a_part_of_a_longer_vector(kind: Kind, model: Model) -> None:
    inputs, direction = kind.inputs(), direction_for(model)
    longer = torch.cat([torch.full((4,), 50.0), direction, torch.full((3,), -50.0)])
    expected = model.along(direction, OFFSETS, inputs).clone()
    assert torch.equal(model.along(longer[4:-3], OFFSETS, inputs), expected)


@pytest.mark.parametrize("law", LAWS)
def test_in_place_and_at_once_agree(kind: Kind, model: Model, law: str) -> None:
    inputs = kind.inputs()
    stream = Stream.from_seed(8).child(law)
    direction = Directions(law, model.parameters.numel(), stream).draw(0)
    offsets = (1e-3, -1e-3)
    one = in_place(model, inputs, direction, offsets)
    other = at_once(model, inputs, direction, offsets)
    assert one.shape == other.shape == (2, BATCH, OUTPUTS)
    assert torch.allclose(one, other, rtol=1e-5, atol=2e-6)
    assert torch.allclose(outputs(model, inputs, direction, offsets), other, rtol=1e-5, atol=2e-6)
    if not kind.rough:
        slopes = [(plus - minus) / 2e-3 for plus, minus in (one, other)]
        assert torch.allclose(*slopes, rtol=1e-2, atol=5e-3)


def test_in_place_gives_the_parameters_back(kind: Kind, model: Model) -> None:
    before = model.parameters.clone()
    directions = Directions("scaled-sphere", before.numel(), Stream.from_seed(8))
    for number in range(20):
        in_place(model, kind.inputs(), directions.draw(number), (1e-3, -1e-3))
    assert torch.allclose(model.parameters, before, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("record", [0, 3, BATCH - 1])
@pytest.mark.parametrize("value", ["other", "huge", "nan"])
def test_a_record_leaves_the_others_alone(
    kind: Kind, model: Model, record: int, value: str
) -> None:
    inputs, direction = kind.inputs(), direction_for(model)
    replaced = inputs.clone()
    replaced[record] = {
        "other": kind.inputs(2)[record],
        "huge": torch.full_like(inputs[record], 1e30),
        "nan": torch.full_like(inputs[record], torch.nan),
    }[value]
    others = [i for i in range(BATCH) if i != record]
    assert torch.equal(model(inputs)[others], model(replaced)[others])
    one, other = (model.along(direction, OFFSETS, x)[:, others] for x in (inputs, replaced))
    assert torch.equal(one, other)


def test_order_and_company_do_not_matter(kind: Kind, model: Model) -> None:
    inputs = kind.inputs()
    whole = model(inputs)
    assert torch.allclose(model(inputs.flip(0)).flip(0), whole, rtol=1e-5, atol=1e-6)
    apart = torch.cat([model(inputs[i : i + 1]) for i in range(BATCH)])
    assert torch.allclose(apart, whole, rtol=1e-5, atol=1e-6)


def test_only_array_models_cannot_be_differentiated(kind: Kind, model: Model) -> None:
    assert isinstance(model, DifferentiableModel) == (kind.type is not ArrayModel)


def shift(points: int, columns: int, seed: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 0.5 * torch.randn(points, BATCH, columns, generator=generator)


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


@pytest.mark.parametrize("name", FLAT)
@pytest.mark.parametrize("shifts", SHIFTS.values(), ids=SHIFTS)
def test_forward_at_several_points(name: str, shifts: tuple[tuple[int, Tensor], ...]) -> None:
    torch.manual_seed(0)
    model, rows = KINDS[name].make(), KINDS[name].inputs()
    assert isinstance(model, DifferentiableModel)
    points = written_out(rows, shifts)
    result, pullback = model.forward(Points(rows, shifts))
    assert result.shape == (len(points) * BATCH, OUTPUTS)
    assert not result.requires_grad
    expected = torch.cat([model(point) for point in points])
    assert torch.allclose(result, expected, rtol=1e-5, atol=1e-5)
    alone, at_rows = model.forward(Points(rows))
    weights = torch.randn(alone.shape, generator=torch.Generator().manual_seed(2))
    assert torch.allclose(pullback.inputs(weights), at_rows.inputs(weights), atol=1e-6)
    kept = pullback(weights).clone()
    assert torch.allclose(kept, at_rows(weights), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", FLAT)
@pytest.mark.parametrize("value", [3.0, 1e25, torch.nan])
def test_a_record_leaves_the_others_alone_at_every_point(name: str, value: float) -> None:
    torch.manual_seed(0)
    model, rows, moved = KINDS[name].make(), KINDS[name].inputs(), shift(2, 3)
    assert isinstance(model, DifferentiableModel)
    others = [i for i in range(BATCH) if i != 2]
    results = []
    for replaced in (False, True):
        if replaced:
            rows, moved = rows.clone(), moved.clone()
            rows[2], moved[:, 2] = value, -value
        result, pullback = model.forward(Points(rows, ((1, moved),)))
        ones = torch.ones(BATCH, OUTPUTS)
        results.append((result.view(3, BATCH, OUTPUTS)[:, others], pullback.inputs(ones)[others]))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_forward_gives_all_outputs(differentiable: tuple[DifferentiableModel, Tensor]) -> None:
    model, inputs = differentiable
    kept = inputs.clone()
    result, _ = model.forward(Points(inputs))
    assert not result.requires_grad
    assert torch.allclose(result, model(inputs), rtol=1e-5, atol=1e-6)
    assert torch.equal(inputs, kept)


def test_pullback_is_the_slope_of_the_outputs(
    differentiable: tuple[DifferentiableModel, Tensor],
) -> None:
    """``pullback(g) · u`` is the derivative of ``Σ g·h`` along u, taken by differences."""
    model, inputs = differentiable
    result, pullback = model.forward(Points(inputs))
    weights = torch.randn(result.shape, generator=torch.Generator().manual_seed(2))
    kept = weights.clone()
    gradient = pullback(weights).clone()
    assert gradient.shape == model.parameters.shape
    direction = direction_for(model)
    direction /= direction.norm()
    plus, minus = model.along(direction, (5e-3, -5e-3), inputs)
    slope = float(((plus - minus) / 1e-2 * weights).sum())
    assert float(gradient @ direction) == pytest.approx(slope, rel=2e-2, abs=2e-2)
    assert torch.equal(weights, kept)


def test_pullback_to_the_inputs(differentiable: tuple[DifferentiableModel, Tensor]) -> None:
    model, inputs = differentiable
    result, pullback = model.forward(Points(inputs))
    weights = torch.randn(result.shape, generator=torch.Generator().manual_seed(2))
    gradient = pullback.inputs(weights)
    assert gradient.shape == inputs.shape
    shift = torch.randn(inputs.shape, generator=torch.Generator().manual_seed(3))
    slope = float(((model(inputs + 1e-3 * shift) - model(inputs - 1e-3 * shift)) * weights).sum())
    assert float((gradient * shift).sum()) == pytest.approx(slope / 2e-3, rel=2e-2, abs=5e-2)


def test_pullbacks_add_up(differentiable: tuple[DifferentiableModel, Tensor]) -> None:
    """Linear in the gradient, and the rows' gradients sum to the batch's."""
    model, inputs = differentiable
    result, pullback = model.forward(Points(inputs))
    weights = torch.randn(result.shape, generator=torch.Generator().manual_seed(2))
    whole = pullback(weights).clone()
    assert torch.allclose(pullback(2 * weights), 2 * whole, rtol=1e-5, atol=1e-5)
    parts = torch.zeros_like(whole)
    for row in range(BATCH):
        _, one = model.forward(Points(inputs[row : row + 1]))
        parts += one(weights[row : row + 1])
    assert torch.allclose(parts, whole, rtol=1e-4, atol=1e-4)


def test_an_input_gradient_is_its_records_own(
    differentiable: tuple[DifferentiableModel, Tensor],
) -> None:
    model, inputs = differentiable
    replaced = inputs.clone()
    replaced[2] += 5.0
    gradients = []
    for batch in (inputs, replaced):
        result, pullback = model.forward(Points(batch))
        gradients.append(pullback.inputs(torch.ones_like(result)))
    others = [i for i in range(BATCH) if i != 2]
    assert torch.equal(gradients[0][others], gradients[1][others])
