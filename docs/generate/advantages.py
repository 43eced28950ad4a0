"""Label advantages of one ε: as a table, and as a file that other pages' figures are in."""

from __future__ import annotations

import json
import math
from pathlib import Path

from options import table

from vertizo.privacy.accounting import label_advantage
from vertizo.privacy.accounting.gaussian import delta_of, mu_of

RESULTS = Path(__file__).parents[2] / "experiments" / "results" / "label_advantage.json"
DELTA = 1e-5
EPSILONS = (0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 10.0)


def gaussian(epsilon: float) -> float:
    """That of Gaussian noise of this ε at δ = 1e-5."""
    return delta_of(mu_of(epsilon, DELTA), 0.0)


def comparison() -> str:
    """A row for each ε: Gaussian noise, and randomised response of two classes."""
    head = ["ε", "Gaussian noise: advantage", "right at most"]
    head += ["randomised response: advantage", "right at most", ""]
    rows = []
    for epsilon in EPSILONS[:-1]:
        cells = [f"{epsilon:g}"]
        for advantage in (gaussian(epsilon), label_advantage.pure(epsilon)):
            cells += [_text(_up(advantage), 3), f"{_text(_up(50 + 50 * advantage, 1), 1)} %"]
        rows.append((*cells, "hardly any promise" if epsilon == EPSILONS[-2] else ""))
    return table(head, rows)


def content() -> str:
    """The file."""
    found = {
        "command": "python docs/generate",
        "note": "computed from the accounting, not measured; bounds are rounded up",
        "delta": DELTA,
        "gaussian": {f"{e:g}": _up(gaussian(e)) for e in EPSILONS},
        "gaussian_right_at_most": {f"{e:g}": _up(50 + 50 * gaussian(e), 1) for e in EPSILONS},
        "randomised_response": {f"{e:g}": _up(label_advantage.pure(e)) for e in EPSILONS},
        "randomised_response_kept": {f"{e:g}": 1 / (1 + math.exp(-e)) for e in EPSILONS},
    }
    return json.dumps(found, indent=1) + "\n"


def _up(value: float, digits: int = 3) -> float:
    """Rounded up, as bounds are: to more digits where these would say that all is known."""
    while (rounded := math.ceil(value * 10**digits - 1e-6) / 10**digits) >= (
        100 if value > 1 else 1
    ):
        digits += 1
    return round(rounded, digits)


def _text(value: float, digits: int) -> str:
    """With so many digits, or all where there are more."""
    return max(f"{value:.{digits}f}", repr(value), key=len)
