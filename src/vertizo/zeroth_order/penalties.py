"""Regularisers λ g(w) other than λ/2 ‖w‖², for an optimiser to add to the gradient of the loss.

Two have a known gradient, which is added exactly. Any other g is a function of somebody's own:
PyTorch differentiates it where the loss is differentiated, and where the loss's gradient is an
estimate it is estimated along the same directions: VFL-Cascaded's
``φ/μ · λ (g(w + μu) − g(w)) · u``, or the two-point form of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from vertizo.core.arrays import graphs
from vertizo.core.errors import ConfigError
from vertizo.core.plugins.lazy_import import torch
from vertizo.models.optimizers import Dense, Gradient
from vertizo.models.parts import user_code_errors
from vertizo.zeroth_order.directions import Direction
from vertizo.zeroth_order.estimators import Along, Sum, estimate, forward_difference, two_point

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class KnownPenalty:
    """A penalty with a known gradient: ``‖w‖₁``, or ``½ Σ w²/(1 + w²)`` (non-convex, smooth)."""

    name: Literal["l1", "non-convex"]
    strength: float
    """λ."""

    def gradient(self, parameters: Tensor, loss: Gradient) -> Dense:
        """``λ sign(w)``, 0 where w is 0; or ``λ w/(1 + w²)²``."""
        if self.name == "l1":
            return Dense(parameters.sign() * self.strength)
        return Dense(parameters / (1 + parameters.square()).square() * self.strength)


@dataclass(frozen=True)
class GivenPenalty:
    """A penalty that is a given function of the parameters, float64 [d], to one number.

    The function sees a copy of them in the processor's memory, and nothing else.
    """

    function: Callable[[Tensor], object]
    strength: float
    """λ."""
    smoothing: float
    """μ or λ, the length of the estimate's perturbation."""
    forward: bool
    """Whether the estimate is a forward difference; else both sides of w are evaluated."""
    key: str
    """Its key in the configuration, for errors."""

    def gradient(self, parameters: Tensor, loss: Gradient) -> Gradient:
        """The gradient by PyTorch, or estimated along the directions of the loss's estimate.

        Raises:
            ConfigError: the function fails, gives no number, or none that has a gradient.
        """
        graphs.eager_only("a penalty of your own works on the processor")
        at = parameters.to(torch.float64, copy=True)
        if isinstance(loss, Along):
            return self._along(at, (loss.direction,)).parts[0]
        if isinstance(loss, Sum):
            return self._along(at, [part.direction for part in loss.parts])
        return Dense(self.exact(at))

    def exact(self, at: Tensor) -> Tensor:
        """``λ ∂g/∂w`` at ``at``, float64 [d]; zeros where g does not depend on w."""
        with torch.enable_grad():
            at.requires_grad_()
            value = self._value(at)
            if not isinstance(value, torch.Tensor) or not value.requires_grad:
                raise ConfigError(
                    f"{self.key}: its value has no gradient, which this party's steps need; "
                    "compute it by PyTorch from the parameters that it is given"
                )
            with user_code_errors(f"{self.key}: its gradient fails"):
                (found,) = torch.autograd.grad(value, at, allow_unused=True, materialize_grads=True)
        return found * self.strength

    def value(self, at: Tensor) -> float:
        """g at ``at``."""
        return float(self._value(at))

    def _value(self, at: Tensor) -> float | Tensor:
        with user_code_errors(f"{self.key}: the function fails for {at.numel():,} parameters"):
            value = self.function(at.cpu())
        size = getattr(value, "size", 1)  # of NumPy's numbers and arrays; PyTorch's is a method
        size = value.numel() if isinstance(value, torch.Tensor) else size
        if size != 1 or not hasattr(value, "__float__") or isinstance(value, str):
            raise ConfigError(
                f"{self.key}: the function gives a {type(value).__name__}"
                f"{f' of {size} numbers' if size != 1 else ''}; it must give one number"
            )
        if isinstance(value, torch.Tensor):
            return value.reshape(())
        with user_code_errors(f"{self.key}: the function gives no number"):
            return float(value)

    def _along(self, at: Tensor, directions: Sequence[Direction]) -> Sum:
        """The mean of the estimates along each of the directions."""
        plain = self.value(at.clone()) if self.forward else 0.0
        parts = []
        for direction in directions:
            plus = self._moved(at, direction, self.smoothing)
            if self.forward:
                slope = forward_difference(plus, plain, self.smoothing)
            else:
                minus = self._moved(at, direction, -self.smoothing)
                slope = two_point(plus, minus, self.smoothing)
            parts.append(estimate(direction, self.strength * slope / len(directions)))
        return Sum(tuple(parts))

    def _moved(self, at: Tensor, direction: Direction, offset: float) -> float:
        moved = at.clone()
        direction.add_to(moved, offset)
        return self.value(moved)
