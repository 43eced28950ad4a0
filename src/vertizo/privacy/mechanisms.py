"""Noise, and where it comes from."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from vertizo.randomness import Stream


class NoiseSource(Protocol):
    """Standard normal numbers that nobody outside the server can foresee."""

    name: str

    def normal(self, release: int, size: tuple[int, ...]) -> Tensor:
        """float64 numbers of that shape for release number ``release``."""


class SeededNoise:
    """Noise for simulations: repeatable, and so a secret from nobody who knows the seed.

    Its stream shares nothing with those of directions, batches or initial values.
    """

    name = "seeded (simulation only)"

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def normal(self, release: int, size: tuple[int, ...]) -> Tensor:
        """float64 numbers of that shape for release number ``release``."""
        return torch.from_numpy(self._stream.generator(release).standard_normal(size))
