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
* Tangents: each of the K numbers is read like a scalar, for as many records as digits fit; with
  noise for one record each (`vertizo.lab.attacks.kinds.designed_tangents`).
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
from vertizo.lab.attacks.estimates import kind, slopes
from vertizo.lab.attacks.kinds import designed_tangents
from vertizo.lab.attacks.kinds.direct import lowest, why_no_intruder
from vertizo.lab.attacks.malicious_clients import ChosenBatches, Intruder
from vertizo.lab.attacks.scores import Guesses, Measurement
from vertizo.lab.attacks.transcript import Exchange
from vertizo.methods.czofo import Czofo
from vertizo.methods.directional_queries import AlongDirections
from vertizo.methods.dpzv import Dpzv
from vertizo.methods.forward_difference import ForwardDifference
from vertizo.party.batches import Batches

MARGIN = 100.0
"""The weight w: twice what other clients' outputs may add to a loss."""
LARGEST = 2.0**20
"""Largest loss, summed over a batch, that keeps a resolution of an eighth in float32."""


def digits(public: Public) -> int:
    """Return how many records' labels fit into one scalar reply."""
    if public.clip is not None:
        return 1
    classes, most = public.outputs, min(public.embedding_bound, LARGEST)
    room = most / (MARGIN * (classes - 1))
    return max(1, 1 + int(math.log(room) / math.log(classes))) if room > 1 else 1


def records_a_query(public: Public) -> int:
    """Return how many labels one query asks for."""
    method = public.method
    if isinstance(method, AlongDirections):
        return min(designed_tangents.records_a_query(public, method), public.batch_size)
    if kind(method) == "gradient" or (isinstance(method, Czofo) and method.scalars == "record"):
        return public.batch_size
    if isinstance(method, Czofo):
        return max(1, min(public.batch_size, method.num_directions // public.outputs))
    return min(digits(public), public.batch_size)


def designed_queries(public: Public, batches: Batches) -> Intruder:
    """Make a client whose queries encode the labels of a batch's first records in its loss.

    All other records get zeros.
    """
    dim, count = public.dims[arena.CURIOUS], records_a_query(public)

    def choose(number: int, batch: int) -> tuple[Tensor, Tensor]:
        if isinstance(public.method, AlongDirections):
            half = _first_half(number, public.outputs)
            return designed_tangents.points(public, public.method, dim, batch, half)
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
        half, coin = _first_half(exchange.number, public.outputs), stream.generator(exchange.number)
        labels = designed_tangents.read(exchange, public, method, half, coin)
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
    spelt = designed_tangents.spelt(number, public.outputs, count)
    return Guesses(exchange.ids[:count], public.outputs - 1 - torch.tensor(spelt))


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
