"""The directions of a model's parameters along which its outputs vary most."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vertizo.core.deferred import torch
from vertizo.models.base import DifferentiableModel, Points

if TYPE_CHECKING:
    from torch import Tensor

EXACT = 64
"""Parameters up to which principal directions are computed from all directions."""
OVERSAMPLED = 8
ITERATIONS = 6


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
        images = model.tangents(basis, inputs)
        products = torch.stack([pullback(image).clone() for image in images]) / records
        if left:
            basis = torch.linalg.qr(products.t()).Q.t()
    small = (basis @ products.t()).double()
    values, turned = torch.linalg.eigh((small + small.t()) / 2)
    order = values.argsort(descending=True)[:count]
    vectors = turned[:, order].t().float() @ basis
    largest = vectors.gather(1, vectors.abs().argmax(1, keepdim=True))
    return values[order].clamp(min=0).float(), vectors * largest.sign()  # the same everywhere
