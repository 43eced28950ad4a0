"""A forecast of the signal to noise of replies and server steps, before there is data.

The signal of a reply is the norm of the mean of all records' clipped values, divided by the clip.
It was measured in private runs (ε = 1, defaults, balanced and 22 to 24 % positive) on Adult, Credit
Default and MNIST, with 1,000 to 29,000 records: `REPLY` to `SERVER` are values from the middle of a
run, within a factor of two everywhere. Noise falls as √T over T releases, and is √d times longer in
d numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from vertizo.core.validate import fraction
from vertizo.privacy.accounting.events import Releases

REPLY, TANGENT, STATISTIC, SERVER = 0.04, 0.05, 0.22, 0.1
"""Signal of DPZV's replies, of tangent queries, of a label statistic, of a server's gradient."""
LITTLE = 1.0
"""Signal to noise below which little is learned."""


def rarity(positives: float | None) -> float:
    """The factor by which unbalanced classes weaken a signal: 4π(1 − π); 1 where π is unknown.

    A model that predicts the base rate π has residuals of variance π(1 − π).

    >>> rarity(0.5), round(rarity(0.03), 4)
    (1.0, 0.1164)
    """
    if positives is None:
        return 1.0
    return 4 * fraction("positives", positives) * (1 - positives)


def of_queries(signal: float, noise: float, count: float, numbers: int = 1) -> float:
    """Signal to noise of ``count`` replies together, of ``numbers`` numbers each.

    ``noise`` is σ of one number of the mean, divided by the clip.
    """
    return signal * math.sqrt(count) / (noise * math.sqrt(numbers))


def of_server(
    releases: Releases, records: int, batch: int, parameters: int, positives: float | None = None
) -> float | None:
    """Signal to noise of all private steps of a server of so many parameters; None without any."""
    signal, secret, step = SERVER * rarity(positives), releases.secret, releases.step
    if secret is not None:
        noise = secret.noise_multiplier / (secret.sampling * records)
        return of_queries(signal, noise, secret.count, parameters)
    if step is None:
        return None
    steps = releases.clients * releases.queries * records / batch
    return of_queries(signal, step.noise_std / step.clip_norm / batch, steps, parameters)


def notes(*about: Any) -> Iterator[str]:
    """Warn if a private server's steps will be mostly noise; arguments as of `of_server`."""
    ratio = of_server(*about)
    if ratio is not None and ratio < LITTLE:
        yield (
            f"the server's training is mostly noise (a forecast of signal to noise: {text(ratio)}, "
            "and below 1 little is learned); `vertizo privacy plan` names what does better, and "
            "server.final_head fits a model without noise that stays here"
        )


def text(ratio: float | None) -> str:
    """A signal-to-noise ratio as people read it.

    >>> text(12.345), text(0.271), text(None)
    ('12', '0.27', '-')
    """
    if ratio is None:
        return "-"
    return f"{ratio:.2g}" if ratio < 10 else f"{ratio:,.0f}"


def lines(ratios: Mapping[str, float | None]) -> list[list[str]]:
    """The name and the text of each ratio that is known."""
    names = {"replies": "all replies to one client", "server": "all steps of the server"}
    return [[names[key], text(ratio)] for key, ratio in ratios.items() if ratio is not None]
