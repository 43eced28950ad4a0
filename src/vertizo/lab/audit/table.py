"""Format figures of audits as tables and sentences for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vertizo.lab.audit import small
from vertizo.lab.audit.game import Audit


def title(found: Sequence[Audit], is_small: bool) -> str:
    """Write the table's title: what all audits have in common."""
    where = ""
    if is_small:
        where = f"{small.RECORDS} records, batches of {small.BATCH}, {small.CLIENTS} clients, "
        where += f"{small.EPOCHS} epochs, "
    return f"ε at δ = {found[0].bound.delta:g}: {where}one label flipped"


def brief(found: Sequence[Audit]) -> list[list[str]]:
    """Tabulate for each server the clients that learnt most, in the main columns of `lines`."""
    most: dict[str, Audit] = {}
    for one in found:
        known = most.setdefault(one.title, one)
        most[one.title] = max(known, one, key=lambda audit: audit.bound.epsilon)
    return [[*line[:2], *line[3:6]] for line in lines([*most.values()])]


def lines(found: Sequence[Audit]) -> list[list[str]]:
    """Tabulate all audits: a heading, then a line for each."""
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


def verdict(found: Sequence[Audit]) -> Iterator[str]:
    """Yield a sentence for each figure that refutes a claim, or one that says that none does."""
    confidence = found[0].bound.confidence
    refuted = [one for one in found if one.refutes_accountant or one.refutes_claim]
    if not refuted:
        yield "nothing is refuted: no figure is above what is claimed, which proves no privacy"
    for one in refuted:
        if one.refutes_accountant:
            yield (
                f"{one.title}, {one.adversary}: more was measured than the accountant allows. The "
                "server or its accounting is wrong, unless this is one of the "
                f"{100 * (1 - confidence):g} % of audits that err."
            )
        else:
            yield f"{one.title}, {one.adversary}: more was measured than is claimed."


def notes(found: Sequence[Audit], *, details: bool) -> Iterator[str]:
    """Yield sentences that explain the figures."""
    confidence = found[0].bound.confidence
    if details:
        yield "trials: of either label."
    elif len(found) > len(brief(found)) - 1:
        yield (
            "Of several kinds of clients those that learnt most are shown, which errs more often "
            f"than one figure; --details shows all {len(found)} rows."
        )
    yield (
        f"measured ≥: each figure by itself holds with {100 * confidence:g} % confidence. The "
        "clients collude, know everything but this label, and know the server model's first "
        "parameters."
    )
    yield (
        "A figure near 0 shows nothing: a bound from so many trials misses what is small, and what "
        "other clients might do."
    )


def _figure(epsilon: float | None, otherwise: str = "-") -> str:
    return otherwise if epsilon is None else f"{epsilon:.4g}"
