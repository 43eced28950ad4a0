"""The game, played often enough to bound ε, and what the accountant says beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from vertizo.audit.adversaries import Adversary
from vertizo.audit.bounds import LowerBound, lower_bound
from vertizo.audit.setting import Setting, World
from vertizo.privacy.accounting import epsilon_of, published_mu
from vertizo.randomness import Stream


@dataclass(frozen=True)
class Audit:
    """One adversary's lower bound on ε, and the accountant's figures at the same δ."""

    title: str
    """What was audited."""
    adversary: str
    statistic: str
    bound: LowerBound
    guarantee: str
    epsilon: float | None
    """The ε that the run guarantees; None where it guarantees nothing."""
    epsilon_replies: float | None
    """ε of the replies alone, were they all that depends on labels; None without noise."""
    epsilon_published: float | None
    """ε by the published formula, which does not hold; None without noise."""
    words: str
    """What the run guarantees, in words."""

    @property
    def contradicts(self) -> bool:
        """Whether more was measured than the run guarantees: the server or its accounting is wrong.

        If both are right, this happens with a probability of at most 1 − confidence.
        """
        return self.epsilon is not None and self.bound.epsilon > self.epsilon

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "contradicts": self.contradicts}


def audit(
    setting: Setting,
    adversary: Adversary,
    *,
    trials: int,
    confidence: float = 0.95,
    title: str = "",
    progress: Callable[[int], None] | None = None,
) -> Audit:
    """Play so many trials with either label, and bound ε.

    Args:
        setting: what the game is about.
        adversary: who plays it.
        trials: of each label.
        confidence: of the bound.
        title: what it is called in a report.
        progress: called after each trial with how many were played.

    Raises:
        ConfigError: too few trials, or a confidence outside (0, 1).
    """
    seeds = Stream.from_seed(setting.config.seed).child("audit", "trials", adversary.name)
    seen: tuple[list[Any], list[Any]] = ([], [])
    worlds: tuple[World, World] = (0, 1)
    for trial in range(trials):
        for world in worlds:
            played = 2 * trial + world
            seen[world].append(adversary.observe(world, seeds.seed(played)))
            if progress is not None:
                progress(played + 1)
    bound = lower_bound(
        np.array(seen[0]),
        np.array(seen[1]),
        delta=setting.config.privacy.delta,
        confidence=confidence,
    )
    statement = setting.reference.statement()
    replies = statement.replies_alone_mu
    return Audit(
        title=title,
        adversary=adversary.name,
        statistic=adversary.statistic,
        bound=bound,
        guarantee=statement.guarantee,
        epsilon=statement.epsilon,
        epsilon_replies=None if replies is None else epsilon_of(replies, bound.delta),
        epsilon_published=published_epsilon(setting),
        words=statement.words,
    )


def published_epsilon(setting: Setting) -> float | None:
    """ε of the replies by DPZV's formula, with T = M·E·D/B rounds; None without noise."""
    config, data = setting.config, setting.data
    statement = setting.reference.statement()
    if statement.noise_std is None or statement.clip is None:
        return None
    sampling = config.batch_size / data.records
    queries = len(data.parties) * config.epochs / sampling
    rounds = queries * config.method.releases_per_query
    mu = published_mu(statement.noise_std, statement.clip, rounds, sampling)
    return epsilon_of(mu, config.privacy.delta)
