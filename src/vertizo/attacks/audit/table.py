"""Figures of audits as people read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vertizo.attacks.audit import small
from vertizo.attacks.audit.game import Audit


def title(found: Sequence[Audit], is_small: bool) -> str:
    """What all audits have in common."""
    where = ""
    if is_small:
        where = f"{small.RECORDS} records, batches of {small.BATCH}, {small.CLIENTS} clients, "
        where += f"{small.EPOCHS} epochs, "
    return f"ε at δ = {found[0].bound.delta:g}: {where}one label flipped"


def lines(found: Sequence[Audit]) -> list[list[str]]:
    """A heading, then a line for each audit."""
    return [
        ["server", "clients", "trials", "claimed", "measured ≥", "exact ≤", "replies ≤"],
        *(
            [
                one.title,
                one.adversary,
                f"{one.bound.trials:,}",
                _figure(one.epsilon_claimed),
                f"{one.bound.epsilon:.3g}",
                _figure(one.epsilon_exact, "no bound"),
                _figure(one.epsilon_replies, "no bound"),
            ]
            for one in found
        ),
    ]


def notes(found: Sequence[Audit]) -> Iterator[str]:
    """What the figures mean, and where they refute something."""
    confidence = found[0].bound.confidence
    yield (
        f"trials: of either label. measured ≥: each figure holds with {100 * confidence:g} % "
        "confidence. The clients collude, "
        "know everything but this label, and know the server model's first parameters."
    )
    yield (
        "A figure near 0 shows nothing: a bound from so many trials misses what is small, and what "
        "other clients might do."
    )
    for one in found:
        if one.refutes_accountant:
            yield (
                f"{one.title}, {one.adversary}: more was measured than the accountant allows. The "
                "server or its accounting is wrong, unless this is one of the "
                f"{100 * (1 - confidence):g} % of audits that err."
            )
        elif one.refutes_claim:
            yield f"{one.title}, {one.adversary}: more was measured than is claimed."


def _figure(epsilon: float | None, otherwise: str = "-") -> str:
    return otherwise if epsilon is None else f"{epsilon:.4g}"
