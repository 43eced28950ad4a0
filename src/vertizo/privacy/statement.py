"""The privacy statement of a run: what is guaranteed, in numbers and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from vertizo.privacy.epsilon_text import BOUNDED

Guarantee = Literal["exact", "simulated", "published", "none"]
PER_PERSON = ("records_per_person", "epsilon_per_person", "label_advantage_per_person")
FIGURES = (
    *("epsilon", "delta", "label_advantage", "mu", "replies_alone_mu", "replies_alone_epsilon"),
    *("epsilon_published", "covers", "records", "not_covered", "assumptions"),
    *PER_PERSON,
)
"""Fields that are filled only where something is guaranteed, or claimed to be."""


def of_large_delta(delta: float, records: int) -> str:
    """A warning if δ is one over the number of records or more; else an empty string."""
    if delta * records < 1:
        return ""
    return (
        f"δ = {delta:g} is not below 1/{records}: an ε at such a δ does not exclude that a whole "
        "record is given away; set privacy.delta far below."
    )


@dataclass(frozen=True)
class Statement:
    """What a run guarantees.

    ``exact``: ``epsilon`` bounds what this run's clients learn. ``simulated``: ``epsilon`` is what
    the same run with secret noise would guarantee; its own noise was made from a seed, and whoever
    knows the seed knows the noise. ``epsilon``, ``label_advantage`` and ``mu`` are given there and
    nowhere else.
    """

    guarantee: Guarantee
    words: str
    epsilon: float | None = None
    delta: float | None = None
    label_advantage: float | None = None
    """The most anybody may gain over guessing (`vertizo.privacy.accounting.label_advantage`)."""
    mu: float | None = None
    """μ of all releases about batches that clients know: replies, and updates on their batches.
    Where there are secret steps as well, ε covers both and no μ is equivalent to them."""
    noise_std: float | None = None
    """σ on the sum of a reply."""
    clip: float | None = None
    server_noise_std: float | None = None
    """σ on the sum of a private update of the server."""
    server_clip: float | None = None
    secret_steps: dict[str, float] | None = None
    """Count, sampling rate and noise multiplier of updates on secret samples."""
    max_participations: int | None = None
    """Queries of all clients that may name one record."""
    max_releases: int | None = None
    """Noised numbers, or vectors of a common clip, that may depend on one record."""
    noise_source: str | None = None
    replies_alone_mu: float | None = None
    """μ of the replies if nothing else about the labels left the server; no guarantee by itself."""
    replies_alone_epsilon: float | None = None
    epsilon_published: float | None = None
    """ε by DPZV's formula, which has gaps: no guarantee."""
    counted: str | None = None
    """The runs that the figures are for."""
    covers: tuple[str, ...] = ()
    """The parts of a training record that are protected."""
    assumptions: tuple[str, ...] = ()
    """Assumptions of the guarantee that were tried and not proved."""
    records: int | None = None
    """How many training records there are; nothing is said of any other record."""
    records_per_person: int | None = None
    """k, training records of one person at most, where that is known."""
    epsilon_per_person: float | None = None
    """ε for all k records of a person (`vertizo.privacy.accounting.persons`), at the same δ."""
    label_advantage_per_person: float | None = None
    """Label advantage between two possible values of all k labels of a person."""
    not_covered: tuple[str, ...] = ()
    """Records that the figures say nothing of."""

    @property
    def is_bounded(self) -> bool:
        """Whether an ε is stated: of the run, or of what it simulates."""
        return self.guarantee in BOUNDED

    def assuming(self, assumptions: Sequence[str]) -> Statement:
        """The statement with assumptions added; the same if it claims nothing, or they are none."""
        if self.guarantee == "none" or not assumptions:
            return self
        words = f"{self.words} Assumed, tried but not proved: {'; '.join(assumptions)}."
        return replace(self, words=words, assumptions=tuple(assumptions))

    def without_guarantee(self, words: str) -> Statement:
        """The statement with its guarantee withdrawn, for the reason that ``words`` give."""
        cleared: dict[str, Any] = {
            one.name: one.default for one in fields(self) if one.name in FIGURES
        }
        return replace(self, guarantee="none", words=words, **cleared)

    def as_dict(self) -> dict[str, Any]:
        """The statement for ``summary.json``; keys about persons only where they are known."""
        lists = ("covers", "not_covered", "assumptions")
        whole = {**asdict(self), **{name: list(getattr(self, name)) for name in lists}}
        if self.records_per_person is None:
            whole = {name: value for name, value in whole.items() if name not in PER_PERSON}
        return whole
