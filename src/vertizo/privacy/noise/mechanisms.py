"""Noise on sums of clipped contributions, and where it comes from."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from vertizo.core.arrays import graphs
from vertizo.core.randomness import Stream
from vertizo.core.validate import positive


class NoiseSource(ABC):
    """A source of noise on sums of clipped contributions.

    If it ``is_secret``, nobody outside the server can foresee its noise or compute it anew. Callers
    number releases. Contributions are clipped to norm C, float64; ``noise_std`` is σ of each
    number.
    """

    name: str
    is_secret: bool
    clip_norm: float
    noise_std: float

    def sum(self, release: int, rows: Tensor) -> Tensor:
        """Add noise to the sum of the records' contributions, [batch, K] → [K]."""
        return self.onto(release, rows.sum(0))

    def each(self, release: int, rows: Tensor) -> Tensor:
        """Add noise to every number of the records' contributions, [batch, K] → [batch, K]."""
        return self.onto(release, rows)

    @abstractmethod
    def onto(self, release: int, total: Tensor) -> Tensor:
        """Add noise to a sum whose contributions were never apart, [d] → [d]."""

    def fill(self) -> None:  # noqa: B027 - may do nothing
        """Draw noise ahead while no query waits, where the source does so."""

    def forget(self) -> None:  # noqa: B027 - may do nothing
        """Drop the noise that was drawn ahead; what comes next is drawn anew."""


class SeededNoise(NoiseSource):
    """Noise for simulations: repeatable, and known to everybody who knows the seed.

    Its stream shares nothing with those of directions, batches or initial values.
    """

    name = "seeded (simulation only)"
    is_secret = False

    def __init__(self, stream: Stream, *, clip_norm: float, noise_std: float) -> None:
        self.clip_norm = positive("privacy.clip", clip_norm)
        self.noise_std = positive("privacy.noise_std", noise_std)
        self._stream = stream

    def onto(self, release: int, total: Tensor) -> Tensor:
        """See `NoiseSource.onto`; the number of the release decides the noise."""
        shape = tuple(total.shape)
        drawn: Tensor = graphs.fed(
            lambda n: torch.from_numpy(self._stream.generator(n).standard_normal(shape)),
            release,
            device=total.device,
            shape=shape,
            dtype=torch.float64,
        )
        return total + self.noise_std * drawn
