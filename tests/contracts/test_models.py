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
from tests.rows import each
from torch import Tensor, nn

from vertizo.models.architectures.networks import cnn, mlp
from vertizo.models.array import ArrayModel
from vertizo.models.base import DifferentiableModel, Model, Points
from vertizo.models.linear.linear_stack import LinearStack
from vertizo.models.torch import TorchModel, wrap
from vertizo.testing.models import check_model

Array = NDArray[np.float32]
BATCH, OUTPUTS = 7, 3


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


@each("name", KINDS)
def test_every_kind_keeps_the_contract(name: str) -> None:
    kind = KINDS[name]
    check_model(kind.make, kind.inputs(), rough=kind.rough)


def test_every_kind_is_what_it_is_taken_for() -> None:
    for name, kind, model in made():
        assert type(model) is kind.type, name
        assert isinstance(model, DifferentiableModel) == (kind.type is not ArrayModel), name
        assert model(kind.inputs()).shape == (BATCH, OUTPUTS), name


class Company(nn.Module):
    """Takes the mean of the batch off."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, OUTPUTS)

    def forward(self, rows: Tensor) -> Tensor:
        return self.layer(rows - rows.mean(0))


class Noisy(Company):
    """Is never twice the same."""

    def forward(self, rows: Tensor) -> Tensor:
        return self.layer(rows + 0.1 * torch.rand(()))


class Seeded(Company):
    """Draws its first parameters from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator()
        generator.seed()
        nn.init.normal_(self.layer.weight, generator=generator)

    def forward(self, rows: Tensor) -> Tensor:
        return self.layer(rows)


class Detached(Seeded):
    """Hides an input from autograd."""

    def __init__(self) -> None:
        Company.__init__(self)

    def forward(self, rows: Tensor) -> Tensor:
        return self.layer(torch.cat([rows[:, :1].detach(), rows[:, 1:]], 1))


@each(
    "make, words",
    [
        (Company, "a record decides outputs of another"),
        (Noisy, "the same again gives something else"),
        (Seeded, "the seed does not decide its first parameters"),
        (Detached, "a slope is .* differences give"),
    ],
)
def test_a_broken_one_is_told_in_a_line(make: type[nn.Module], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check_model(make, normal(1, BATCH, 5))


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
