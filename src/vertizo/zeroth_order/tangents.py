"""Directions of a model's parameters along which its outputs vary most, and steps along them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vertizo.core import arrays
from vertizo.core.plugins.lazy_import import torch
from vertizo.models.base import DifferentiableModel, Points

if TYPE_CHECKING:
    from torch import Tensor

EXACT = 64
"""Parameters up to which principal directions are computed exactly."""
OVERSAMPLED = 8
ITERATIONS = 6
FIT_RATE, FIT_STEPS = 0.02, 30
"""Rate and steps of Adam, which fits a model to what a step promises."""


def principal(
    model: DifferentiableModel, inputs: Tensor, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The largest eigenvalues of ``mean_i J_iᵀ J_i`` and their vectors: [count], [count, d].

    By subspace iteration (Halko, Martinsson and Tropp 2011), exactly for few parameters. Signs are
    the same on every machine; of equal eigenvalues, as each output of an affine model has them, any
    basis may come.
    """
    size, records = model.parameters.numel(), len(inputs)
    device, rounds = model.parameters.device, 1
    basis = torch.eye(size, device=device)
    if size > EXACT:
        width, rounds = min(size, count + OVERSAMPLED), ITERATIONS
        drawn = torch.randn(size, width, generator=generator)
        basis = torch.linalg.qr(arrays.here(drawn, device)).Q.t()
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
    return values[order].clamp(min=0).float(), vectors * largest.sign()


def reached(model: DifferentiableModel, inputs: Tensor, move: Tensor) -> Tensor:
    """The step [d] to subtract from w that brings outputs near ``h(w) − J move``; w stays.

    A few steps of Adam (Kingma and Ba 2015) from w, on the mean squared distance.
    """
    start = model.parameters.clone()
    wanted = model(inputs) - model.tangents(move.unsqueeze(0), inputs)[0]
    at = torch.nn.Parameter(start.clone())
    adam = torch.optim.Adam([at], FIT_RATE)
    try:
        for _ in range(FIT_STEPS):
            outputs, pullback = model.forward(Points(inputs))
            at.grad = pullback((outputs - wanted) / len(inputs)).clone()
            adam.step()
            model.parameters.copy_(at.detach())
    finally:
        model.parameters.copy_(start)
    return start - at.detach()
