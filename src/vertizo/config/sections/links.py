"""Simulated links: how long a client takes, and which messages are lost.

Times are seconds of a virtual clock. A client's round takes a time drawn from its `Delay`, times
its slowdown if it is a straggler, plus the time its bytes need at the given bandwidth. A message,
in either direction, is lost with probability ``drop``; the client notices after ``timeout`` and
sends its query again.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, Tag

from vertizo.core.options import Options, chosen_by


class Constant(Options):
    """Always the mean."""

    distribution: Literal["constant"] = "constant"
    mean: float = Field(default=1.0, gt=0)
    """Seconds."""

    def draw(self, generator: np.random.Generator, count: int) -> list[float]:
        """``count`` times in seconds."""
        return [self.mean] * count


class Exponential(Options):
    """Memoryless: activations of a client form a Poisson process, as DPZV's Assumption V.3 asks."""

    distribution: Literal["exponential"] = "exponential"
    mean: float = Field(default=1.0, gt=0)
    """Seconds."""

    def draw(self, generator: np.random.Generator, count: int) -> list[float]:
        """``count`` times in seconds."""
        return list(map(float, generator.exponential(self.mean, count)))


class LogNormal(Options):
    """Heavy-tailed; ``sigma`` is the standard deviation of the logarithm."""

    distribution: Literal["log-normal"] = "log-normal"
    mean: float = Field(default=1.0, gt=0)
    """Seconds."""
    sigma: float = Field(default=1.0, ge=0)
    """Standard deviation of the time's logarithm."""

    def draw(self, generator: np.random.Generator, count: int) -> list[float]:
        """``count`` times in seconds, with the given mean."""
        location = math.log(self.mean) - self.sigma**2 / 2
        return list(map(float, generator.lognormal(location, self.sigma, count)))


class Trace(Options):
    """Measured times, drawn with replacement."""

    distribution: Literal["trace"] = "trace"
    seconds: tuple[Annotated[float, Field(gt=0)], ...] = Field(min_length=1)
    """The times that were measured, in seconds."""

    def draw(self, generator: np.random.Generator, count: int) -> list[float]:
        """``count`` of the measured times, in seconds."""
        return list(map(float, generator.choice(np.asarray(self.seconds), count)))


Delay = Annotated[
    Annotated[Constant, Tag("constant")]
    | Annotated[Exponential, Tag("exponential")]
    | Annotated[LogNormal, Tag("log-normal")]
    | Annotated[Trace, Tag("trace")],
    chosen_by("distribution", "exponential"),
]


class Links(Options):
    """Delays and losses of all clients."""

    delay: Delay = Exponential()
    stragglers: dict[int, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """Client index → factor by which it is slower."""
    bandwidth: float | None = Field(default=None, gt=0)
    """Bytes a second of each link. Default: no limit."""
    drop: float = Field(default=0.0, ge=0, lt=1)
    """Probability that a message is lost."""
    timeout: float = Field(default=5.0, gt=0)
    """Seconds until a client that gets no reply sends its query again."""


def check_activation(config: Any) -> None:
    """Refuse activation probabilities of an `ExperimentConfig` that are invalid or without effect.

    ValueError names the key, its value and what would be right.
    """
    links = config.simulation
    key = f"simulation.activation is {list(links.activation)}"
    if abs(math.fsum(links.activation) - 1) > 1e-6:
        raise ValueError(f"{key}, which adds up to {math.fsum(links.activation):g}; it must be 1")
    if config.rounds is None:
        raise ValueError(f"{key} but rounds is not set; give the number of rounds in all")
    if links.timing == "synchronous":
        raise ValueError(
            f"{key} but simulation.timing is 'synchronous', in which all clients are active; "
            "use 'asynchronous'"
        )
    for other, value, usual in (
        ("drop", links.drop, 0.0),
        ("stragglers", links.stragglers, {}),
    ):
        if value != usual:
            raise ValueError(
                f"{key} but simulation.{other} is {value}; who is active is drawn, not a matter of "
                f"links: leave simulation.{other} out"
            )
