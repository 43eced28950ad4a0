"""The label advantage: by how much anybody may gain over guessing a record's label, at most.

An observer who knows everything else and must choose between two equally likely labels is right in
``½ + advantage/2`` of all cases at most. The advantage is the total variation distance between what
is seen under either label, which is δ at ε = 0. Equal ε do not mean equal advantages: a Gaussian
release of ε = 1 at δ = 1e-5 allows 0.107, randomised response of ε = 1 allows 0.462.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from vertizo.privacy.accounting.events import Releases, SecretSteps
from vertizo.privacy.accounting.gaussian import delta_of
from vertizo.privacy.accounting.guarantee import COARSE, composed, cut_off, rough_mu
from vertizo.privacy.epsilon_text import bound_text, is_bounded

ADDED = 0.05
"""Most that rounding the losses of all secret steps may add up to, as a share of their spread."""


def pure(epsilon: float) -> float:
    """The label advantage of pure ε, ``tanh(ε/2)``; randomised response of two values has it.

    >>> round(pure(1.0), 3)
    0.462
    """
    return math.tanh(epsilon / 2)


def approximate(epsilon: float, delta: float) -> float:
    """The most that (ε, δ) alone allows: ``(e^ε − 1 + 2δ)/(e^ε + 1)``.

    P(right) is (1 + a − b)/2, where a ≤ e^ε b + δ and 1 − b ≤ e^ε (1 − a) + δ.
    """
    return min(pure(epsilon) + 2 * delta / (1 + math.exp(min(epsilon, 700.0))), 1.0)


def of_releases(releases: Releases) -> float:
    """A bound for all releases, by ε's own accounting; ``2Φ(μ/2) − 1`` for Gaussian noise alone.

    >>> from vertizo.privacy.accounting.events import GaussianRelease
    >>> round(of_releases(Releases(1, 1, GaussianRelease(1.0, 2 / 0.268051123))), 4)
    0.1066
    """
    alone = joined(releases.known_mu, releases.secret)

    def gaussian(epsilon: float) -> float:
        """δ at an ε ≤ 0: ``P(S) − e^ε Q(S)`` is at most ``P(S) − Q(S) + 1 − e^ε``."""
        return alone - math.expm1(epsilon)

    return alone if releases.grid is None else releases.grid.delta(gaussian, 0.0)


@lru_cache(maxsize=1024)
def joined(mu: float, secret: SecretSteps | None) -> float:
    """The label advantage of μ-GDP releases and secret steps: δ of ``G_μ ⊗ PLD_s`` at ε = 0."""
    if secret is None:
        return delta_of(mu, 0.0)
    steps = (secret,)
    grid = min(COARSE, ADDED / math.sqrt(secret.count))
    interval = grid * min(max(rough_mu(mu, steps), 0.01), 10.0)
    found = float(composed(mu, steps, interval).get_delta(0.0))
    return min(found + 2 * math.exp(cut_off(steps)), 1.0)


def of(privacy: Mapping[str, Any]) -> float | None:
    """The label advantage in a summary's section ``privacy``, else what its ε and δ allow."""
    if not is_bounded(privacy):
        return None
    told = privacy.get("label_advantage")
    return approximate(privacy["epsilon"], privacy["delta"]) if told is None else float(told)


def success_text(advantage: float) -> str:
    """How often a guess between two equally likely labels is right at most.

    >>> success_text(0.10662)
    '55.4 %'
    """
    return f"{math.ceil(500 * (1 + advantage) - 1e-9) / 10:g} %"


def text(advantage: float | None) -> str:
    """A label advantage as people read it, rounded up.

    >>> text(0.10662), text(None)
    ('0.107', '-')
    """
    return "-" if advantage is None else bound_text(advantage, 3)
