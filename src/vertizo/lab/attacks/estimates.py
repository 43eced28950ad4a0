"""Estimate each record's ``∂f_i/∂h_i`` from replies, with known or guessed directions.

=================  =========================================================================
reply              estimate of the gradient of record i's own loss
=================  =========================================================================
first order        the reply itself, times B
one or two losses  slope · u_i · B, ``u_i`` the difference of the two embeddings over μ or 2λ
VFL-CZOFO          the regularised least-squares solution of ``δ_j = Σ_i g_i · u_ij / B``,
                   which is ``φ/q Σ_j δ_j u_j`` for few directions, and exact for many
along tangents     the same, with tangents for u and what was released for δ: a reply is linear in
                   it, by factors that everybody knows
=================  =========================================================================

The two embeddings of a zeroth-order query lie on the wire side by side, so that the difference is
no secret from an eavesdropper: only its pull-back to the parameters is.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertizo.core.randomness import Stream
from vertizo.lab.attacks.adversaries import Public
from vertizo.lab.attacks.transcript import Exchange
from vertizo.methods.base import Method
from vertizo.methods.czofo import Czofo
from vertizo.methods.directional_queries import AlongDirections
from vertizo.methods.dpzv import Dpzv
from vertizo.methods.first_order import FirstOrder
from vertizo.methods.forward_difference import ForwardDifference
from vertizo.protocol.messages import Query


def kind(method: Method) -> Literal["gradient", "slopes", "scalar"] | None:
    """Return the kind of a method's replies; None for a kind that this module cannot read."""
    if isinstance(method, FirstOrder):
        return "gradient"
    if isinstance(method, Czofo | AlongDirections):
        return "slopes"
    return "scalar" if isinstance(method, Dpzv | ForwardDifference) else None


def record_gradients(exchange: Exchange, public: Public, shared: Stream) -> Tensor:
    """Estimate all records' gradients ``∂f_i/∂h_i``, [batch, d_h].

    VFL-CZOFO's directions are drawn from ``shared``; pass another stream to guess them.
    """
    method = public.method
    if isinstance(method, FirstOrder):
        return exchange.values * public.batch_size
    if isinstance(method, Czofo):
        return _from_slopes(exchange, public, method, shared)
    if isinstance(method, AlongDirections):
        rows = exchange.embeddings[1:].double().flatten(1).numpy()
        noise = (public.noise_std or 0.0) ** 2
        found = _ridge(rows, released(exchange, public, method).numpy(), noise)
        return torch.from_numpy(found).view(exchange.embeddings.shape[1:]).float()
    total = torch.zeros(exchange.embeddings.shape[1:])
    moves = _directions(exchange, method)
    for slope, direction in zip(slopes(exchange, method), moves, strict=True):
        total += slope * direction
    return total * public.batch_size


def released(exchange: Exchange, public: Public, method: AlongDirections) -> Tensor:
    """Recover the released sums from a reply along tangents, float64 [K]; 0 if it tells nothing."""
    query = Query(exchange.client, exchange.number, exchange.ids, exchange.embeddings)
    ones, noise_std = torch.ones(method.num_directions), public.noise_std or 0.0
    factors = method.answered(query, ones, noise_std / public.batch_size).values[: len(ones)]
    told = exchange.values[: len(ones)].double() / factors.double()
    return public.batch_size * told.nan_to_num(0.0, 0.0, 0.0)


def slopes(exchange: Exchange, method: Method) -> list[float]:
    """Return the mean loss's slope along each direction of a scalar reply."""
    values: list[float] = exchange.values.double().tolist()
    if isinstance(method, ForwardDifference) and method.reply == "losses":
        plain, shifted = values
        return [(shifted - plain) / method.smoothing]
    return values


def _directions(exchange: Exchange, method: Method) -> list[Tensor]:
    """Compute the directions of a query from its embeddings, [batch, d_h] each."""
    points = exchange.embeddings
    if isinstance(method, Dpzv):
        pairs = points.view(method.num_directions, 2, *points.shape[1:])
        return list((pairs[:, 0] - pairs[:, 1]) / (2 * method.smoothing))
    assert isinstance(method, ForwardDifference)
    return [(points[1] - points[0]) / method.smoothing]


def _from_slopes(exchange: Exchange, public: Public, method: Czofo, shared: Stream) -> Tensor:
    """Solve for the gradients of all records of the batch together, or of each on its own."""
    embeddings = exchange.embeddings[0]
    drawn = method.drawn(shared, exchange.number, embeddings)[0].double()
    told = exchange.values.double().numpy() * public.batch_size
    noise = (public.noise_std or 0.0) ** 2
    if method.scalars == "batch":
        found = _ridge(drawn.flatten(1).numpy(), told, noise)
    else:
        own = zip(drawn.numpy().swapaxes(0, 1), told, strict=True)
        found = np.stack([_ridge(u, slopes, noise) for u, slopes in own])
    return torch.from_numpy(found).view(embeddings.shape).float()


def _ridge(
    directions: NDArray[np.float64], slopes: NDArray[np.float64], noise: float
) -> NDArray[np.float64]:
    """Return the mean of g given ``slopes = directions · g + N(0, noise)`` and g ~ N(0, s²).

    s² is estimated from the size of the slopes; without noise, and with fewer slopes than unknowns,
    this is the shortest g that explains the slopes.
    """
    size = float(np.mean(np.square(directions).sum(1)))
    seen = float(np.mean(np.square(slopes)))
    spread = max(seen - noise, 1e-3 * seen, 1e-30) / max(size, 1e-30)
    kernel = directions @ directions.T
    kernel[np.diag_indices_from(kernel)] += noise / spread + 1e-6 * size
    return np.asarray(directions.T @ np.linalg.solve(kernel, slopes))
