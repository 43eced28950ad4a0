"""Designed queries for methods along directions: tangents whose replies encode labels as digits.

The K numbers of a reply are sums over records of ``U_iᵀ (p_i − onehot(y_i))``. A client that sends
an embedding far on the side of class 0 gets ``p_i = onehot(0)``, whatever the others sent; with
tangents ``w (0, 1, 2, …)`` record i then adds ``−w y_i`` to one of the numbers. Weights 1, C, C², …
make a number of base C with one digit a record. `LabelStatistic` takes slopes where p is 1/C, which
is known as well. With noise and a clip each number is of one record, and tells which half of the
classes its label is in.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from vertizo.lab.attacks.adversaries import Public
from vertizo.lab.attacks.estimates import released
from vertizo.lab.attacks.transcript import Exchange
from vertizo.methods.directional_queries import AlongDirections
from vertizo.methods.label_statistic import LabelStatistic

FAR = 100.0
"""Size of an embedding on the side of a class: twice what other clients' outputs may add."""
LARGEST = 2.0**20
"""Largest number that keeps a resolution of an eighth in float32."""


def digits(public: Public) -> int:
    """Return how many records' labels fit into one number."""
    if public.clip is not None:
        return 1
    return max(1, int(math.log(min(LARGEST, public.embedding_bound)) / math.log(public.outputs)))


def records_a_query(public: Public, method: AlongDirections) -> int:
    """Return how many labels one query asks for."""
    return method.num_directions * digits(public)


def points(
    public: Public, method: AlongDirections, dim: int, batch: int, half: Tensor
) -> tuple[Tensor, Tensor]:
    """Build embeddings [batch, d_h] and tangents [K, batch, d_h].

    ``half`` marks the classes on one side, bool [C]; it counts under a clip only.
    """
    plain, tangents = torch.zeros(batch, dim), torch.zeros(method.num_directions, batch, dim)
    if public.clip is None:
        plain[:, 0] = -FAR if dim == 1 else FAR
        along = torch.ones(1) if dim == 1 else torch.arange(dim, dtype=torch.float32)
    else:
        along = FAR * (torch.ones(1) if dim == 1 else torch.where(half, 1.0, -1.0))
    for record in range(min(batch, records_a_query(public, method))):
        number, place = divmod(record, digits(public))
        tangents[number, record] = float(public.outputs**place) * along
    return plain, tangents


def read(
    exchange: Exchange,
    public: Public,
    method: AlongDirections,
    half: Tensor,
    coin: np.random.Generator,
) -> Tensor:
    """Decode the labels of the first records of a batch, int64.

    Under a clip a reply tells a half of the classes, and ``coin`` draws one of them.
    """
    told, classes, count = released(exchange, public, method), public.outputs, digits(public)
    if public.clip is not None:
        if exchange.embeddings.shape[2] == 1:
            half = torch.tensor([False, True])
        sides = [(half if slope < 0 else ~half).nonzero().flatten() for slope in told.tolist()]
        return torch.tensor([int(coin.choice(side.numpy())) for side in sides])
    rest = (classes - 1) / 2 if isinstance(method, LabelStatistic) else 0.0
    labels: list[int] = []
    for number, value in enumerate(told.tolist()):
        left = min(max(exchange.ids.numel() - number * count, 0), count)
        at_rest = rest * sum(classes**place for place in range(left))
        labels += spelt(max(0, round(at_rest - value)), classes, left)
    return torch.tensor(labels, dtype=torch.int64)


def spelt(number: int, base: int, count: int) -> list[int]:
    """Return the last ``count`` digits of a number in a base, the lowest digit first.

    >>> spelt(123, 10, 3)
    [3, 2, 1]
    """
    return [number // base**place % base for place in range(count)]
