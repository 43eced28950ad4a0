"""What autograd says of a module, for the tests of everything that says it another way."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from vertizo.models.base import Pullback
from vertizo.testing.models import normal  # noqa: F401 - for those who import this module


def flat(module: nn.Module) -> Tensor:
    """All parameters in order, [d]."""
    return torch.cat([part.detach().reshape(-1) for part in module.parameters()])


def gradients(module: nn.Module, inputs: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Of ``Σ weights · outputs``: to the parameters, and to the inputs (of numbers)."""
    variable = inputs.clone().requires_grad_(inputs.is_floating_point())
    wanted = list(module.parameters())
    total = (module(variable).flatten(1) * weights.flatten(1)).sum()
    if not variable.requires_grad:
        parts = torch.autograd.grad(total, wanted)
        return torch.cat([part.reshape(-1) for part in parts]), torch.zeros(())
    at_inputs, *parts = torch.autograd.grad(
        total, [variable, *wanted], allow_unused=True, materialize_grads=True
    )
    return torch.cat([part.reshape(-1) for part in parts]), at_inputs


def own_norms(module: nn.Module, inputs: Tensor, weights: Tensor) -> Tensor:
    """Norm of each record's gradient by itself, in float64."""
    module = copy.deepcopy(module).double().requires_grad_(True)
    rows = zip(inputs.double(), weights.double(), strict=True)
    return torch.stack([gradients(module, row[None], w[None])[0].norm() for row, w in rows])


def record_norms(pullback: Pullback, gradient: Tensor) -> Tensor:
    """Norm of each record's own gradient as a pullback has it, float64 [batch]."""
    return pullback.record_gradients(gradient, slice(0, len(gradient))).squares().sqrt()
