"""Derivatives of embeddings along directions of the parameters, and the directions that matter.

``J_i`` [d_h × d] is the Jacobian of record i's embedding with respect to the parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from vertizo.core.deferred import torch
from vertizo.models.base import DifferentiableModel, Model, Points

if TYPE_CHECKING:
    from torch import Tensor

STEP = 1e-2
"""Length of a difference, where a model has no derivatives."""
EXACT = 64
"""Parameters up to which principal directions are computed from all directions."""
OVERSAMPLED = 8
ITERATIONS = 6


@runtime_checkable
class HasTangents(Protocol):
    """A model that computes its own derivatives along directions."""

    def tangents(self, directions: Tensor, inputs: Tensor) -> Tensor:
        """``J_i v`` of every record i and row v of ``directions`` [K, d]: [K, batch, d_h]."""


def tangents(model: Model, inputs: Tensor, directions: Tensor) -> Tensor:
    """``J_i v`` of every record i and row v of ``directions`` [K, d]: [K, batch, d_h].

    Exact where the model has derivatives, else by central differences.
    """
    if isinstance(model, HasTangents):
        return model.tangents(directions, inputs)
    found = []
    for direction in directions:
        length = float(direction.norm()) or 1.0
        plus, minus = model.along(direction / length, (STEP, -STEP), inputs)
        found.append((plus - minus) * (length / (2 * STEP)))
    return torch.stack(found)


def principal(
    model: DifferentiableModel, inputs: Tensor, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The largest eigenvalues of ``mean_i J_iᵀ J_i`` and their vectors: [count], [count, d].

    By subspace iteration (Halko, Martinsson and Tropp 2011), exactly for few parameters.
    """
    size, records = model.parameters.numel(), len(inputs)
    basis = torch.eye(size)
    rounds = 1
    if size > EXACT:
        width, rounds = min(size, count + OVERSAMPLED), ITERATIONS
        basis = torch.linalg.qr(torch.randn(size, width, generator=generator)).Q.t()
    _, pullback = model.forward(Points(inputs))
    for left in reversed(range(rounds)):
        images = tangents(model, inputs, basis)
        products = torch.stack([pullback(image).clone() for image in images]) / records
        if left:
            basis = torch.linalg.qr(products.t()).Q.t()
    small = (basis @ products.t()).double()
    values, turned = torch.linalg.eigh((small + small.t()) / 2)
    order = values.argsort(descending=True)[:count]
    return values[order].clamp(min=0).float(), (turned[:, order].t().float() @ basis)
