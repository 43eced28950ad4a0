"""Play the audit's game often enough to bound ε, and set the accountant's figures beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from vertizo.core.randomness import Stream
from vertizo.lab.audit.adversaries import Adversary
from vertizo.lab.audit.bounds import LowerBound, lower_bound
from vertizo.lab.audit.setting import WORLDS, Setting


@dataclass(frozen=True)
class Audit:
    """One adversary's lower bound on ε, and the accountant's figures at the same δ."""

    title: str
    """Name of the server that was audited."""
    adversary: str
    statistic: str
    bound: LowerBound
    guarantee: str
    epsilon_claimed: float | None
    """The ε that the configuration claims, by the exact accounting or by the published formula;
    None where it claims none."""
    epsilon_exact: float | None
    """The accountant's upper bound on all releases; None where there is none."""
    epsilon_replies: float | None
    """The accountant's upper bound on the replies alone; None without noise on them."""
    words: str
    """The run's guarantee in words."""

    @property
    def refutes_claim(self) -> bool:
        """Whether the measured lower bound is above the claimed ε."""
        return self.epsilon_claimed is not None and self.bound.epsilon > self.epsilon_claimed

    @property
    def refutes_accountant(self) -> bool:
        """Whether the bound is above the accountant's ε, and so the accountant or server wrong.

        If both are right, this happens with probability 1 − confidence at most.
        """
        return self.epsilon_exact is not None and self.bound.epsilon > self.epsilon_exact

    def as_dict(self) -> dict[str, Any]:
        """Return all figures for JSON."""
        return {
            **asdict(self),
            "refutes_claim": self.refutes_claim,
            "refutes_accountant": self.refutes_accountant,
        }


def audit(
    setting: Setting,
    adversary: Adversary,
    *,
    trials: int,
    confidence: float = 0.95,
    title: str = "",
    progress: Callable[[int], None] | None = None,
) -> Audit:
    """Play ``trials`` trials with either label, and bound ε from below (`lower_bound`).

    ``progress`` is called after each trial with how many were played.
    """
    seeds = Stream.from_seed(setting.config.seed).child("audit", "trials", adversary.name)
    seen: tuple[list[Any], list[Any]] = ([], [])
    for played in range(2 * trials):
        world = WORLDS[played % 2]
        seen[world].append(adversary.observe(world, seeds.seed(played)))
        if progress is not None:
            progress(played + 1)
    delta = setting.config.privacy.delta
    bound = lower_bound(*map(np.array, seen), delta=delta, confidence=confidence)
    statement = setting.reference.statement()
    exact, claimed = statement.epsilon, statement.epsilon
    if statement.guarantee == "published":
        claimed = statement.epsilon_published
        if setting.config.server.update == "none":
            exact = statement.replies_alone_epsilon  # there is nothing else
    return Audit(
        title=title,
        adversary=adversary.name,
        statistic=adversary.statistic,
        bound=bound,
        guarantee=statement.guarantee,
        epsilon_claimed=claimed,
        epsilon_exact=exact,
        epsilon_replies=statement.replies_alone_epsilon,
        words=statement.words,
    )
