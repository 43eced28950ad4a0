"""Gradients that can be added to a flat vector, descent by them, and the two controls of it.

Small enough to be ours: a zeroth-order gradient exists only as a seed and a coefficient
(`vertizo.zeroth_order.estimators.Along`), which no optimiser of PyTorch accepts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from vertizo.core import kernels
from vertizo.core.deferred import torch

if TYPE_CHECKING:
    from torch import Tensor


def add(vector: Tensor, numbers: Tensor, factor: float) -> None:
    """``vector += factor · numbers``, in place; both [d], wherever and of whatever type."""
    same = vector.dtype is numbers.dtype is torch.float32 and vector.is_cpu and numbers.is_cpu
    if same and vector.is_contiguous() and numbers.is_contiguous():
        kernels.add(vector.numpy(), numbers.numpy(), factor)
    else:
        vector.add_(numbers.to(vector), alpha=factor)


def is_plain(vector: Tensor) -> bool:
    """Whether it is float32 in the processor's memory, without gaps."""
    return vector.dtype is torch.float32 and vector.is_cpu and vector.is_contiguous()


class Gradient(Protocol):
    """A direction of descent that can be added to a vector."""

    def add_to(self, vector: Tensor, scale: float) -> None:
        """``vector += scale · gradient``, in place."""

    def held(self) -> tuple[Tensor, float] | None:
        """A vector in memory, and the number that it is multiplied by; None where there is none."""

    def norm(self) -> float:
        """Its Euclidean norm."""


@dataclass(frozen=True)
class Dense:
    """A gradient held as a vector, shape [d]."""

    vector: Tensor

    def add_to(self, vector: Tensor, scale: float) -> None:
        """``vector += scale · gradient``, in place."""
        add(vector, self.vector, scale)

    def held(self) -> tuple[Tensor, float]:
        """The vector, once."""
        return self.vector, 1.0

    def norm(self) -> float:
        """Its Euclidean norm."""
        return math.sqrt(float(torch.dot(self.vector, self.vector)))


class Optimizer:
    """Changes parameters by a gradient: not at all, unless a derived class does."""

    def step(self, parameters: Tensor, gradient: Gradient) -> None:
        """One step of descent, in place."""

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must hold."""
        return {}

    def load(self, state: dict[str, Tensor]) -> None:
        """Go on from ``state``."""


class Frozen(Optimizer):
    """The control that never moves: what the other side reaches alone."""


LARGEST = float(np.finfo(np.float32).max)


class Sgd(Optimizer):
    """``v ← m v + g``, ``w ← w − η v``; without momentum no velocity is held.

    η is the learning rate and m, in [0, 1), the momentum; over ``decay`` steps η falls to 0 in a
    straight line.
    """

    def __init__(
        self, learning_rate: float, momentum: float = 0.0, decay: int | None = None
    ) -> None:
        self.learning_rate, self.momentum = min(learning_rate, LARGEST), momentum
        self._decay, self._steps = decay, 0
        self._velocity: Tensor | None = None

    def step(self, parameters: Tensor, gradient: Gradient) -> None:
        """One step of descent, in place."""
        rate = self.learning_rate
        if self._decay is not None:
            rate *= max(0.0, 1 - self._steps / self._decay)
            self._steps += 1
        if not self.momentum:
            gradient.add_to(parameters, -rate)
            return
        if self._velocity is None:
            self._velocity = torch.zeros_like(parameters)
        if self._velocity.device != parameters.device:  # a checkpoint's is the processor's
            self._velocity = self._velocity.to(parameters.device)
        held = gradient.held()
        if held is not None and is_plain(parameters) and is_plain(held[0]):
            numbers, factor = held
            own, velocity = parameters.numpy(), self._velocity.numpy()
            kernels.descend(own, velocity, numbers.numpy(), self.momentum, factor, rate)
            return
        self._velocity.mul_(self.momentum)
        gradient.add_to(self._velocity, 1.0)
        add(parameters, self._velocity, -rate)

    def state(self) -> dict[str, Tensor]:
        """The velocity, once there is one, and the steps made where they matter."""
        state = {} if self._velocity is None else {"velocity": self._velocity}
        if self._decay is not None:
            state["sgd_steps"] = torch.tensor(self._steps)
        return state

    def load(self, state: dict[str, Tensor]) -> None:
        """Go on from ``state``."""
        velocity = state.get("velocity")
        self._velocity = None if velocity is None else velocity.clone()
        if self._decay is not None:
            self._steps = int(state["sgd_steps"])


class RandomUpdates(Optimizer):
    """The control that moves as far as the method would, in directions that know nothing.

    ``inner`` makes the steps; ``draw`` is from (step number, norm) to a gradient of that norm,
    independent of everything else.
    """

    def __init__(self, inner: Optimizer, draw: Callable[[int, float], Gradient]) -> None:
        self._inner, self._draw, self._steps = inner, draw, 0

    def step(self, parameters: Tensor, gradient: Gradient) -> None:
        """One step of the gradient's length in a random direction."""
        self._inner.step(parameters, self._draw(self._steps, gradient.norm()))
        self._steps += 1

    def state(self) -> dict[str, Tensor]:
        """The inner optimiser's, and how many directions were drawn."""
        return {**self._inner.state(), "random_steps": torch.tensor(self._steps)}

    def load(self, state: dict[str, Tensor]) -> None:
        """Go on from ``state``."""
        self._steps = int(state["random_steps"])
        self._inner.load(state)
