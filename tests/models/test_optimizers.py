"""Descent over a flat vector against torch.optim, and the two controls."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

from vertizo.core.randomness import Stream
from vertizo.models.optimizers import Dense, Frozen, Gradient, Optimizer, RandomUpdates, Sgd
from vertizo.zeroth_order.directions import Directions
from vertizo.zeroth_order.estimators import Along

SIZE, STEPS = 11, 12


def gradients() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(SIZE, generator=generator) for _ in range(STEPS)]


def start() -> Tensor:
    return torch.linspace(-1, 1, SIZE)


def copied(optimizer: Optimizer) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in optimizer.state().items()}


def random_updates(inner: Optimizer, seed: int = 4) -> RandomUpdates:
    directions = Directions("sphere", SIZE, Stream.from_seed(seed))
    return RandomUpdates(inner, lambda step, norm: Along(directions.draw(step), norm))


def test_sgd_equals_pytorch() -> None:
    """With a falling rate: η (1 − t/T), and 0 from step T on. Gradients are left alone."""
    for momentum, decay in product((0.0, 0.5, 0.9), (None, 8)):
        parameters, reference = start(), start().requires_grad_()
        mine = Sgd(0.3, momentum, decay=decay)
        theirs = torch.optim.SGD([reference], lr=0.3, momentum=momentum)
        shares = [1.0 if decay is None else max(0.0, 1 - t / decay) for t in range(STEPS + 1)]
        schedule = torch.optim.lr_scheduler.LambdaLR(theirs, shares.__getitem__)
        for gradient in gradients():
            kept = gradient.clone()
            mine.step(parameters, Dense(gradient))
            reference.grad = gradient.clone()
            theirs.step()
            schedule.step()
            close = torch.allclose(parameters, reference.detach(), rtol=1e-5, atol=1e-6)
            assert close, (momentum, decay)
            assert torch.equal(gradient, kept), (momentum, decay)
        assert ("velocity" in mine.state()) == bool(momentum), (momentum, decay)


def test_sgd_along_a_direction_equals_the_dense_step() -> None:
    for momentum in [0.0, 0.9]:
        directions = Directions("gaussian", SIZE, Stream.from_seed(1))
        one, other = start(), start()
        sparse, dense = Sgd(0.05, momentum), Sgd(0.05, momentum)
        for number in range(STEPS):
            along = Along(directions.draw(number), 0.3 * (number - 5))
            vector = torch.zeros(SIZE)
            along.add_to(vector, 1.0)
            sparse.step(one, along)
            dense.step(other, Dense(vector))
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-6), momentum
        assert not torch.allclose(one, start(), atol=0.1), momentum


MAKERS: dict[str, Callable[[], Optimizer]] = {
    "sgd": lambda: Sgd(0.1),
    "momentum": lambda: Sgd(0.1, 0.9),
    "falling": lambda: Sgd(0.3, 0.9, decay=10),
    "random": lambda: random_updates(Sgd(0.1, 0.9)),
    "frozen": Frozen,
}


def test_a_loaded_state_goes_on_the_same_way() -> None:
    for name, after in product(MAKERS, [0, 5]):
        whole, parameters = MAKERS[name](), start()
        for gradient in gradients()[:after]:
            whole.step(parameters, Dense(gradient))
        saved, other = copied(whole), parameters.clone()
        resumed = MAKERS[name]()
        resumed.load(saved)
        for gradient in gradients()[after:]:
            whole.step(parameters, Dense(gradient))
            resumed.step(other, Dense(gradient))
        assert torch.equal(parameters, other), (name, after)


def test_loading_drops_what_was_before() -> None:
    optimizer = Sgd(0.1, 0.9)
    optimizer.step(start(), Dense(gradients()[0]))
    optimizer.load({})
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
