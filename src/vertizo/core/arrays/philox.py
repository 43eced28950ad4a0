"""Counter-based random numbers in PyTorch: Philox4x32-10 (Salmon et al. 2011).

Any part of a seed's numbers can be drawn without those before it, on any device and with nothing
read back. `vertizo.core.arrays.fused` draws the same on a card in one pass; this module specifies
it, and stands in where Triton is missing.

Numbers come in chunks of 4,096, in four lanes of 1,024: counter ``1024 c + p`` makes the numbers at
place p of the four lanes of chunk c, so that neighbours in memory come from neighbouring counters.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from vertizo.core.plugins.lazy_import import torch

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["normals", "signs"]

LANE = 1024
"""Counters of a chunk, and numbers of each of its four lanes."""
CHUNK = 4 * LANE
"""Numbers of a chunk."""
AT_ONCE = 2**20
"""Numbers that are drawn at a time; drawing takes 40 bytes for each."""

_WORD = 2**32 - 1
_FACTORS = 0xD2511F53, 0xCD9E8D57
_KEYS = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10


def signed(seed: int) -> int:
    """A 64-bit seed as PyTorch holds it, int64."""
    return seed - 2**64 if seed >= 2**63 else seed


def words(seed: Tensor, counters: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four words of 32 bits for each counter, int64.

    Args:
        seed: int64, of no dimension; its 64 bits are the key.
        counters: int64 ≥ 0, of any shape.
    """
    key0, key1 = seed & _WORD, (seed >> 32) & _WORD
    c0, c1 = counters & _WORD, counters >> 32
    c2 = c3 = torch.zeros_like(counters)
    for _ in range(_ROUNDS):
        one, other = c0 * _FACTORS[0], c2 * _FACTORS[1]  # the low 64 bits, whatever their sign
        c0, c1 = ((other >> 32) & _WORD) ^ c1 ^ key0, other & _WORD
        c2, c3 = ((one >> 32) & _WORD) ^ c3 ^ key1, one & _WORD
        key0, key1 = (key0 + _KEYS[0]) & _WORD, (key1 + _KEYS[1]) & _WORD
    return c0, c1, c2, c3


def chunks(kind: Kind, seed: Tensor, first: int, count: int) -> Tensor:
    """Draw ``count`` chunks of numbers, beginning with chunk ``first``, float32 [count · CHUNK].

    Normal numbers are made by Box-Muller of 24 bits each; the largest is 5.9.
    """
    start = first * LANE
    counters = torch.arange(start, start + count * LANE, device=seed.device)
    found = words(seed, counters)
    lanes = torch.stack(_signs(found) if kind == "signs" else _normals(found))
    return lanes.view(4, count, LANE).transpose(0, 1).reshape(-1)


def _signs(found: tuple[Tensor, ...]) -> list[Tensor]:
    """Signs by the highest bit of each word: 1 where it is set, else −1."""
    return [(word >> 31).to(torch.float32) * 2 - 1 for word in found]


def _normals(found: tuple[Tensor, ...]) -> list[Tensor]:
    """Two pairs of independent normal numbers by Box-Muller, of the upper 24 bits of each word."""
    uniform = [(word >> 8).to(torch.float32) * 2.0**-24 + 2.0**-25 for word in found]
    lanes = []
    for length, turn in (uniform[:2], uniform[2:]):
        radius, angle = (length.log() * -2).sqrt(), turn * (2 * math.pi)
        lanes += [radius * angle.cos(), radius * angle.sin()]
    return lanes
