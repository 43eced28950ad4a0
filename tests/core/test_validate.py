"""Named checks: what they let through, and what they say about the rest."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vertizo.core import validate
from vertizo.core.errors import ConfigError, NonFiniteError, ShapeError


def test_numbers() -> None:
    for check, good, bad in (
        (validate.positive, [1e-300, 7], [0, -1, -1e-300]),
        (validate.non_negative, [0, 2.5], [-1e-300, -4]),
        (validate.fraction, [1e-9, 1 - 1e-9], [0, 1, -0.5, 2]),
    ):
        for value in good:
            assert check("rate", value) == value
        for value in (*bad, math.nan, math.inf, -math.inf):
            with pytest.raises(ConfigError, match=f"^rate is {value}; it must"):
                check("rate", value)


def test_shape() -> None:
    array = torch.zeros(2, 3)
    assert validate.shape("embeddings", array, (2, 3)) is array
    for other in [(3, 2), (2,), (2, 3, 1), (6,)]:
        with pytest.raises(ShapeError, match=r"^embeddings has shape \(2, 3\)"):
            validate.shape("embeddings", array, other)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(
    values=st.lists(st.floats(width=32), max_size=9),
    bound=st.sampled_from([0.5, 1.0, 1000.0, 1e30]),
)
@example(values=[1e30, -1e30], bound=1e30)
@example(values=[3e38, 1.0], bound=1.0)
@example(values=[math.inf], bound=1e30)
@example(values=[-math.inf, math.nan], bound=1e30)
def test_bounded_accepts_exactly_what_is_within(values: list[float], bound: float) -> None:
    array = torch.tensor(values, dtype=torch.float32)
    if all(abs(value) <= torch.tensor(bound).item() for value in array.tolist()):
        assert validate.bounded("embeddings", array, bound) is array
    else:
        with pytest.raises(NonFiniteError, match=r"^values of embeddings are NaN or outside"):
            validate.bounded("embeddings", array, bound)


def test_bounded_sees_one_value_anywhere() -> None:
    for bad, position in product((math.nan, math.inf, -math.inf, 10.1, -10.1), (0, 64 * 32 - 1)):
        array = torch.full((64, 32), 9.9)  # the norm is far beyond the bound, the values are not
        assert validate.bounded("h", array, 10.0) is array
        array.view(-1)[position] = bad
        with pytest.raises(NonFiniteError):
            validate.bounded("h", array, 10.0)
