"""Descent over a flat vector against torch.optim, and the two controls."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from itertools import product
from typing import Any

import torch
from torch import Tensor

from vertizo.core.randomness import Stream
from vertizo.models.optimizers import (
    Adam,
    Decay,
    Dense,
    Frozen,
    Gradient,
    Optimizer,
    RandomUpdates,
    Sgd,
)
from vertizo.zeroth_order.directions import Directions
from vertizo.zeroth_order.estimators import Along

SIZE, STEPS = 11, 12


def gradients() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(SIZE, generator=generator) for _ in range(STEPS)]


def start() -> Tensor:
    return torch.linspace(-1, 1, SIZE)


def random_updates(inner: Optimizer, seed: int = 4) -> RandomUpdates:
    directions = Directions("sphere", SIZE, Stream.from_seed(seed))
    return RandomUpdates(inner, lambda step, norm: Along(directions.draw(step), norm))


def test_descent_equals_pytorch() -> None:
    """With every schedule and with weight decay, Adam's decoupled. Gradients are left alone."""
    optim, schedules = torch.optim, torch.optim.lr_scheduler
    decays: list[tuple[Decay | None, Callable[[Any], Any]]] = [
        (None, lambda of: schedules.ConstantLR(of, 1.0)),
        (Decay(8), lambda of: schedules.LinearLR(of, 1.0, 0.0, 8)),
        (Decay(STEPS, "cosine"), lambda of: schedules.CosineAnnealingLR(of, STEPS)),
        (Decay(8, "step", (0.5, 0.75), 0.1), lambda of: schedules.MultiStepLR(of, [4, 6], 0.1)),
    ]
    kinds: list[tuple[Callable[..., Optimizer], Callable[..., Any]]] = [
        *(
            (
                lambda decay, shrunk, m=m: Sgd(0.3, m, decay, shrunk),
                lambda at, shrunk, m=m: optim.SGD(at, lr=0.3, momentum=m, weight_decay=shrunk),
            )
            for m in (0.0, 0.5, 0.9)
        ),
        (
            lambda decay, shrunk: Adam(0.1, 0.8, 0.95, decay, shrunk),
            lambda at, shrunk: optim.AdamW(at, lr=0.1, betas=(0.8, 0.95), weight_decay=shrunk),
        ),
    ]
    for (kind, (mine_of, theirs_of)), (decay, schedule_of), shrunk in product(
        enumerate(kinds), decays, (0.0, 0.2)
    ):
        parameters, reference = start(), start().requires_grad_()
        mine, theirs = mine_of(decay, shrunk), theirs_of([reference], shrunk)
        schedule = schedule_of(theirs)
        for gradient in gradients():
            kept = gradient.clone()
            mine.step(parameters, Dense(gradient))
            reference.grad = gradient.clone()
            theirs.step()
            schedule.step()
            close = torch.allclose(parameters, reference.detach(), rtol=1e-4, atol=1e-5)
            assert close, (kind, decay, shrunk)
            assert torch.equal(gradient, kept), (kind, decay, shrunk)


def test_a_step_along_a_direction_equals_the_dense_one() -> None:
    for name in ("sgd", "momentum", "adam"):
        directions = Directions("gaussian", SIZE, Stream.from_seed(1))
        one, other = start(), start()
        sparse, dense = MAKERS[name](), MAKERS[name]()
        for number in range(STEPS):
            along = Along(directions.draw(number), 0.3 * (number - 5))
            vector = torch.zeros(SIZE)
            along.add_to(vector, 1.0)
            sparse.step(one, along)
            dense.step(other, Dense(vector))
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-6), name
        assert not torch.allclose(one, start(), atol=0.1), name


MAKERS: dict[str, Callable[[], Optimizer]] = {
    "sgd": lambda: Sgd(0.1),
    "momentum": lambda: Sgd(0.1, 0.9),
    "falling": lambda: Sgd(0.3, 0.9, Decay(10), 0.1),
    "adam": lambda: Adam(0.3, decay=Decay(10, "cosine"), weight_decay=0.1),
    "random": lambda: random_updates(Sgd(0.1, 0.9)),
    "frozen": Frozen,
}


def test_a_loaded_state_goes_on_the_same_way() -> None:
    for name, after in product(MAKERS, [0, 5]):
        whole, parameters = MAKERS[name](), start()
        for gradient in gradients()[:after]:
            whole.step(parameters, Dense(gradient))
        saved, other = deepcopy(whole.state()), parameters.clone()
        resumed = MAKERS[name]()
        resumed.load(saved)
        for gradient in gradients()[after:]:
            whole.step(parameters, Dense(gradient))
            resumed.step(other, Dense(gradient))
        assert torch.equal(parameters, other), (name, after)


def test_loading_drops_what_was_before() -> None:
    optimizer = Sgd(0.1, 0.9)
    optimizer.step(start(), Dense(gradients()[0]))
    optimizer.load({"steps": 0, "velocity": None})
    parameters = start()
    optimizer.step(parameters, Dense(gradients()[1]))
    assert torch.allclose(parameters, start() - 0.1 * gradients()[1])


def test_frozen_never_moves_and_a_dense_gradient_has_its_norm() -> None:
    parameters = start()
    Frozen().step(parameters, Dense(gradients()[0]))
    assert torch.equal(parameters, start())
    assert Frozen().state() == {}
    assert Dense(torch.tensor([3.0, 0.0, -4.0])).norm() == 5.0


class Length:
    """A gradient of which only the length is known."""

    def add_to(self, vector: Tensor, scale: float) -> None:
        raise AssertionError("the control must not look at the gradient")

    def held(self) -> None:
        raise AssertionError("nor so")

    def norm(self) -> float:
        return 2.5


def test_random_updates_know_the_length_only_and_are_of_their_stream() -> None:
    gradient: Gradient = Length()
    paths = []
    for seed in (4, 4, 5):
        optimizer, places = random_updates(Sgd(0.1), seed), [start()]
        for _ in range(STEPS):
            places.append(places[-1].clone())
            optimizer.step(places[-1], gradient)
        paths.append(torch.stack(places).diff(dim=0))
    lengths = paths[0].norm(dim=1)
    assert torch.allclose(lengths, torch.full((STEPS,), 0.25), rtol=1e-4)
    cosines = torch.corrcoef(paths[0]) - torch.eye(STEPS)
    assert float(cosines.abs().max()) < 0.95
    assert torch.equal(paths[0], paths[1])
    assert not torch.equal(paths[0], paths[2])
