"""Named streams: repeatable, apart from each other, 64 bits wide."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tests.rows import examples

from vertizo.core.randomness import Stream, generator

NAME = st.lists(st.one_of(st.text(max_size=4), st.integers(-3, 300)), min_size=1, max_size=3)


def test_same_seed_and_name_give_the_same_draws() -> None:
    a, b = (Stream.from_seed(5).child("client", 2) for _ in range(2))
    assert [a.seed(n) for n in range(9)] == [b.seed(n) for n in range(9)]
    assert np.array_equal(a.generator(3).random(50), b.generator(3).random(50))


@pytest.mark.full
def test_draws_do_not_depend_on_the_process() -> None:
    code = "from vertizo.core.randomness import Stream as S; "
    code += "print(S.from_seed(5).child('a', 1).seed(3))"
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    told = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=True, text=True
    )
    assert int(told.stdout) == Stream.from_seed(5).child("a", 1).seed(3)


def test_nothing_is_consumed() -> None:
    stream = Stream.from_seed(1)
    first = stream.seed(7)
    stream.generator(7).random(100)
    stream.child("x").generator().random(100)
    assert stream.seed(7) == first
    assert stream.generator(7).random() == stream.generator(7).random()


@settings(max_examples=examples(200), deadline=None, derandomize=True, database=None)
@given(one=NAME, other=NAME)
@example(one=["a", "b"], other=["a\x1fstr:b"])
@example(one=["client", 0], other=["client", 1])
@example(one=["client", 0], other=["client", "0"])
@example(one=["client", 0], other=["client0"])
@example(one=["a", "b"], other=["ab"])
@example(one=["a", "b"], other=["b", "a"])
@example(one=["noise"], other=["directions"])
@example(one=[1, 11], other=[11, 1])
@example(one=[""], other=["", ""])
def test_names_never_collide(one: list[str | int], other: list[str | int]) -> None:
    assume(one != other)
    root = Stream.from_seed(0)
    seeds = {root.seed(), root.child(*one).seed(), root.child(*other).seed()}
    assert len(seeds) == 3


def test_children_are_their_parents_own() -> None:
    """The same name below other streams is another stream."""
    seeds = [0, 1, -1, 2**32, 2**64, 2**64 + 1]
    assert len({Stream.from_seed(seed).seed() for seed in seeds}) == len(seeds)
    roots = [Stream.from_seed(0), Stream.from_seed(1), Stream.from_os(), Stream.from_os()]
    parents = [*roots, *(root.child("client", 0) for root in roots)]
    assert len({parent.child("noise").seed() for parent in parents}) == len(parents)
    nested = Stream.from_seed(0).child("a").child("b").seed()
    assert nested != Stream.from_seed(0).child("b").seed()
    assert nested == Stream.from_seed(0).child("a").child("b").seed()


def test_the_operating_system_never_repeats_itself() -> None:
    assert len({Stream.from_os().seed() for _ in range(20)}) == 20


def test_seeds_use_all_64_bits() -> None:
    count = 4000
    seeds = np.array([Stream.from_seed(3).seed(n) for n in range(count)], np.uint64)
    assert len(set(seeds.tolist())) == count
    bits = np.unpackbits(seeds.view(np.uint8).reshape(count, 8), axis=1).mean(0)
    assert np.abs(bits - 0.5).max() < 5 * 0.5 / count**0.5
    assert Stream.from_seed(3).seed(2**64 - 1) < 2**64


def test_seeds_that_are_close_or_alike_draw_apart() -> None:
    for seed in (0, 1, 123456789, 2**31, 2**63 - 2**32):
        low, high = (generator(s).integers(0, 2**63, 64) for s in (seed, seed + 2**32))
        assert not np.any(low == high), seed
    for step in (1, 2**32, 2**63):
        a, b = (generator(s).standard_normal(20_000) for s in (9, 9 + step))
        assert abs(np.corrcoef(a, b)[0, 1]) < 5 / 20_000**0.5, step


def test_draws_and_siblings_are_uncorrelated() -> None:
    size, root = 20_000, Stream.from_seed(2)
    streams = [(root.child("client", 0), 0), (root.child("client", 0), 1), (root.child("noise"), 0)]
    numbers = np.stack([stream.generator(n).standard_normal(size) for stream, n in streams])
    off = np.corrcoef(numbers) - np.eye(3)
    assert np.abs(off).max() < 5 / size**0.5


def test_torch_draws_from_the_stream_inside_only() -> None:
    stream = Stream.from_seed(4).child("model")
    torch.manual_seed(1)
    before = torch.get_rng_state()
    with stream.torch_default():
        one = torch.rand(5)
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(KeyError), stream.torch_default():
        raise KeyError(torch.rand(3))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    with stream.torch_default():
        assert torch.equal(torch.rand(5), one)
    with stream.torch_default(1):
        assert not torch.equal(torch.rand(5), one)
