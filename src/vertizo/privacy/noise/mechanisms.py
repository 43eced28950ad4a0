"""Noise on sums of clipped contributions, and where it comes from."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from vertizo.core import arrays
from vertizo.core.randomness import Stream
from vertizo.core.validate import positive


class NoiseSource(ABC):
    """Adds noise that nobody outside the server can foresee, or compute anew if it ``is_secret``.

    Releases are numbered by whoever asks. Contributions are clipped already, each to norm at most
    C, float64; ``noise_std`` is σ of each number of a noised sum.
    """

    name: str
    is_secret: bool
    clip_norm: float
    noise_std: float

    def sum(self, release: int, rows: Tensor) -> Tensor:
        """Each record's contribution, [batch, K], → their noised sum, [K]."""
        return self.onto(release, rows.sum(0))

    def each(self, release: int, rows: Tensor) -> Tensor:
        """Each record's contribution, [batch, K], → the same with noise on every number."""
        return self.onto(release, rows)

    @abstractmethod
    def onto(self, release: int, total: Tensor) -> Tensor:
        """A sum whose contributions were never apart, [d], → the same with noise."""

    def fill(self) -> None:  # noqa: B027 - may do nothing
        """Draw ahead, where that makes a difference; no query waits now."""

    def forget(self) -> None:  # noqa: B027 - may do nothing
        """Let go of what was drawn ahead; what comes next is drawn anew."""


class SeededNoise(NoiseSource):
    """Noise for simulations: repeatable, and so a secret from nobody who knows the seed.

    Its stream shares nothing with those of directions, batches or initial values.
    """

    name = "seeded (simulation only)"
    is_secret = False

    def __init__(self, stream: Stream, *, clip_norm: float, noise_std: float) -> None:
        self.clip_norm = positive("privacy.clip", clip_norm)
        self.noise_std = positive("privacy.noise_std", noise_std)
        self._stream = stream

    def onto(self, release: int, total: Tensor) -> Tensor:
        """As of a `NoiseSource`; the number of the release decides the noise."""
        noise = self._stream.generator(release).standard_normal(tuple(total.shape))
        return total + self.noise_std * arrays.here(torch.from_numpy(noise), total.device)
