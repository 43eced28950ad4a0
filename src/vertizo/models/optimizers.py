"""Optimisers of a flat vector: SGD, Adam and the two controls, and the gradients they take.

PyTorch's optimisers do not fit: a zeroth-order gradient exists only as a seed and a coefficient
(`vertizo.zeroth_order.estimators.Along`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np

from vertizo.core import kernels
from vertizo.core.arrays import Scalar, card, graphs
from vertizo.core.plugins.lazy_import import torch
from vertizo.core.state import Stateful

if TYPE_CHECKING:
    from torch import Tensor


def add(vector: Tensor, numbers: Tensor, factor: Scalar) -> None:
    """``vector += factor · numbers``, in place; both [d], of any device and type."""
    if isinstance(factor, torch.Tensor):
        vector.addcmul_(numbers.to(vector), factor.to(vector))
        return
    same = vector.dtype is numbers.dtype is torch.float32 and vector.is_cpu and numbers.is_cpu
    if same and vector.is_contiguous() and numbers.is_contiguous():
        kernels.add(vector.numpy(), numbers.numpy(), factor)
    else:
        vector.add_(numbers.to(vector), alpha=factor)


def is_plain(vector: Tensor) -> bool:
    """Whether a vector is float32, contiguous and in the processor's memory."""
    return vector.dtype is torch.float32 and vector.is_cpu and vector.is_contiguous()


class Gradient(Protocol):
    """A direction of descent that can be added to a vector."""

    def add_to(self, vector: Tensor, scale: Scalar) -> None:
        """``vector += scale · gradient``, in place."""

    def held(self) -> tuple[Tensor, Scalar] | None:
        """A vector and its factor, if the gradient is held in memory; else None."""

    def norm(self) -> Scalar:
        """The Euclidean norm of the gradient."""


@runtime_checkable
class OnePass(Protocol):
    """A gradient with which a step with momentum may be one pass over a card's memory."""

    def descend(
        self, parameters: Tensor, velocity: Tensor, momentum: float, factor: Scalar
    ) -> bool:
        """``v ← m v + gradient`` and ``w ← w + factor v`` in one pass.

        False where there is no such pass, and then nothing has changed.
        """


@dataclass(frozen=True)
class Dense:
    """A gradient held as a vector, shape [d]."""

    vector: Tensor

    def add_to(self, vector: Tensor, scale: Scalar) -> None:
        """``vector += scale · gradient``, in place."""
        add(vector, self.vector, scale)

    def held(self) -> tuple[Tensor, float]:
        """The vector, with the factor 1."""
        return self.vector, 1.0

    def descend(
        self, parameters: Tensor, velocity: Tensor, momentum: float, factor: Scalar
    ) -> bool:
        """See `OnePass.descend`."""
        return card.descend(parameters, velocity, momentum, self.vector, None, factor)

    def norm(self) -> Scalar:
        """The Euclidean norm of the gradient."""
        squares = torch.dot(self.vector, self.vector)
        return math.sqrt(float(squares)) if squares.is_cpu else squares.sqrt()


class Penalty(Protocol):
    """A regulariser λ g(w) of a party's own parameters."""

    def gradient(self, parameters: Tensor, loss: Gradient) -> Gradient:
        """``λ ∂g/∂w`` at ``parameters``; an estimated one uses the directions of the loss's."""


class Optimizer(Stateful):
    """The base of optimisers: `step` changes parameters by a gradient; here it does nothing."""

    def step(self, parameters: Tensor, gradient: Gradient) -> None:
        """One step of descent, in place."""


class Frozen(Optimizer):
    """The control that never moves: it shows what the other side reaches alone."""


LARGEST = float(np.finfo(np.float32).max)
ADAM_FLOOR = 1e-8
"""ε of Adam, PyTorch's default."""


@dataclass(frozen=True)
class Decay:
    """How a learning rate falls over the ``steps`` of a run."""

    steps: int
    kind: Literal["linear", "cosine", "step"] = "linear"
    milestones: tuple[float, ...] = ()
    """For ``step``: shares of the run, at each of which the rate is multiplied by ``factor``."""
    factor: float = 1.0

    def share(self, step: int) -> float:
        """The factor of the rate at that step, counted from 0."""
        done = min(1.0, step / max(1, self.steps))
        if self.kind == "linear":
            return 1 - done
        if self.kind == "cosine":
            return (1 + math.cos(math.pi * done)) / 2
        return self.factor ** sum(done >= place for place in self.milestones)


class _Descent(Optimizer):
    """The base of optimisers with a rate η, which falls as ``decay`` says, and a regulariser:
    λ/2 ‖w‖² of ``weight_decay`` λ, or any other ``penalty``."""

    STATE: ClassVar[tuple[str, ...]] = ("_steps",)

    def __init__(
        self,
        learning_rate: float,
        decay: Decay | None,
        weight_decay: float,
        penalty: Penalty | None,
    ) -> None:
        self.learning_rate = min(learning_rate, LARGEST)
        self.weight_decay, self._decay, self._steps = weight_decay, decay, 0
        self.penalty = penalty

    def _factor_on_card(self, parameters: Tensor) -> Scalar:
        if self._decay is None:  # the same number at every step
            graphs.each_call(self._next_factor)
            return -self.learning_rate
        factor: Scalar = graphs.fed(self._next_factor, device=parameters.device)
        return factor

    def _next_factor(self) -> float:
        """−η of the next step, which begins here."""
        share = 1.0 if self._decay is None else self._decay.share(self._steps)
        self._steps += 1
        return -self.learning_rate * share


class Sgd(_Descent):
    """Stochastic gradient descent: ``v ← m v + g + λ w``, ``w ← w − η v``.

    η is the learning rate and m, in [0, 1), the momentum; without it no velocity is held. A
    penalty's gradient takes the place of λ w.
    """

    STATE = ("_velocity",)

    def __init__(
        self,
        learning_rate: float,
        momentum: float = 0.0,
        decay: Decay | None = None,
        weight_decay: float = 0.0,
        penalty: Penalty | None = None,
    ) -> None:
        super().__init__(learning_rate, decay, weight_decay, penalty)
        self.momentum = momentum
        self._velocity: Tensor | None = None

    def step(self, parameters: Tensor, gradient: Gradient) -> None:
        """One step of descent, in place."""
        is_here, decayed = parameters.is_cpu, self.weight_decay
        factor = self._next_factor() if is_here else self._factor_on_card(parameters)
        penalty = self.penalty
        penalised = None if penalty is None else penalty.gradient(parameters, gradient)
        if not self.momentum:
            if decayed:
                parameters.mul_(1 + factor * decayed)
            if penalised is not None:
                penalised.add_to(parameters, factor)
            gradient.add_to(parameters, factor)
            return
        self._velocity = velocity = _beside(parameters, self._velocity)
        held = gradient.held()
        usual = not decayed and penalised is None
        if usual and held is not None and is_plain(parameters) and is_plain(held[0]):
            own, moved, numbers = parameters.numpy(), velocity.numpy(), held[0].numpy()
            kernels.descend(own, moved, numbers, self.momentum, float(held[1]), -float(factor))
            return
        if (
            usual
            and isinstance(gradient, OnePass)
            and gradient.descend(parameters, velocity, self.momentum, factor)
        ):
            return
        if held is not None and isinstance(held[1], float) and held[1] == 1 and not velocity.is_cpu:
            torch.add(held[0].to(velocity), velocity, alpha=self.momentum, out=velocity)
        else:
            velocity.mul_(self.momentum)
            gradient.add_to(velocity, 1.0)
        if decayed:
            add(velocity, parameters, decayed)
        if penalised is not None:
            penalised.add_to(velocity, 1.0)
        add(parameters, velocity, factor)


class Adam(_Descent):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, Algorithm 2).

    ``m ← β₁ m + (1 − β₁) g``, ``v ← β₂ v + (1 − β₂) g²``,
    ``w ← w − η (m̂ / (√v̂ + ε) + λ w)``, where ``m̂ = m / (1 − β₁ᵗ)`` and ``v̂ = v / (1 − β₂ᵗ)``. A
    penalty's gradient takes the place of λ w.
    """

    STATE = ("_mean", "_square")

    def __init__(
        self,
        learning_rate: float,
        beta1: float = 0.9,
        beta2: float = 0.999,
        decay: Decay | None = None,
        weight_decay: float = 0.0,
        penalty: Penalty | None = None,
    ) -> None:
        super().__init__(learning_rate, decay, weight_decay, penalty)
        self.betas = beta1, beta2
        self._mean: Tensor | None = None
        self._square: Tensor | None = None

    def step(self, parameters: Tensor, gradient: Gradient) -> None:
        """One step of descent, in place."""
        place, (beta1, beta2) = parameters.device, self.betas
        is_here = parameters.is_cpu
        factor = self._next_factor() if is_here else self._factor_on_card(parameters)
        self._mean = mean = _beside(parameters, self._mean)
        self._square = square = _beside(parameters, self._square)
        dense = torch.zeros_like(parameters)
        gradient.add_to(dense, 1.0)
        mean.mul_(beta1).add_(dense, alpha=1 - beta1)
        square.mul_(beta2).addcmul_(dense, dense, value=1 - beta2)
        penalty = self.penalty
        penalised = None if penalty is None else penalty.gradient(parameters, gradient)
        if penalised is not None:
            penalised.add_to(parameters, factor)
        if self.weight_decay:
            parameters.mul_(1 + factor * self.weight_decay)
        missing = graphs.fed(lambda: 1 - beta1**self._steps, device=place)  # by starting from zero
        missing_square = graphs.fed(lambda: 1 - beta2**self._steps, device=place)
        scale = (square / missing_square).sqrt_().add_(ADAM_FLOOR)
        if isinstance(missing, torch.Tensor):
            parameters.add_(mean / scale * (factor / missing))
        else:
            parameters.addcdiv_(mean, scale, value=factor / missing)


def _beside(parameters: Tensor, held: Tensor | None) -> Tensor:
    """An optimiser's vector on the parameters' device; a checkpoint's comes on the CPU."""
    if held is None:
        graphs.eager_only("an optimiser makes its first step")
        return torch.zeros_like(parameters)
    return held.to(parameters.device)


class RandomUpdates(Optimizer):
    """The control that moves as far as the method would, but in random directions.

    ``inner`` makes the steps; ``draw`` maps (step number, norm) to a gradient of that norm,
    independent of everything else.
    """

    STATE = ("_inner", "_steps")

    def __init__(self, inner: Optimizer, draw: Callable[[int, Scalar], Gradient]) -> None:
        self._inner, self._draw, self._steps = inner, draw, 0

    def step(self, parameters: Tensor, gradient: Gradient) -> None:
        """One step of the gradient's length in a random direction."""
        self._inner.step(parameters, self._draw(graphs.each_call(self._next), gradient.norm()))

    def _next(self) -> int:
        self._steps += 1
        return self._steps - 1
