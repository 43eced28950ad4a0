"""Designed queries: a malicious client sends embeddings whose losses encode the labels as digits.

An attack of our own; it reads labels that random numbers (Table I of VFL-Cascaded) do not. Where
the server adds up the clients' outputs, a client that sends ``(0, w, 2w, …)`` for one record gets
back the loss ``w · (C − 1 − y)``, up to the other clients' part: one number tells the label.
Several records of a batch get weights ``w, wC, wC², …``, whose sum is a number to base C with one
digit a record, as far as the embedding's bound and float32 go; all others get zeros at both points,
and cancel.

* Scalar replies: as many records as digits fit; with noise and a clip C one record a query, and one
  bit of its label: its slope is −C for half of the classes and +C for the others.
* VFL-CZOFO's slopes: so few records a query that its q equations determine all their gradients.
* Tangents: the K numbers of a reply are sums over records of ``U_iᵀ (p_i − onehot(y_i))``. An
  embedding far on the side of class 0 has ``p_i = onehot(0)``, whatever the others sent; with
  tangents ``w (0, 1, 2, …)`` record i then adds ``−w y_i`` to one of the numbers, which holds
  digits again. `LabelStatistic` takes slopes where p is 1/C, which is known as well. With noise and
  a clip each number is of one record, and tells which half of the classes its label is in.
* First order: the reply holds each record's gradient, whatever was sent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from vertizo.config.schema import ExperimentConfig
from vertizo.core.randomness import Stream
from vertizo.data.vertical import VerticalData
from vertizo.lab.attacks import arena
from vertizo.lab.attacks.adversaries import CuriousClient, Public
from vertizo.lab.attacks.base import Attack
from vertizo.lab.attacks.estimates import kind, released, slopes
from vertizo.lab.attacks.kinds.direct import lowest, why_no_intruder
from vertizo.lab.attacks.malicious_clients import ChosenBatches, Intruder
from vertizo.lab.attacks.scores import Guesses, Measurement
from vertizo.lab.attacks.transcript import Exchange
from vertizo.methods.czofo import Czofo
from vertizo.methods.directional_queries import AlongDirections
from vertizo.methods.dpzv import Dpzv
from vertizo.methods.forward_difference import ForwardDifference
from vertizo.methods.label_statistic import LabelStatistic
from vertizo.party.batches import Batches

MARGIN = 100.0
"""The weight w, or the size of an embedding on the side of a class: twice what other clients'
outputs may add."""
LARGEST = 2.0**20
"""Largest number, such as a loss summed over a batch, that keeps an eighth apart in float32."""


def digits(public: Public) -> int:
    """Return how many records' labels fit into one number of a reply."""
    if public.clip is not None:
        return 1
    classes, most = public.outputs, min(public.embedding_bound, LARGEST)
    if isinstance(public.method, AlongDirections):
        return max(1, int(math.log(most) / math.log(classes)))
    room = most / (MARGIN * (classes - 1))
    return max(1, 1 + int(math.log(room) / math.log(classes))) if room > 1 else 1


def records_a_query(public: Public) -> int:
    """Return how many labels one query asks for."""
    method, most = public.method, public.batch_size
    if isinstance(method, AlongDirections):
        return min(method.num_directions * digits(public), most)
    if kind(method) == "gradient" or (isinstance(method, Czofo) and method.scalars == "record"):
        return most
    if isinstance(method, Czofo):
        return max(1, min(most, method.num_directions // public.outputs))
    return min(digits(public), most)


def designed_queries(public: Public, batches: Batches) -> Intruder:
    """Make a client whose losses encode the labels of a batch's first records; others get zeros."""
    dim, count = public.dims[arena.CURIOUS], records_a_query(public)

    def choose(number: int, batch: int) -> tuple[Tensor, Tensor]:
        if isinstance(public.method, AlongDirections):
            half = _first_half(number, public.outputs)
            return _tangents(public, public.method, dim, batch, half)
        plain, moved = torch.zeros(2, batch, dim)
        if kind(public.method) == "scalar":
            classes = torch.arange(dim, dtype=torch.float32)
            if public.clip is not None:
                moved[0] = MARGIN * torch.where(_first_half(number, dim), 1.0, -1.0)
            else:
                for place in range(min(count, batch)):
                    moved[place] = MARGIN * dim**place * classes
        return plain, moved

    return Intruder(public, batches, choose)


def _tangents(
    public: Public, method: AlongDirections, dim: int, batch: int, half: Tensor
) -> tuple[Tensor, Tensor]:
    """Build embeddings [batch, d_h] and tangents [K, batch, d_h].

    ``half`` marks the classes on one side, bool [C]; it counts under a clip only.
    """
    plain, tangents = torch.zeros(batch, dim), torch.zeros(method.num_directions, batch, dim)
    if public.clip is None:
        plain[:, 0] = -MARGIN if dim == 1 else MARGIN
        along = torch.ones(1) if dim == 1 else torch.arange(dim, dtype=torch.float32)
    else:
        along = MARGIN * (torch.ones(1) if dim == 1 else torch.where(half, 1.0, -1.0))
    for record in range(min(batch, records_a_query(public))):
        number, place = divmod(record, digits(public))
        tangents[number, record] = float(public.outputs**place) * along
    return plain, tangents


def _first_half(number: int, classes: int) -> Tensor:
    """Draw the classes that a query puts on one side, another half each time, bool [classes]."""
    order = np.random.default_rng(number).permutation(classes)
    mask = torch.zeros(classes, dtype=torch.bool)
    mask[torch.from_numpy(order[: (classes + 1) // 2])] = True
    return mask


def decode(client: CuriousClient, stream: Stream) -> Guesses:
    """Decode labels from the replies to designed queries."""
    return Guesses.joined([_decoded(each, client, stream) for each in client.exchanges])


def _decoded(exchange: Exchange, client: CuriousClient, stream: Stream) -> Guesses:
    public, method = client.public, client.public.method
    count = min(records_a_query(public), exchange.ids.numel())
    if isinstance(method, AlongDirections):
        labels = _read(exchange, public, method, stream.generator(exchange.number))
        return Guesses(exchange.ids[:count], labels[:count])
    if kind(method) != "scalar":
        guesses = lowest(exchange, public, client.shared)
        return Guesses(guesses.ids[:count], guesses.labels[:count])
    assert isinstance(method, Dpzv | ForwardDifference)
    replies = slopes(exchange, method)
    slope = sum(replies) / len(replies)
    if public.clip is not None:
        half = _first_half(exchange.number, public.outputs)
        chosen = (half if slope < 0 else ~half).nonzero().flatten()
        pick = int(stream.generator(exchange.number).integers(chosen.numel()))
        return Guesses(exchange.ids[:1], chosen[pick : pick + 1])
    apart = 2 * method.smoothing if isinstance(method, Dpzv) else method.smoothing
    number = max(0, round(slope * public.batch_size * apart / MARGIN))
    spelt = _spelt(number, public.outputs, count)
    return Guesses(exchange.ids[:count], public.outputs - 1 - torch.tensor(spelt))


def _read(
    exchange: Exchange, public: Public, method: AlongDirections, coin: np.random.Generator
) -> Tensor:
    """Decode the labels of the first records of a batch from a reply along tangents, int64.

    Under a clip a reply tells a half of the classes, and ``coin`` draws one of them.
    """
    told, classes, count = released(exchange, public, method), public.outputs, digits(public)
    if public.clip is not None:
        half = _first_half(exchange.number, classes)
        if exchange.embeddings.shape[2] == 1:
            half = torch.tensor([False, True])
        sides = [(half if slope < 0 else ~half).nonzero().flatten() for slope in told.tolist()]
        return torch.tensor([int(coin.choice(side.numpy())) for side in sides])
    rest = (classes - 1) / 2 if isinstance(method, LabelStatistic) else 0.0
    labels: list[int] = []
    for number, value in enumerate(told.tolist()):
        left = min(max(exchange.ids.numel() - number * count, 0), count)
        at_rest = rest * sum(classes**place for place in range(left))
        labels += _spelt(max(0, round(at_rest - value)), classes, left)
    return torch.tensor(labels, dtype=torch.int64)


def _spelt(number: int, base: int, count: int) -> list[int]:
    """Return the last ``count`` digits of a number in a base, the lowest digit first.

    >>> _spelt(123, 10, 3)
    [3, 2, 1]
    """
    return [number // base**place % base for place in range(count)]


class DesignedQuery(Attack):
    """A malicious client makes its losses spell out the labels."""

    name: ClassVar[str] = "designed-query"
    paper: ClassVar[str] = "ours, after Fu et al. 2022"
    adversary: ClassVar[str] = "one client, which sends what tells it most"
    figures: ClassVar[Mapping[str, str]] = {
        "accuracy": "share of labels it asks about that it reads right",
        "asked": "share of all records that the run's queries ask about",
    }
    setting: ClassVar[str] = "sum-frozen"

    def unfit(self, config: ExperimentConfig, data: VerticalData) -> str | None:
        """Require a server that sums the clients' outputs."""
        return why_no_intruder(config, data)

    def trial(self, config: ExperimentConfig, data: VerticalData) -> dict[str, Measurement]:
        """Train a run with a malicious client among honest ones, and score what it reads."""
        stream = self.stream(config)

        def intruder(public: Public, own: Batches) -> Intruder:
            if config.simulation.timing == "asynchronous":
                own = ChosenBatches(own, records_a_query(public), stream.child("order"))
            return designed_queries(public, own)

        ground = arena.train(config, data, intruder=intruder)
        guesses = decode(ground.client(), stream.child("coin"))
        score = guesses.score(data.labels["train"], ground.promise)
        asked = len(set(guesses.ids.tolist())) / data.records
        return {"accuracy": score, "asked": Measurement(asked, 0.0, guesses.ids.numel())}
