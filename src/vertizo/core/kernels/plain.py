"""The loops in NumPy: they specify the compiled ones, and stand in where nothing was compiled.

Arrays are C-contiguous: ``numbers`` float32, IDs and labels int64, rounds and places int32. An ID
that is not below ``records``, the number of rows, is a ValueError. Random
words are those of `numpy.random.SFC64`, whose four words of state are an uint64 array.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float32]
Ids = NDArray[np.int64]
Words = NDArray[np.uint64]
SOME = 1 << 14
"""Numbers that are drawn at a time; they use up whole words."""


def start(state: Words, seed: int) -> None:
    """Set ``state``, uint64 [4], to that of a new generator with a 64-bit seed."""
    state[:] = seed, seed, seed, 1
    _draw(state, 12)


def normals(state: Words, out: Numbers, values: Numbers) -> None:
    """Fill ``out``: 16 random bits each choose one of ``values`` [65536]; four use up a word."""
    words = _draw(state, -(-out.size // 4))
    out[...] = values.take(words.view(np.uint16)[: out.size])


def signs(state: Words, out: Numbers, eights: Numbers) -> None:
    """Fill ``out``: each random byte chooses a row of ``eights`` [256, 8]; 64 use up a word."""
    words = _draw(state, -(-out.size // 64))
    out[...] = eights.take(words.view(np.uint8), 0).reshape(-1)[: out.size]


def add(vector: Numbers, numbers: Numbers, factor: float) -> None:
    """``vector += factor · numbers``, in place."""
    vector += np.float32(factor) * numbers


def descend(
    parameters: Numbers,
    velocity: Numbers,
    numbers: Numbers,
    momentum: float,
    factor: float,
    rate: float,
) -> None:
    """``v = momentum · v + factor · numbers``, then ``w −= rate · v``, in place; each [d]."""
    velocity *= np.float32(momentum)
    add(velocity, numbers, factor)
    add(parameters, velocity, -rate)


def add_normals(state: Words, vector: Numbers, values: Numbers, factor: float) -> None:
    """`add` the numbers that `normals` would give, `SOME` at a time."""
    for part in _parts(vector):
        drawn = np.empty(part.size, np.float32)
        normals(state, drawn, values)
        add(part, drawn, factor)


def add_signs(state: Words, vector: Numbers, eights: Numbers, factor: float) -> None:
    """`add` the numbers that `signs` would give, `SOME` at a time."""
    for part in _parts(vector):
        drawn = np.empty(part.size, np.float32)
        signs(state, drawn, eights)
        add(part, drawn, factor)


def squares(numbers: Numbers) -> float:
    """The sum of the squares; sums over `SOME` numbers are added in float64."""
    return float(sum(float(np.dot(part, part)) for part in _parts(numbers)))


def normal_squares(state: Words, count: int, values: Numbers) -> float:
    """`squares` of the first ``count`` numbers that `normals` would give."""
    total = 0.0
    for start in range(0, count, SOME):
        drawn = np.empty(min(SOME, count - start), np.float32)
        normals(state, drawn, values)
        total += squares(drawn)
    return total


def _parts(numbers: Numbers) -> list[Numbers]:
    return [numbers[start : start + SOME] for start in range(0, numbers.size, SOME)]


def _draw(state: Words, count: int) -> Words:
    generator = np.random.SFC64()
    known = generator.state
    known["state"]["state"] = state
    generator.state = known
    words = generator.random_raw(count)
    state[:] = generator.state["state"]["state"]
    return words


def gather(out: NDArray[np.generic], rows: NDArray[np.generic], ids: Ids, records: int) -> None:
    """``out[i] = rows[ids[i]]``; both of one type, ``rows`` having ``records`` rows."""
    _check(ids, records)
    rows.take(ids, 0, out=out, mode="clip")


def scatter(rows: Numbers, ids: Ids, values: Numbers, records: int, first: int) -> None:
    """``rows[ids[i]]`` from its byte ``first`` on becomes ``values[i]``."""
    _check(ids, records)
    column = first // rows.itemsize
    rows[ids, column : column + values.shape[1]] = values


def stamp(rounds: NDArray[np.int32], ids: Ids, records: int, column: int, round_: int) -> None:
    """``rounds[ids[i], column] = round_``; [records, columns]. ValueError for no such column."""
    _check(ids, records)
    if not 0 <= column < rounds.shape[1]:
        raise ValueError("a column that there is not")
    rounds[ids, column] = round_


def apart(out: Numbers, points: Numbers, rows: Numbers, column: int) -> None:
    """``out = points − rows[:, column:]``, for points [points, rows, width] and width columns."""
    np.subtract(points, rows[:, column : column + points.shape[2]], out=out)


def highest(ids: Ids) -> int:
    """The largest ID; 0 where there is none."""
    return int(np.maximum.reduce(ids, initial=0))


def checksum(content: bytes, start: int) -> int:
    """CRC-32 of ``content``, continued from ``start`` < 2³², as `zlib.crc32` computes it."""
    return zlib.crc32(content, start)


def distinct(places: NDArray[np.int32], ids: Ids) -> bool:
    """Whether no ID comes twice; ``places`` [records] is scratch, and is overwritten."""
    _check(ids, places.size)
    order = np.arange(ids.size, dtype=np.int32)
    places[ids] = order
    return not np.count_nonzero(places.take(ids) != order)


def ages(rounds: NDArray[np.int32], ids: Ids, records: int) -> tuple[int, int]:
    """Sum and minimum of all entries in the rows ``ids`` of ``rounds`` [records, columns]."""
    _check(ids, records)
    found = rounds.take(ids, 0)
    return int(np.add.reduce(found, None, np.int64)), int(np.minimum.reduce(found, None))


def bounded(values: Numbers, bound: float) -> bool:
    """Whether all values are at most ``bound``, rounded to float32, in absolute value."""
    if not values.size:
        return True
    most = np.float32(bound)
    return bool(-most <= values.min() and values.max() <= most)


def softmax(
    parts: Numbers,
    totals: Numbers,
    losses: Numbers,
    likeliest: NDArray[np.int32],
    logits: Numbers,
    labels: Ids,
) -> None:
    """Cross-entropies of logits [rows, classes], and the terms of their gradients.

    Labels [records] repeat over the rows, which are a multiple of them. Written are ``parts``
    [rows, classes], the exponentials of the logits less each row's largest; ``totals`` [rows],
    their sums; ``losses`` [rows], ``log totals − (logit of the label − the row's largest)``;
    ``likeliest`` [rows], the class of the largest (NaN counts as it, of equals the first).
    """
    turned = np.ascontiguousarray(logits.T)  # over records ten times faster than over ten classes
    rows = totals.size
    with np.errstate(all="ignore"):
        likeliest[:] = turned.argmax(0)
        turned -= np.maximum.reduce(turned, 0)
        powers = np.exp(turned)
        parts[...] = powers.T
        np.add.reduce(powers, 0, out=totals)
        at = np.arange(rows).reshape(-1, labels.size) + labels * rows
        np.subtract(np.log(totals), turned.reshape(-1).take(at.reshape(-1)), out=losses)


def slopes(
    out: Numbers, parts: Numbers, totals: Numbers, labels: Ids, first: int, weight: float
) -> None:
    """Gradients ``out = weight · (softmax − one-hot)`` of the records' rows from ``first`` on,
    [records, classes]; parts, totals and labels are those of `softmax`."""
    rows, scale = slice(first, first + labels.size), np.float32(weight)
    with np.errstate(all="ignore"):
        np.multiply(parts[rows], (scale / totals[rows])[:, None], out=out)
    out[np.arange(labels.size), labels] -= scale


def right(likeliest: NDArray[np.int32], labels: Ids, first: int, stop: int) -> int:
    """Count the rows from ``first`` to ``stop`` whose likeliest class is their label; labels
    [records] repeat over the rows, and both bounds are multiples of records."""
    return int(np.count_nonzero(likeliest[first:stop].reshape(-1, labels.size) == labels))


def _check(ids: Ids, records: int) -> None:
    if ids.size and not (ids.min() >= 0 and ids.max() < records):
        raise ValueError("rows that there are not")
