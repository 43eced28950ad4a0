"""The compiled loops do what the plain ones specify."""

from __future__ import annotations

import math
import sys
import zlib
from itertools import product
from typing import Any

import numpy as np
import pytest
from tests.refusals import refused

from vertizo.core import kernels
from vertizo.core.kernels import plain
from vertizo.core.randomness import generator
from vertizo.zeroth_order.directions import EIGHTS, values

WAYS = [pytest.param(plain, id="plain")]
if kernels.COMPILED:
    WAYS.append(pytest.param(kernels, id="compiled"))
both_ways = pytest.mark.parametrize("way", WAYS)
needs_compiled = pytest.mark.skipif(
    not kernels.COMPILED, reason="the package was installed without a compiler"
)
RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of these tests a worker has."""
    monkeypatch.setattr(sys.modules[__name__], "RNG", np.random.default_rng(5))


def numbers(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def started(way: Any, seed: int) -> Any:
    state = np.zeros(4, np.uint64)
    way.start(state, seed)
    return state


def words(seed: int, count: int) -> Any:
    return generator(seed).bit_generator.random_raw(count)


@both_ways
def test_what_is_drawn_is_made_of_the_words_of_numpy(way: Any) -> None:
    for seed in (0, 1, 77, 2**64 - 1):
        state = started(way, seed)
        first, second = np.empty(64, np.float32), np.empty(7, np.float32)
        way.normals(state, first, values())
        way.normals(state, second, values())  # goes on; whole words are drawn
        expected = values().take(words(seed, 18).view(np.uint16))
        assert np.array_equal(first, expected[:64]), seed
        assert np.array_equal(second, expected[64:71]), seed
    for count in (1, 8, 63, 64, 65, 1000):
        out = np.empty(count, np.float32)
        way.signs(started(way, 9), out, EIGHTS)
        bits = np.unpackbits(words(9, -(-count // 64)).view(np.uint8), count=count)
        assert np.array_equal(out, 2.0 * bits - 1), count


@both_ways
def test_rows_are_gathered_and_scattered(way: Any) -> None:
    labels = RNG.integers(0, 9, 50)
    for width in (1, 3, 130):
        rows = numbers(50, width + 2)
        ids = RNG.permutation(50)[:17].astype(np.int64)
        out, found = np.empty((17, width + 2), np.float32), np.empty(17, np.int64)
        way.gather(out, rows, ids, 50)
        assert np.array_equal(out, rows[ids]), width
        new, expected = numbers(17, width), rows.copy()
        expected[ids, 1 : 1 + width] = new
        way.scatter(rows, ids, new, 50, 4)
        assert np.array_equal(rows, expected), width
        way.gather(found, labels, ids, 50)
        assert np.array_equal(found, labels[ids]), width


@both_ways
def test_no_row_beyond_the_last_is_touched(way: Any) -> None:
    rows, out = numbers(50, 4), numbers(2, 4)
    before = rows.copy(), out.copy()
    for bad in (-1, 50, 2**62):
        ids = np.array([3, bad], np.int64)
        for name, *arguments in (
            ("gather", out, rows, ids, 50),
            ("scatter", rows, ids, numbers(2, 4), 50, 0),
            ("distinct", np.zeros(50, np.int32), ids),
            ("ages", np.zeros((50, 2), np.int32), ids, 50),
        ):
            case, match = f"{name} of {bad}", r"places|that there are not"
            refused(case, ValueError, getattr(way, name), *arguments, match=match)
    assert np.array_equal(rows, before[0])
    assert np.array_equal(out, before[1])


@both_ways
def test_distinct_and_ages(way: Any) -> None:
    places = RNG.integers(-9, 99, 30).astype(np.int32)  # of other batches
    assert way.distinct(places, np.array([4, 29, 0, 7], np.int64))
    assert not way.distinct(places, np.array([4, 29, 0, 4], np.int64))
    assert not way.distinct(places, np.array([4, 4], np.int64))
    rounds = RNG.integers(0, 2**31 - 1, (40, 3)).astype(np.int32)
    ids = np.array([5, 0, 39], np.int64)
    assert way.ages(rounds, ids, 40) == (int(rounds[ids].sum(dtype=np.int64)), rounds[ids].min())


@both_ways
def test_bounded(way: Any) -> None:
    assert way.bounded(numbers(0), 0.0)
    for size in (1, 5, 1000):
        drawn = numbers(size)
        largest = float(np.abs(drawn).max())
        assert way.bounded(drawn, largest), size
        assert not way.bounded(drawn, largest * 0.999), size
        for bad, place in product((math.nan, math.inf, -math.inf, -1e30), (0, size // 2, size - 1)):
            spoilt = drawn.copy()
            spoilt[place] = bad
            assert not way.bounded(spoilt, 1e20), (size, bad, place)


def softmax(way: Any, logits: Any, labels: Any) -> list[Any]:
    made = [np.empty_like(logits)]
    made += [np.empty(len(logits), np.float32) for _ in range(2)]
    made += [np.empty(len(logits), np.int32)]
    way.softmax(*made, logits, labels)
    return made


@needs_compiled
def test_softmax() -> None:
    scales = (0.0, 1.0, 40.0, 1e30, math.nan, math.inf, -math.inf)
    for case in product((1, 2, 10, 37), (1, 7, 64), (1, 3), scales):
        classes, records, points, scale = case
        logits = numbers(points * records, classes)
        if math.isfinite(scale):
            logits = (scale * logits).astype(np.float32)
        else:
            logits[-1, -1] = scale
        labels = RNG.integers(0, classes, records)
        ours, theirs = softmax(kernels, logits, labels), softmax(plain, logits, labels)
        for mine, other in zip(ours, theirs, strict=True):
            tolerance = 1e-37 + 4e-7 * (mine is ours[2])
            assert np.allclose(mine, other, rtol=5e-7, atol=tolerance, equal_nan=True), case
        for first in range(0, points * records, records):
            found = []
            for way in (kernels, plain):
                out = np.empty((records, classes), np.float32)
                way.slopes(out, theirs[0], theirs[1], labels, first, 0.25)
                found.append(out)
            assert np.allclose(*found, rtol=1e-6, atol=1e-7, equal_nan=True), case


@both_ways
def test_what_a_row_gives_does_not_depend_on_its_place(way: Any) -> None:
    logits, labels = numbers(29 * 8, 10), RNG.integers(0, 10, 29)
    whole = softmax(way, logits, labels)
    for first in range(0, 29 * 8, 29):
        own = logits[first : first + 29]
        for all_rows, mine in zip(whole, softmax(way, own, labels), strict=True):
            assert np.array_equal(all_rows[first : first + 29], mine)


@needs_compiled
def test_exponentials_and_logarithms_everywhere() -> None:
    logits = np.stack([np.zeros(4001), -np.linspace(0, 100, 4001)], 1).astype(np.float32)
    parts, totals, losses, _ = softmax(kernels, logits, np.zeros(4001, np.int64))
    exact = np.exp(logits[:, 1].astype(np.float64))
    usual = exact > 1e-37
    assert np.abs(parts[usual, 1] / exact[usual] - 1).max() < 2.5e-7
    assert np.all(parts[~usual, 1] <= 1e-37)
    assert np.abs(losses - np.log(totals.astype(np.float64))).max() < 6e-8
    many = np.zeros((1, 100_000), np.float32)  # a large sum
    (loss,) = softmax(kernels, many, np.zeros(1, np.int64))[2]
    assert loss == pytest.approx(math.log(100_000), rel=1e-6)


@both_ways
def test_right(way: Any) -> None:
    logits = RNG.integers(0, 3, (30, 4)).astype(np.float32)  # many are equal
    logits[RNG.integers(0, 30, 5), RNG.integers(0, 4, 5)] = np.nan
    labels = RNG.integers(0, 4, 10)
    likeliest = softmax(way, logits, labels)[3]
    assert np.array_equal(likeliest, logits.argmax(1))
    for first in (0, 10, 20):
        expected = np.count_nonzero(logits[first : first + 10].argmax(1) == labels)
        assert way.right(likeliest, labels, first, first + 10) == expected
    everything = np.count_nonzero(logits.argmax(1) == np.tile(labels, 3))
    assert way.right(likeliest, labels, 0, 30) == everything


@both_ways
def test_tables_are_stamped_and_points_are_apart(way: Any) -> None:
    rounds, ids = np.zeros((9, 3), np.int32), np.array([4, 0, 7])
    way.stamp(rounds, ids, 9, 1, 12)
    assert rounds.sum() == 36
    assert rounds[ids, 1].tolist() == [12, 12, 12]
    points, rows = numbers(2, 5, 4), numbers(5, 9)
    out = np.empty_like(points)
    way.apart(out, points, rows, 3)
    assert np.array_equal(out, points - rows[:, 3:7])
    for name, *arguments in (
        ("stamp", rounds, ids, 9, 3, 1),
        ("stamp", rounds, ids + 3, 9, 0, 1),
        ("apart", out, points, rows, 6),
    ):
        refused(name, ValueError, getattr(way, name), *arguments, match=r".+")


@both_ways
def test_drawn_and_added_is_drawn_then_added(way: Any) -> None:
    for kind, size in product(("normals", "signs"), (1, 63, 5000, 40_000)):
        table = values() if kind == "normals" else EIGHTS
        begun, drawn = numbers(size), np.empty(size, np.float32)
        getattr(way, kind)(started(way, 3), drawn, table)
        apart, at_once = begun.copy(), begun.copy()
        way.add(apart, drawn, -0.3)
        getattr(way, f"add_{kind}")(started(way, 3), at_once, table, -0.3)
        assert np.array_equal(apart, at_once), (kind, size)
        assert np.allclose(apart, begun - 0.3 * drawn, rtol=1e-5, atol=1e-6), (kind, size)


@both_ways
def test_a_descent_in_one_pass_is_one_in_three(way: Any) -> None:
    for size in (1, 17, 5000):
        parameters, velocity, gradient = numbers(size), numbers(size), numbers(size)
        own, moved = parameters.copy(), velocity.copy()
        moved *= np.float32(0.9)
        way.add(moved, gradient, 0.3)
        way.add(own, moved, -0.01)
        way.descend(parameters, velocity, gradient, 0.9, 0.3, 0.01)
        assert np.array_equal(velocity, moved), size
        assert np.array_equal(parameters, own), size


@both_ways
def test_a_checksum_is_that_of_zlib(way: Any) -> None:
    content = RNG.bytes(70_000)
    for length in (*range(150), 1000, 65_537, 70_000):
        for start in (0, 1, 2**32 - 1):
            for offset in (0, 3):
                part = memoryview(content)[offset : offset + length]
                assert way.checksum(part, start) == zlib.crc32(part, start), (length, start)
    assert way.checksum(content[100:], way.checksum(content[:100], 0)) == zlib.crc32(content)


@both_ways
def test_squares(way: Any) -> None:
    for size in (0, 1, 17, 5000, 40_000):
        drawn = np.empty(size, np.float32)
        way.normals(started(way, 3), drawn, values())
        found, exact = way.squares(drawn), float(np.sum(drawn.astype(np.float64) ** 2))
        assert found == pytest.approx(exact, rel=1e-6), size
        assert way.normal_squares(started(way, 3), size, values()) == found, size


@needs_compiled
def test_arrays_that_do_not_fit_are_refused() -> None:
    four, labels, classes = numbers(4, 2), np.zeros(4, np.int64), np.zeros(4, np.int32)
    state = np.zeros(4, np.uint64)
    bad: list[Any] = [
        ("softmax", four, numbers(4), numbers(3), classes, four, labels),
        ("softmax", four, numbers(4), numbers(4), classes, four, labels + 2),
        ("slopes", numbers(3, 2), four, numbers(4), labels, 0, 1.0),
        ("slopes", four, four, numbers(4), labels, 1, 1.0),
        ("right", classes, labels, 1, 5),
        ("add", four, numbers(3), 1.0),
        ("add_signs", state, four, numbers(5), 1.0),
        ("normals", state, numbers(3), numbers(5)),
        ("normals", state[:2], numbers(3), values()),
        ("signs", state, numbers(3), numbers(5)),
        ("gather", numbers(3, 4), numbers(9, 4), np.zeros(2, np.int64), 9),
        ("scatter", numbers(9, 4), np.zeros(2, np.int64), numbers(2, 4), 9, 4),
        ("gather", four.T, four, labels, 2),  # not contiguous
        ("bounded", four),
    ]
    for index, (name, *arguments) in enumerate(bad):
        errors = (ValueError, BufferError, TypeError)
        refused(f"{name} of {index}", errors, getattr(kernels, name), *arguments)
