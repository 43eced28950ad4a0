"""Noise for real parties: exact sums on a grid, numbers that are used once, and by one process."""

from __future__ import annotations

import copy
import gc
import math
import os
import pickle
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lazy import Lazy
from tests.refusals import refused
from tests.rows import examples

from vertizo.core.errors import ConfigError
from vertizo.privacy.accounting.gaussian import epsilon_of
from vertizo.privacy.clipping import clip
from vertizo.privacy.noise.secure import SecureNoise, grid_for

stats = Lazy("scipy.stats")

SCALES = st.floats(1e-6, 1e6)
ROWS = st.lists(
    st.lists(st.floats(width=64, allow_nan=True, allow_infinity=True), min_size=3, max_size=3),
    min_size=1,
    max_size=6,
)


def seeded(clip_norm: float, noise_std: float, seed: int, ahead: int = 0) -> SecureNoise:
    bits = np.random.default_rng(seed).bytes
    return SecureNoise(clip_norm=clip_norm, noise_std=noise_std, ahead=ahead, random_bytes=bits)


def steps(noise: SecureNoise, released: torch.Tensor) -> list[int]:
    """What was released, in grid steps; an error if it is not on the grid."""
    found = [Fraction(value) / Fraction(noise.grid) for value in released.flatten().tolist()]
    assert all(value.denominator == 1 for value in found)
    return [int(value) for value in found]


@given(clip_norm=SCALES, noise_std=SCALES)
def test_the_grid_is_public_and_fine(clip_norm: float, noise_std: float) -> None:
    noise = SecureNoise(clip_norm=clip_norm, noise_std=noise_std, ahead=0)
    mantissa, _ = math.frexp(noise.grid)
    assert mantissa == 0.5  # a power of two
    assert noise.grid <= max(clip_norm * 2**-24, noise_std * 2**-28)
    assert noise.grid_std <= 2**30
    assert noise_std <= noise.noise_std <= noise_std + noise.grid
    assert noise.grid == grid_for(clip_norm, noise_std)


@settings(deadline=None, max_examples=examples(80))
@given(rows=ROWS, clip_norm=SCALES)
def test_no_contribution_grows_beyond_the_clip(rows: list[list[float]], clip_norm: float) -> None:
    """In integers, exactly: whatever arrives. Cutting goes towards zero, by less than a step."""
    noise = SecureNoise(clip_norm=clip_norm, noise_std=clip_norm, ahead=0)
    given_ = torch.tensor(rows, dtype=torch.float64)
    clipped = clip(given_, clip_norm)
    limit = (Fraction(clip_norm) / Fraction(noise.grid)) ** 2
    for arrived in (given_, clipped):
        assert all(sum(n * n for n in row) <= limit for row in noise._on_grid(arrived).tolist())
    for row, cut in zip(clipped.tolist(), noise._on_grid(clipped).tolist(), strict=True):
        for value, n in zip(row, cut, strict=True):
            assert abs(n) * noise.grid <= abs(value)
            # Clipping twice may shave rounding errors off a value that lies on the grid.
            assert abs(value) - abs(n) * noise.grid <= noise.grid * (1 + 1e-6)


def test_a_row_just_above_the_clip_does_not_pass() -> None:
    """A norm of C and one step more is possible only if clipping were wrong; it counts as 0."""
    noise = seeded(1.0, 1.0, 1)
    noise._norm_limit -= 1
    assert noise._on_grid(torch.tensor([[1.0, 0.0], [0.5, 0.5]])).tolist()[0] == [0, 0]
    assert noise._on_grid(torch.tensor([[0.5, 0.5]])).tolist() == [[2**23, 2**23]]


def test_sums_are_exact_integers() -> None:
    """The released sum less the noise is the sum of integers, exactly, in any order of rows."""
    rows = torch.from_numpy(np.random.default_rng(2).normal(size=(1000, 5))) * 3
    one, other = seeded(2.0, 5.0, 3), seeded(2.0, 5.0, 3)
    released = one.sum(0, rows)
    assert torch.equal(released, other.sum(0, rows.flip(0)))
    cut = np.trunc(clip(clip(rows, 2.0), 2.0).numpy() / one.grid).astype(int)
    drawn = seeded(2.0, 5.0, 3)._pool.take(5)
    expected = [sum(column) + int(n) for column, n in zip(cut.T.tolist(), drawn, strict=True)]
    assert steps(one, released) == expected


def test_shapes() -> None:
    noise = seeded(1.0, 1.0, 4)
    ones = torch.ones(7, dtype=torch.float64)
    assert noise.sum(0, ones).shape == (1,)
    assert noise.sum(1, ones.view(7, 1)).shape == (1,)
    assert noise.sum(2, ones.view(7, 1).expand(7, 3)).shape == (3,)
    assert noise.sum(3, torch.zeros(0, 3)).shape == (3,)  # an empty sample is noised as well
    assert noise.sum(4, torch.zeros(0)).shape == (1,)
    assert noise.each(5, ones.view(7, 1).expand(7, 3)).shape == (7, 3)
    assert noise.each(6, ones).shape == (7,)
    assert noise.onto(7, torch.zeros(10, dtype=torch.float32)).shape == (10,)
    assert {r.dtype for r in (noise.sum(8, ones), noise.onto(9, torch.zeros(2)))} == {torch.float64}


def test_the_noise_is_normal_of_the_stated_size() -> None:
    """Kolmogorov–Smirnov on 20,000 numbers; the grid moves the law by 1/s = 1e-8.

    A tenth more moves it by 0.024, 3.4 times the distance that 20,000 numbers reach by chance.
    """
    for operation in ["sum", "each", "onto"]:
        noise = seeded(1.0, 7.0, 5)
        zeros = torch.zeros(20_000, dtype=torch.float64)
        rows = zeros.view(1, -1) if operation == "sum" else zeros.view(-1, 1)
        released = getattr(noise, operation)(0, rows).flatten().numpy()
        assert stats.kstest(released / noise.noise_std, "norm").pvalue > 1e-4
        assert stats.kstest(released / (noise.noise_std * 1.1), "norm").pvalue < 1e-4


def test_rows_have_noise_of_their_own() -> None:
    noise = seeded(1.0, 1.0, 6)
    released = noise.each(0, torch.ones(500, 2, dtype=torch.float64))
    assert len(set(steps(noise, released))) == 1000


@settings(deadline=None, max_examples=examples(40))
@given(
    total=st.lists(st.floats(-1e4, 1e4), min_size=4, max_size=4),
    move=st.lists(st.floats(-1, 1), min_size=4, max_size=4),
    noise_std=st.sampled_from([1.0, 2.0**20]),
)
def test_a_sum_that_comes_ready_moves_by_the_stated_distance(
    total: list[float], move: list[float], noise_std: float
) -> None:
    """Neighbouring sums at most 2C apart end at most 2C + g√d apart; the coarse grid shows it."""
    one = torch.tensor(total, dtype=torch.float64)
    other = one + clip(torch.tensor([move], dtype=torch.float64), 1.0)[0] * 2
    released = [seeded(1.0, noise_std, 7).onto(0, values) for values in (one, other)]
    noise = seeded(1.0, noise_std, 7)
    moved = float((released[0] - released[1]).norm())
    assert moved <= noise.sensitivity_onto(4, error=1e-11)
    assert noise.sensitivity_onto(4) == 2 + 2 * noise.grid


def test_sums_out_of_range_are_cut() -> None:
    noise = seeded(1.0, 1.0, 8)
    total = torch.tensor([math.nan, math.inf, -math.inf, 1e300])
    assert noise.onto(0, total).abs().le(2.0**50 * noise.grid + 10).all()


def test_numbers_are_used_once_and_overwritten() -> None:
    noise = seeded(1.0, 1.0, 9, ahead=100)
    noise.fill()
    ready = noise._pool._ready.copy()
    assert len(set(ready.tolist())) == 100
    taken = noise._pool.take(30)
    assert sorted(taken) == sorted(ready[70:])
    assert not noise._pool._ready[70:].any()
    everything = np.concatenate([taken, *(noise._pool.take(n) for n in (1, 60, 20, 500, 3))])
    assert len(set(everything.tolist())) == everything.size


def test_the_pool_changes_no_law() -> None:
    """Filled or not, asked for few or many: always fresh numbers of the right size."""
    for ahead in [0, 1, 64]:
        noise = seeded(1.0, 3000.0, 10, ahead=ahead)  # 2²⁹ steps and more: no two numbers alike
        parts = []
        for count in [1, 5, 100, 0, 64, 65] * 15:
            parts.append(noise.onto(0, torch.zeros(count)))
            noise.fill()
        numbers = torch.cat(parts).numpy()
        assert len(set(numbers.tolist())) == numbers.size
        assert stats.kstest(numbers / noise.noise_std, "norm").pvalue > 1e-4


def test_filling_waits_until_half_is_gone() -> None:
    noise = seeded(1.0, 1.0, 11, ahead=10)
    noise.fill()
    for left, after in ((6, 6), (5, 5), (4, 10)):
        noise._pool.take(noise._pool._left - left)
        noise.fill()
        assert noise._pool._left == after


def test_threads_share_nothing() -> None:
    noise = SecureNoise(clip_norm=1.0, noise_std=1.0, ahead=50)

    def work(_: int) -> list[tuple[int, ...]]:
        taken = []
        for _ in range(50):
            taken.append(tuple(noise._pool.take(7).tolist()))
            noise.fill()
        return taken

    with ThreadPoolExecutor(4) as threads:
        runs = [run for taken in threads.map(work, range(4)) for run in taken]
    assert [len(run) for run in runs] == [7] * 4 * 50
    # Among 1,400 numbers over 2²⁴ steps two may be alike by chance, but no seven of them.
    assert len(set(runs)) == len(runs)


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("locked", [False, True])
def test_a_forked_process_shares_no_noise(locked: bool) -> None:
    """Even if a thread of the parent was at the pool at that moment."""
    noise = SecureNoise(clip_norm=1.0, noise_std=1000.0, ahead=64)
    noise.fill()
    lock = noise._pool._lock
    read, write = os.pipe()
    if locked:
        lock.acquire()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads elsewhere in this process
        warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)  # JAX says it too
        child = os.fork()
    if child == 0:
        try:
            os.write(write, noise._pool.take(32).tobytes())
        finally:
            os._exit(0)
    os.close(write)
    if locked:
        lock.release()
    with os.fdopen(read, "rb") as pipe:
        theirs = np.frombuffer(pipe.read(), np.int64)
    os.waitpid(child, 0)
    ours = noise._pool.take(64)
    assert theirs.size == 32
    assert not np.isin(theirs, ours).any()


def test_noise_is_never_written_down() -> None:
    noise = seeded(1.0, 1.0, 12, ahead=5)
    for write in (pickle.dumps, copy.deepcopy):
        refused(write, TypeError, write, noise, match="never written down")
    assert not hasattr(noise, "state")
    # What clears pools after a fork does not keep them.
    pool = weakref.ref(noise._pool)
    del noise
    gc.collect()
    assert pool() is None


def test_what_is_charged() -> None:
    noise = SecureNoise(clip_norm=5.0, noise_std=50.0)
    assert noise.sensitivity == 10.0
    assert noise.correction(700).parts == ((700, noise.grid_std),)
    mu = noise.sensitivity / 50.0 * math.sqrt(700)
    epsilon = noise.correction(700).epsilon(lambda delta: epsilon_of(mu, delta), 1e-5)
    assert 0 < epsilon - epsilon_of(mu, 1e-5) < 1e-5


def test_wrong_arguments() -> None:
    for arguments, named in [
        ({"clip_norm": 0.0, "noise_std": 1.0}, "privacy.clip is 0"),
        ({"clip_norm": 1.0, "noise_std": math.inf}, "privacy.noise_std is inf"),
        ({"clip_norm": 1.0, "noise_std": 1.0, "ahead": -1}, "numbers drawn ahead is -1"),
    ]:
        refused(named, ConfigError, SecureNoise, match=named, **arguments)
