"""Perturbed evaluation gives the parameters back, also after errors and in low precision."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
import torch
from tests.rows import each
from torch import Tensor, nn

from vertizo.core.errors import ConfigError
from vertizo.core.randomness import Stream
from vertizo.models.architectures.networks import mlp
from vertizo.models.array import ArrayModel
from vertizo.models.base import Model
from vertizo.models.torch import wrap
from vertizo.zeroth_order.directions import BLOCK, LAWS, Direction, Directions
from vertizo.zeroth_order.estimators import at_once, in_place, outputs

INPUTS = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
MODULES = [lambda: nn.Linear(8, 3), lambda: nn.Sequential(nn.Linear(8, 3), nn.Tanh())]


def small() -> Model:
    torch.manual_seed(0)
    return wrap(mlp(8, [16], 4, final_relu=False))


def directions_for(model: Model, law: str = "scaled-sphere") -> Directions:
    return Directions(law, model.parameters.numel(), Stream.from_seed(5))


class Identity:
    """Outputs are the parameters, so that a test sees what they were."""

    def __init__(self, parameters: Tensor) -> None:
        self.parameters = parameters

    def __call__(self, inputs: Tensor) -> Tensor:
        return self.parameters.clone().unsqueeze(0)

    def along(self, direction: Tensor, offsets: Sequence[float], inputs: Tensor) -> Tensor:
        return torch.stack([(self.parameters + a * direction).unsqueeze(0) for a in offsets])


def test_offsets_are_lengths_along_the_direction() -> None:
    for way, law, dimension in product([in_place, at_once], LAWS, [12, BLOCK + 12]):
        model = Identity(torch.linspace(-1, 1, dimension))
        direction = Direction(law, dimension, 3, keep=False)
        offsets = (0.5, -0.5, 0.0, 2.0)
        found = way(model, torch.zeros(1, 1), direction, offsets)
        for offset, row in zip(offsets, found, strict=True):
            expected = torch.linspace(-1, 1, dimension)
            direction.add_to(expected, offset)
            assert torch.allclose(row[0], expected, rtol=1e-5, atol=1e-5), (way, law, dimension)


def test_an_offset_of_zero_is_the_plain_model() -> None:
    for way in [in_place, at_once]:
        model = small()
        plain = model(INPUTS).clone()
        shifted, unshifted = way(model, INPUTS, directions_for(model).draw(0), (1e-2, 0.0))
        assert torch.allclose(unshifted, plain, rtol=1e-5, atol=1e-6), way
        assert not torch.allclose(shifted, plain, rtol=1e-3), way


def test_an_unkept_direction_leads_to_the_same_outputs() -> None:
    model, seed = small(), 77
    d = model.parameters.numel()
    one, other = (
        outputs(model, INPUTS, Direction("gaussian", d, seed, keep=keep), (1e-3, -1e-3))
        for keep in (True, False)
    )
    assert torch.allclose(one, other, rtol=1e-5, atol=1e-6)


def test_at_once_does_not_touch_the_parameters() -> None:
    model = small()
    before = model.parameters.clone()
    for number in range(50):
        at_once(model, INPUTS, directions_for(model).draw(number), (1e-3, -1e-3))
    assert torch.equal(model.parameters, before)


@each("law, largest, typical", [("scaled-sphere", 1e-5, 1.5e-6), ("rademacher", 3e-5, 3e-6)])
def test_float32_drifts_by_rounding_only(law: str, largest: float, typical: float) -> None:
    """Like a random walk of roundings: eight times the rounds, about thrice the drift.

    Signs, which shift a parameter by the same two numbers each time, drift a little more.
    """
    model = small()
    before, directions, drifts = model.parameters.clone(), directions_for(model, law), {}
    for number in range(4000):
        in_place(model, INPUTS[:1], directions.draw(number), (1e-3, -1e-3))
        if number + 1 in (500, 4000):
            drifts[number + 1] = (model.parameters - before).double()
    early, late = (float(drift.square().mean().sqrt()) for drift in drifts.values())
    assert float(drifts[4000].abs().max()) < largest
    assert late < typical
    assert law == "rademacher" or 2.0 < late / early < 4.0


def test_16_bit_parameters_come_back_exactly() -> None:
    for dtype, make in product([torch.bfloat16, torch.float16], MODULES):
        model = wrap(make().to(dtype))
        before, directions = model.parameters.clone(), directions_for(model, "gaussian")
        inputs = INPUTS.to(dtype)
        for number in range(300):
            plus, minus = in_place(model, inputs, directions.draw(number), (5e-2, -5e-2))
            assert torch.equal(model.parameters, before), (dtype, make)
        assert not torch.equal(plus, minus), (dtype, make)


def test_other_precisions_agree_both_ways() -> None:
    for dtype, make in product([torch.bfloat16, torch.float64], MODULES):
        case = dtype, make
        model = wrap(make().to(dtype))
        direction, inputs = directions_for(model).draw(0), INPUTS.to(dtype)
        one = in_place(model, inputs, direction, (0.1, -0.1))
        other = at_once(model, inputs, direction, (0.1, -0.1))
        tolerance = 0.05 if dtype == torch.bfloat16 else 1e-6
        assert torch.allclose(one.double(), other.double(), rtol=tolerance, atol=tolerance), case


class Failing(nn.Module):
    """Raises at one of its evaluations."""

    def __init__(self, good: int) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 3)
        self.good = good

    def forward(self, inputs: Tensor) -> Tensor:
        self.good -= 1
        if self.good < 0:
            raise KeyError("out of order")
        return self.inner(inputs)


def failing(kind: str, good: int) -> Model:
    module = Failing(good)
    if kind == "module":
        return wrap(module)
    if kind == "bfloat16":
        return wrap(module.to(torch.bfloat16))
    module.inner = nn.Identity()
    return ArrayModel(
        lambda w, x: module(torch.from_numpy(x))[:, :3].numpy() * w[:3], torch.randn(27)
    )


def test_a_raising_model_gets_its_parameters_back() -> None:
    """Exactly, where it has 16 bits."""
    cases = [
        *product([in_place, at_once], ["module", "array"], [0, 1, 2]),
        (in_place, "bfloat16", 1),
    ]
    for way, kind, good in cases:
        torch.manual_seed(0)
        model = failing(kind, good)
        before, inputs = model.parameters.clone(), INPUTS
        if kind == "bfloat16":
            inputs = INPUTS.bfloat16()
        with pytest.raises(ConfigError, match="KeyError: 'out of order'"):
            way(model, inputs, directions_for(model).draw(0), (1e-2, -1e-2, 0.5))
        slack = 0 if kind == "bfloat16" else 1e-6
        assert torch.allclose(model.parameters, before, rtol=0, atol=slack), (way, kind, good)


def test_outputs_that_are_parameters_are_kept_apart() -> None:
    """A model may answer with a bias alone, which is then a view of its parameters."""
    for way in [in_place, at_once]:

        class Constant(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.bias = nn.Parameter(torch.zeros(3))

            def forward(self, inputs: Tensor) -> Tensor:
                return self.bias.expand(inputs.shape[0], 3)

        model = wrap(Constant())
        direction = directions_for(model, "rademacher").draw(0)
        plus, minus = way(model, INPUTS, direction, (1.0, -1.0))
        assert torch.equal(plus.abs(), torch.ones(4, 3)), way
        assert torch.equal(minus, -plus), way
