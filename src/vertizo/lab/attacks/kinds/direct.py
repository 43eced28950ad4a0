"""Direct label inference: the sign of a logit's gradient tells the label.

Fu et al. (2022); VFL-Cascaded, section VI-B and Table I. The server adds up the clients' outputs,
so that ``∂L/∂h_m = (softmax − one-hot)/B`` is negative in one place only: at the label.

* The *curious client* sends Gaussian numbers, and moves them by a random u where the method sends
  two points; it reads the sign of the reply's slope along u.
* The *eavesdropper* knows the frames of honest clients. In the paper it must guess u. Here the
  frames hold both embeddings of a zeroth-order query, whose difference is u: both are measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from vertizo.config.architectures import SumConfig
from vertizo.config.schema import ExperimentConfig
from vertizo.core.randomness import Stream
from vertizo.data.vertical import VerticalData
from vertizo.lab.attacks import arena
from vertizo.lab.attacks.adversaries import CuriousClient, Eavesdropper, Public
from vertizo.lab.attacks.base import Attack
from vertizo.lab.attacks.estimates import kind, record_gradients, slopes
from vertizo.lab.attacks.malicious_clients import Intruder
from vertizo.lab.attacks.scores import Guesses, Measurement
from vertizo.lab.attacks.transcript import Exchange
from vertizo.methods.label_statistic import LabelStatistic
from vertizo.models.losses import Classification
from vertizo.party.batches import Batches


def lowest(exchange: Exchange, public: Public, shared: Stream) -> Guesses:
    """Guess for every record of a batch the class whose estimated logit gradient is lowest."""
    return Guesses(exchange.ids, record_gradients(exchange, public, shared).argmin(1))


def read_labels(client: CuriousClient) -> Guesses:
    """Guess labels from a curious client's own replies."""
    return Guesses.joined([lowest(e, client.public, client.shared) for e in client.exchanges])


def overhear_labels(listener: Eavesdropper, stream: Stream) -> Guesses:
    """Guess labels from all replies, with directions taken from the frames.

    VFL-CZOFO's directions come from a seed that is not on the wire: the eavesdropper guesses them.
    """
    return Guesses.joined(
        [lowest(e, listener.public, stream.child(e.client)) for e in listener.exchanges]
    )


def overhear_guessing(listener: Eavesdropper, stream: Stream) -> Guesses:
    """Guess labels from all replies with Gaussian guesses of the directions, as published.

    Replies other than scalar ones are read as by `overhear_labels`.
    """
    if kind(listener.public.method) != "scalar":
        return overhear_labels(listener, stream)
    parts = []
    for place, each in enumerate(listener.exchanges):
        told = slopes(each, listener.public.method)
        shape = (len(told), *each.embeddings.shape[1:])
        guess = stream.generator(place).standard_normal(shape).astype(np.float32)
        estimate = torch.einsum("k,kbd->bd", torch.tensor(told).float(), torch.from_numpy(guess))
        parts.append(Guesses(each.ids, estimate.argmin(1)))
    return Guesses.joined(parts)


def random_queries(public: Public, own: Batches, stream: Stream, step: float) -> Intruder:
    """Make a client that sends Gaussian embeddings, and moves of length ``step`` or tangents."""
    dim = public.dims[arena.CURIOUS]
    tangents = public.method.points - 1 if public.method.sends_tangents else 0

    def choose(number: int, batch: int) -> tuple[Tensor, Tensor]:
        drawn = stream.generator(number).standard_normal((1 + max(tangents, 1), batch, dim))
        plain, *directions = torch.from_numpy(drawn.astype(np.float32))
        if tangents:
            return plain, torch.stack(directions)
        return plain, plain + step * directions[0]

    return Intruder(public, own, choose)


def why_not_summed(config: ExperimentConfig, data: VerticalData) -> str | None:
    """Say why the logits are not the sum of the clients' outputs; None if they are."""
    if not isinstance(data.task, Classification):
        return f"{data.name} is a regression, and has no labels to read off a sign"
    if not isinstance(config.server.model, SumConfig):
        return (
            f"server.model is {config.server.model.name!r}; the attack is on a server that adds up "
            "its clients' outputs: server.model.name=sum"
        )
    if config.server.join == "mean" and not isinstance(config.method, LabelStatistic):
        return "server.join is 'mean'; the attack is on a sum"
    if kind(config.method) is None:
        return f"replies of method {config.method.name!r} are of a kind that the attack cannot read"
    return None


def why_no_intruder(config: ExperimentConfig, data: VerticalData) -> str | None:
    """Say why a client cannot attack a summing server by chosen queries; None if it can."""
    reason = why_not_summed(config, data)
    if reason is None and config.codecs.feedback in ("up", "both"):
        return (
            f"codecs.feedback is {config.codecs.feedback!r}, with which embeddings are sent as "
            "differences; the attack sends whole ones"
        )
    return reason


class DirectCurious(Attack):
    """A curious client reads labels off the signs of its replies."""

    name: ClassVar[str] = "direct-client"
    paper: ClassVar[str] = "Fu et al. 2022; VFL-Cascaded, Table I"
    adversary: ClassVar[str] = "one client, which sends random numbers"
    figures: ClassVar[Mapping[str, str]] = {"accuracy": "share of labels that it reads right"}
    setting: ClassVar[str] = "sum"

    step: float = Field(default=0.01, gt=0)
    """Length of the move in units of a standard normal u: small, so that no curvature drowns it."""

    def unfit(self, config: ExperimentConfig, data: VerticalData) -> str | None:
        """Require a server that sums the clients' outputs."""
        return why_no_intruder(config, data)

    def trial(self, config: ExperimentConfig, data: VerticalData) -> dict[str, Measurement]:
        """Train a run with a curious client among honest ones, and score what it reads."""
        stream = self.stream(config)

        def intruder(public: Public, own: Batches) -> Intruder:
            return random_queries(public, own, stream, self.step)

        ground = arena.train(config, data, intruder=intruder)
        guesses = read_labels(ground.client())
        return {"accuracy": guesses.score(data.labels["train"], ground.promise)}


class DirectEavesdropper(Attack):
    """An eavesdropper reads labels off the signs of honest clients' replies."""

    name: ClassVar[str] = "direct-eavesdropper"
    paper: ClassVar[str] = "Fu et al. 2022; VFL-Cascaded, Table I"
    adversary: ClassVar[str] = "somebody on the wire, with honest clients"
    figures: ClassVar[Mapping[str, str]] = {
        "accuracy": "share of labels that it reads right, directions read off the frames",
        "guessed": "the same with guessed directions, as published",
    }
    setting: ClassVar[str] = "sum"

    def unfit(self, config: ExperimentConfig, data: VerticalData) -> str | None:
        """Require a server that sums the clients' outputs."""
        return why_not_summed(config, data)

    def trial(self, config: ExperimentConfig, data: VerticalData) -> dict[str, Measurement]:
        """Train a run of honest clients, and score what an eavesdropper reads."""
        ground = arena.train(config, data)
        listener, stream = ground.eavesdropper(), self.stream(config)
        truth, promise = data.labels["train"], ground.promise
        return {
            "accuracy": overhear_labels(listener, stream.child("read")).score(truth, promise),
            "guessed": overhear_guessing(listener, stream.child("guess")).score(truth, promise),
        }
