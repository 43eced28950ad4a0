"""A budget worked out before there is any data: what noise, and what that noise really gives."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vertizo.core.errors import ConfigError
from vertizo.core.validate import fraction, positive
from vertizo.privacy import guarantee
from vertizo.privacy.accounting import compose, epsilon_of, mu_of, published_noise_std
from vertizo.privacy.events import GaussianRelease, Releases, SecretSteps
from vertizo.privacy.guarantee import Views


@dataclass(frozen=True)
class Federation:
    """The public constants that a guarantee depends on.

    Args:
        records: D.
        clients: M.
        epochs: E, how often each client may ask about each record.
        batch: B, nominal.
        clip_norm: C of replies.
        per_query: releases in one reply.
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
    """What DPZV's formula has for the same federation."""

    noise_std: float
    """σ on the sum."""
    own_replies: float
    """ε that it really gives for the replies to one client by themselves."""
    all_replies: float
    """ε that it really gives for the replies to all clients; the server's updates come on top."""


@dataclass(frozen=True)
class Budget:
    """Noise for a wanted ε, and what observers are limited to under it."""

    releases: Releases
    delta: float
    views: Views
    published: Published

    @property
    def epsilon(self) -> float:
        """What holds, by the accountant."""
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
    """Calibrate the noise of a federation and account for it (`guarantee.calibrate`).

    Raises:
        ConfigError: a number is out of range.
    """
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
    if secret_steps:
        assert sampling is not None
        assert noise.server is not None
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
    return Budget(
        releases, delta, guarantee.views(releases, delta), published(federation, epsilon, delta)
    )


def published(federation: Federation, epsilon: float, delta: float) -> Published:
    """DPZV's noise for a wanted ε, and the ε that its replies really give."""
    fraction("delta", delta)
    clip_norm = federation.clip_norm
    sampling = federation.batch / federation.records
    rounds = federation.clients * federation.epochs * federation.per_query / sampling  # M E D/B
    noise_std = published_noise_std(clip_norm, mu_of(epsilon, delta), rounds, sampling)
    own = compose([2 * clip_norm / noise_std] * (federation.epochs * federation.per_query))
    everybody = own * math.sqrt(federation.clients)
    return Published(noise_std, epsilon_of(own, delta), epsilon_of(everybody, delta))
