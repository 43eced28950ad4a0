"""What adversaries were seen to learn, beside what none at all would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vertizo.attacks.choice import ATTACKS
from vertizo.studies.report.reading import Attacks, number


@dataclass(frozen=True)
class Attacked:
    """One figure of one attack on one method."""

    attack: str
    adversary: str
    figure: str
    method: str
    noise: bool
    found: str
    value: float
    control: str
    control_value: float
    bound: str
    guesses: str


@dataclass(frozen=True)
class AttackTable:
    """All figures of one file."""

    source: Attacks
    rows: tuple[Attacked, ...]
    bounded: bool
    unfit: tuple[str, ...]
    """Attacks that could not be tried, and why."""


def table(source: Attacks) -> AttackTable:
    """Of one ``attacks.json``."""
    rows, unfit = [], []
    for result in source.results:
        name, method = str(result.get("attack", "?")), str(result.get("method", "?"))
        noise = bool(result.get("noise", False))
        if result.get("not_applicable"):
            beside = " with noise" if noise else ""
            unfit.append(f"{name} on {method}{beside}: {result['not_applicable']}")
        kind = ATTACKS.get(name)
        for key, figure in result["figures"].items():
            made = _row(figure) if isinstance(figure, Mapping) else None
            if made is None:
                continue
            value, control, found, bound, guesses = made
            rows.append(
                Attacked(
                    attack=name,
                    adversary=kind.adversary if kind else "",
                    figure=kind.figures.get(key, key) if kind else str(key),
                    method=method,
                    noise=noise,
                    found=found,
                    value=value,
                    control=f"{control:.3f}",
                    control_value=control,
                    bound=bound,
                    guesses=guesses,
                )
            )
    return AttackTable(source, tuple(rows), any(row.bound for row in rows), tuple(unfit))


def _row(figure: Mapping[str, Any]) -> tuple[float, float, str, str, str] | None:
    mean, control = number(figure, "mean"), number(figure, "control")
    if mean is None or control is None:
        return None
    error, bound = number(figure, "standard_error"), number(figure, "bound")
    found = f"{mean:.3f}" if error is None else f"{mean:.3f} ± {error:.3f}"
    counts = figure.get("guesses")
    guesses = sum(c for c in counts if isinstance(c, int)) if isinstance(counts, list) else 0
    return mean, control, found, "" if bound is None else f"{bound:.3f}", f"{guesses:,}"
