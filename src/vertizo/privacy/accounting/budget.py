"""Budgets that are planned before there is data: noise for a wanted ε, and what it gives.

`plan` computes them; `noises`, `epsilons` and `notes` write them for people.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from vertizo.core.errors import ConfigError
from vertizo.core.validate import fraction, positive
from vertizo.privacy.accounting import guarantee, label_advantage
from vertizo.privacy.accounting.events import GaussianRelease, Releases, SecretSteps
from vertizo.privacy.accounting.gaussian import compose, epsilon_of, mu_of, published_noise_std
from vertizo.privacy.accounting.guarantee import Views
from vertizo.privacy.clipping import moved
from vertizo.privacy.epsilon_text import bound_text
from vertizo.privacy.statement import of_large_delta


@dataclass(frozen=True)
class Federation:
    """A federation's public constants D, M, E, B and C, and the releases in one reply.

    E is how often each client may ask about each record, B the nominal batch.
    """

    records: int
    clients: int
    epochs: int
    batch: int
    clip_norm: float = 1.0
    per_query: int = 1

    def __post_init__(self) -> None:
        for name in ("records", "clients", "epochs", "batch", "per_query"):
            positive(name, getattr(self, name))
        positive("clip", self.clip_norm)
        if self.batch > self.records:
            raise ConfigError(
                f"batch is {self.batch} but there are {self.records} records; "
                f"use at most {self.records}"
            )

    @property
    def rounds(self) -> int:
        """Queries of all clients."""
        return self.clients * self.epochs * math.ceil(self.records / self.batch)


@dataclass(frozen=True)
class Published:
    """DPZV's σ on the sum for the same federation, and the ε that it really gives.

    ``own_replies`` is for the replies to one client, ``all_replies`` for those to all clients; the
    server's updates come on top.
    """

    noise_std: float
    own_replies: float
    all_replies: float


@dataclass(frozen=True)
class Budget:
    """The noise for a wanted ε, and the bounds on what observers learn under it."""

    releases: Releases
    delta: float
    views: Views
    label_advantage: float
    """Of all clients together (`vertizo.privacy.accounting.label_advantage`)."""
    published: Published

    @property
    def epsilon(self) -> float:
        """The ε that the accountant finds, against all clients together."""
        return self.views.all_clients


def plan(
    federation: Federation,
    epsilon: float,
    delta: float,
    *,
    server_share: float = 0.0,
    same_batch: bool = False,
    secret_steps: int = 0,
    sampling: float | None = None,
    server_clip: float = 1.0,
) -> Budget:
    """Calibrate a federation's noise and account for it; raises as `guarantee.calibrate`."""
    noise = guarantee.calibrate(
        epsilon,
        delta,
        clients=federation.clients,
        queries=federation.epochs,
        per_query=federation.per_query,
        server_share=server_share,
        steps_per_query=1.0 if same_batch else None,
        secret_steps=secret_steps,
        sampling=sampling,
    )
    step = secret = None
    if noise.server is not None and secret_steps:
        assert sampling is not None
        secret = SecretSteps(secret_steps, sampling, noise.server)
    elif noise.server is not None:
        step = GaussianRelease(server_clip, noise.server * server_clip)
    releases = Releases(
        clients=federation.clients,
        queries=federation.epochs,
        reply=GaussianRelease(federation.clip_norm, noise.reply * federation.clip_norm),
        per_query=federation.per_query,
        step=step,
        secret=secret,
    )
    views, advantage = guarantee.views(releases, delta), label_advantage.of_releases(releases)
    return Budget(releases, delta, views, advantage, published(federation, epsilon, delta))


def published(federation: Federation, epsilon: float, delta: float) -> Published:
    """DPZV's noise for a wanted ε, and the ε that its replies really give."""
    fraction("delta", delta)
    clip_norm = federation.clip_norm
    sampling = federation.batch / federation.records
    rounds = federation.clients * federation.epochs * federation.per_query / sampling  # M E D/B
    noise_std = published_noise_std(clip_norm, mu_of(epsilon, delta), rounds, sampling)
    own = compose([moved(clip_norm) / noise_std] * (federation.epochs * federation.per_query))
    everybody = own * math.sqrt(federation.clients)
    return Published(noise_std, epsilon_of(own, delta), epsilon_of(everybody, delta))


def noises(federation: Federation, found: Budget) -> list[list[str]]:
    """Rows for people: which noise is added where."""
    releases = found.releases
    reply, step, secret = releases.reply, releases.step, releases.secret
    lines = [
        ["σ on the sum of a reply", f"{reply.noise_std:.6g}"],
        ["  as a multiple of its clip C", f"{reply.noise_std / reply.clip_norm:.6g}"],
        ["  on the mean over a batch", f"{reply.noise_std / federation.batch:.6g}"],
    ]
    if step is not None:
        lines.append(["σ on the sum of a server's update", f"{step.noise_std:.6g}"])
    if secret is not None:
        lines += [
            ["secret steps of the server", f"{secret.count:,}"],
            ["  sampling rate q", f"{secret.sampling:.6g}"],
            ["  noise multiplier z", f"{secret.noise_multiplier:.6g}"],
        ]
    named = releases.clients * releases.queries
    return [*lines, ["replies that may name one record", f"{named:,}"]]


def epsilons(found: Budget, person: float | None = None, records: int = 1) -> list[list[str]]:
    """Rows for people: who learns what at most, by this plan and with the published noise.

    ``person`` is the ε of a person with ``records`` training records; None for no such row.
    """
    published, views = found.published, found.views
    everything, own = bound_text(views.all_clients), bound_text(views.own_replies)
    replies = bound_text(epsilon_of(found.releases.replies_alone_mu, found.delta))
    rows = [
        ["who, from what", "this plan", "published noise"],
        ["all clients together, whatever they do", everything, "no bound"],
    ]
    if person is not None:
        rows.append([f"  of a person with {records} records", bound_text(person), "no bound"])
    return [
        *rows,
        ["  from the replies alone", replies, f"{published.all_replies:.4g}"],
        ["a single client, from its own replies alone", own, f"{published.own_replies:.4g}"],
        ["  with what the others' models carry", everything, "no bound"],
        ["an outsider who is given the models", f"at most {everything}", "no bound"],
        ["an outsider on an encrypted line", "sizes, times", "sizes, times"],
    ]


def notes(federation: Federation, found: Budget, wanted: float) -> list[str]:
    """Sentences on what the published formula claims, and what the plan protects."""
    large = of_large_delta(found.delta, federation.records)
    factor, published = math.sqrt(federation.records / federation.batch), found.published
    advantage = found.label_advantage
    return [
        "Somebody who sees what all clients see, and guesses which of two equally likely labels a "
        f"record has, is right at most {label_advantage.success_text(advantage)} of the time: "
        f"label advantage {label_advantage.text(advantage)}.",
        f"The published formula would have set σ = {published.noise_std:.6g} on the sum and called "
        f"it ε = {wanted:g}. Its replies alone give ε = {published.all_replies:.4g}: its μ is "
        f"√(D/B) = {factor:.4g} times too small, because clients know their batches. Its server "
        "trains on raw labels, for which no bound holds at all.",
        "Protected: one training record against its replacement; its label where classes and "
        "the scale of labels are public, features where `vertizo privacy explain` says so. Tuning "
        "is not counted.",
        *filter(None, [large]),
    ]
