"""Bounds and shapes on receipt."""

from __future__ import annotations

import math

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vertizo.party.checks import is_bounded, mended


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(
    values=st.lists(st.floats(width=32), max_size=9),
    bound=st.sampled_from([0.5, 1.0, 1000.0, 1e30]),
)
@example(values=[1e30, -1e30], bound=1e30)
@example(values=[3e38, 1.0], bound=1.0)
@example(values=[math.inf], bound=1e30)
@example(values=[-math.inf, math.nan], bound=1e30)
def test_exactly_what_is_within_is_bounded(values: list[float], bound: float) -> None:
    array = torch.tensor(values, dtype=torch.float32)
    within = all(abs(value) <= torch.tensor(bound).item() for value in array.tolist())
    assert is_bounded(array, bound) == within
    fit = mended(array, bound)
    assert is_bounded(fit, bound)
    assert not within or torch.equal(fit, array)


def test_a_bound_beyond_float32_still_refuses_infinity() -> None:
    """A norm may be far beyond the bound where values are not."""
    assert is_bounded(torch.full((64, 32), 9.9), 10.0)
    assert is_bounded(torch.tensor([3e38]), 1e300)
    assert not is_bounded(torch.tensor([math.inf]), 1e300)
    assert mended(torch.tensor([math.nan, -9.0]), 5.0).tolist() == [0.0, -5.0]
