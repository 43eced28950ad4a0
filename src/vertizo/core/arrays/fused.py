"""Triton kernels: what takes PyTorch several operations, or passes over memory, in one.

Imported where a card and Triton are there. Of the numbers of `vertizo.core.arrays.philox`, a vector
of d numbers is read and written once; the random numbers themselves never reach memory.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vertizo.core.arrays.philox import CHUNK, LANE, Kind


@triton.jit  # type: ignore[untyped-decorator]
def _four(seed, chunk, signs: tl.constexpr, lane_size: tl.constexpr):  # type: ignore[no-untyped-def]
    """Draw the four lanes of a chunk, float32 [lane_size] each."""
    a, b, c, d = tl.randint4x(tl.load(seed), chunk * lane_size + tl.arange(0, lane_size))
    a = a.to(tl.uint32, bitcast=True)
    b = b.to(tl.uint32, bitcast=True)
    c = c.to(tl.uint32, bitcast=True)
    d = d.to(tl.uint32, bitcast=True)
    if signs:
        return (
            (a >> 31).to(tl.float32) * 2 - 1,
            (b >> 31).to(tl.float32) * 2 - 1,
            (c >> 31).to(tl.float32) * 2 - 1,
            (d >> 31).to(tl.float32) * 2 - 1,
        )
    step: tl.constexpr = 1.0 / 16777216
    half: tl.constexpr = 0.5 / 16777216
    turn: tl.constexpr = 6.283185307179586
    one = tl.sqrt(-2 * tl.log((a >> 8).to(tl.float32) * step + half))
    other = tl.sqrt(-2 * tl.log((c >> 8).to(tl.float32) * step + half))
    first = ((b >> 8).to(tl.float32) * step + half) * turn
    second = ((d >> 8).to(tl.float32) * step + half) * turn
    return one * tl.cos(first), one * tl.sin(first), other * tl.cos(second), other * tl.sin(second)


@triton.jit  # type: ignore[untyped-decorator]
def _add(  # type: ignore[no-untyped-def]
    vector, seed, factor, size, signs: tl.constexpr, lane_size: tl.constexpr
):
    """``vector += factor · u``; ``vector ← u`` where no factor is given."""
    chunk = tl.program_id(0)
    a, b, c, d = _four(seed, chunk, signs, lane_size)
    at = chunk.to(tl.int64) * (4 * lane_size) + tl.arange(0, lane_size)
    for lane in tl.static_range(4):
        u = a if lane == 0 else b if lane == 1 else c if lane == 2 else d
        place = at + lane * lane_size
        inside = place < size
        if factor is not None:
            moved = tl.load(factor) * u
            u = moved + tl.load(vector + place, inside)  # in the wider type of the two
        tl.store(vector + place, u, inside)


@triton.jit  # type: ignore[untyped-decorator]
def _squares(sums, seed, size, signs: tl.constexpr, lane_size: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sum of the squares of each chunk's numbers."""
    chunk = tl.program_id(0)
    a, b, c, d = _four(seed, chunk, signs, lane_size)
    at = chunk.to(tl.int64) * (4 * lane_size) + tl.arange(0, lane_size)
    total = tl.zeros([lane_size], tl.float32)
    for lane in tl.static_range(4):
        u = a if lane == 0 else b if lane == 1 else c if lane == 2 else d
        total += tl.where(at + lane * lane_size < size, u * u, 0.0)
    tl.store(sums + chunk, tl.sum(total, 0))


WARPS = 8
"""Of a chunk. With eight a thread needs 59 registers for normals, with four 96 (sm_90): so more
threads are at work at a time."""


def _count(size: int) -> tuple[int]:
    return (-(-size // CHUNK),)


def add(vector: Tensor, kind: Kind, seed: Tensor, factor: Tensor | None) -> None:
    """``vector += factor · u``, or ``vector ← u`` without a factor, in place.

    ``vector`` is [d] and contiguous, ``factor`` float32 of no dimension.
    """
    size = vector.numel()
    _add[_count(size)](vector, seed, factor, size, kind == "signs", LANE, num_warps=WARPS)


@triton.jit  # type: ignore[untyped-decorator]
def _descend(  # type: ignore[no-untyped-def]
    vector,
    velocity,
    numbers,
    seed,
    scale,
    factor,
    constant,
    momentum,
    size,
    signs: tl.constexpr,
    lane_size: tl.constexpr,
):
    """``v ← m v + s g`` and ``w ← w + f v``, as `descend` has them."""
    chunk = tl.program_id(0)
    if numbers is None:
        a, b, c, d = _four(seed, chunk, signs, lane_size)
    share = constant if factor is None else tl.load(factor)
    at = chunk.to(tl.int64) * (4 * lane_size) + tl.arange(0, lane_size)
    for lane in tl.static_range(4):
        place = at + lane * lane_size
        inside = place < size
        if numbers is None:
            u = a if lane == 0 else b if lane == 1 else c if lane == 2 else d
        else:
            u = tl.load(numbers + place, inside)
        if scale is not None:
            u *= tl.load(scale)
        moved = momentum * tl.load(velocity + place, inside) + u
        tl.store(velocity + place, moved, inside)
        tl.store(vector + place, tl.load(vector + place, inside) + share * moved, inside)


def descend(
    vector: Tensor,
    velocity: Tensor,
    momentum: float,
    numbers: Tensor | tuple[Kind, Tensor],
    scale: Tensor | None,
    factor: Tensor | float,
) -> None:
    """``velocity ← momentum · velocity + scale · g``, then ``vector += factor · velocity``.

    g is ``numbers``, or drawn from a kind and a seed. Vectors are float32 [d] and contiguous,
    scalars float32 of no dimension; without a scale it is 1.
    """
    kind, seed = ("normals", None) if isinstance(numbers, torch.Tensor) else numbers
    given = numbers if seed is None else None
    place, constant = (factor, 0.0) if isinstance(factor, torch.Tensor) else (None, factor)
    size = vector.numel()
    common = seed, scale, place, constant, momentum, size, kind == "signs", LANE
    _descend[_count(size)](vector, velocity, given, *common, num_warps=WARPS)


def squares(kind: Kind, seed: Tensor, size: int) -> Tensor:
    """``‖u‖²`` of u [size], float32 of no dimension; always added up in the same order."""
    count = _count(size)
    sums = torch.empty(count, dtype=torch.float32, device=seed.device)
    _squares[count](sums, seed, size, kind == "signs", LANE, num_warps=WARPS)
    return sums.sum()


@triton.jit  # type: ignore[untyped-decorator]
def _softmax(  # type: ignore[no-untyped-def]
    values, slopes, right, logits, labels, batch, classes, width: tl.constexpr
):
    """Losses of a row, as `softmax` has them."""
    row = tl.program_id(0)
    label = tl.load(labels + row % batch)
    column = tl.arange(0, width)
    inside = column < classes
    first = row.to(tl.int64) * classes
    at = tl.load(logits + first + column, inside, -float("inf"))
    below = at - tl.max(at, 0)
    shares = tl.exp(below)
    total = tl.sum(shares, 0)
    own = tl.sum(tl.where(column == label, below, 0.0), 0)
    tl.store(values + row, tl.log(total) - own)
    tl.store(slopes + first + column, shares / total - (column == label).to(tl.float32), inside)
    tl.store(right + row, tl.argmax(at, 0) == label)


def softmax(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cross-entropies of rows, their slopes, and which rows are predicted right.

    ``logits`` are float32 [points · batch, classes], ``labels`` int64 [batch]; so are float32
    [rows], float32 [rows, classes] and bool [rows].
    """
    logits, labels = logits.contiguous(), labels.contiguous()
    rows, classes = logits.shape
    values, slopes = logits.new_empty(rows), torch.empty_like(logits)
    right = torch.empty(rows, dtype=torch.bool, device=logits.device)
    width = triton.next_power_of_2(classes)
    _softmax[(rows,)](
        values, slopes, right, logits, labels, len(labels), classes, width, num_warps=1
    )
    return values, slopes, right
