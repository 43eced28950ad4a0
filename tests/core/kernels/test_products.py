"""The compiled products equal those of PyTorch, and what is beside a row never shows in it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from tests.refusals import refused

from vertizo.core import kernels
from vertizo.core.kernels import plain_products
from vertizo.models.linear.linear_stack import EVERY

RNG = np.random.default_rng(7)


@pytest.fixture(autouse=True)
def same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of these tests a worker has."""
    monkeypatch.setattr(sys.modules[__name__], "RNG", np.random.default_rng(7))


COMPILED = kernels.affine is not plain_products.affine
LANES = [4, 8, 16]
SIZES = [
    *((1, 1, 1), (7, 5, 3), (64, 392, 64), (13, 130, 200), (33, 17, 66), (200, 40, 10)),
    (9, 256, 31),
]
"""Rows, inputs, outputs."""


def numbers(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.fixture(params=["plain", *LANES])
def way(request: pytest.FixtureRequest) -> Iterator[Any]:
    """PyTorch's, and the compiled ones for every kind of processor that this one is."""
    if request.param == "plain":
        yield plain_products
        return
    if not COMPILED:
        pytest.skip("the package was installed without a compiler")
    if kernels.lanes(request.param) != request.param:
        kernels.lanes()
        pytest.skip("this processor has no vectors of so many numbers")
    yield kernels
    kernels.lanes()


class Case:
    """A layer at ``first`` of a flat vector, and all that is near it."""

    def __init__(self, size: tuple[int, int, int], bias: int) -> None:
        self.rows, self.inputs, self.outputs = size
        self.first, self.bias = 5, bias
        length = self.first + self.outputs * (self.inputs + bias) + 3
        self.flat, self.direction = numbers(length), numbers(length + 2)
        self.x = self.of(self.inputs)

    def of(self, columns: int, *points: int) -> Any:
        return numbers(*points, self.rows, columns)

    def layer(self, flat: Any) -> tuple[Any, Any]:
        """W and b in float64, [outputs, inputs] and [1, outputs]."""
        stop = self.first + self.outputs * self.inputs
        weight = flat[self.first : stop].astype(np.float64).reshape(self.outputs, self.inputs)
        return weight, flat[None, stop : stop + self.outputs] if self.bias else 0.0


def cases(more: tuple[int, ...] = (0,)) -> Iterator[tuple[Case, int, tuple[Any, ...]]]:
    """Layers of all sizes, with and without a bias; one of ``more``; and how this one is named."""
    for size, bias, other in product(SIZES, (1, 0), more):
        yield Case(size, bias), other, (size, bias, other)


def close(found: Any, expected: Any) -> bool:
    return np.allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_affine(way: Any) -> None:
    for case, relu, name in cases((0, 1)):
        weight, offset = case.layer(case.flat)
        out = case.of(case.outputs)
        way.affine(out, case.x, case.flat, case.first, case.bias, relu, 1)
        expected = case.x @ weight.T + offset
        assert close(out, np.maximum(expected, 0) if relu else expected), name
        x, out = case.of(case.inputs, 2), case.of(case.outputs, 2)  # several points
        way.affine(out, x, case.flat, case.first, case.bias, 0, 1)
        assert close(out, x @ weight.T + offset), name


def test_along(way: Any) -> None:
    for case, _, name in cases():
        steps = numbers(3)
        steps[1] = 0
        (weight, offset), (along, along_offset) = case.layer(case.flat), case.layer(case.direction)
        by = steps[:, None, None].astype(np.float64)
        shifted = np.swapaxes(weight + by * along, 1, 2), offset + by * along_offset
        x, out = case.of(case.inputs, 3), case.of(case.outputs, 3)
        own, layer = (case.flat, case.direction, steps), (case.first, case.bias)
        way.along(out, case.x, *own, EVERY, *layer, 1, 1)
        assert close(out, np.maximum(case.x @ shifted[0] + shifted[1], 0)), name
        table, ids = numbers(50, case.inputs), RNG.integers(0, 50, case.rows)
        selected = case.of(case.outputs, 3)
        way.along(selected, table, *own, ids, *layer, 0, 1)
        way.along(out, table[ids], *own, EVERY, *layer, 0, 1)
        assert np.array_equal(selected, out), name
        way.along(out, x, *own, EVERY, *layer, 0, 1)  # each point's own
        assert close(out, x @ shifted[0] + shifted[1]), name


def test_moved_columns(way: Any) -> None:
    for case, kind, name in cases((0, 1, 2, 3)):
        at_front, relu = divmod(kind, 2)
        columns = max(1, case.inputs // 2)
        start = 0 if at_front else case.inputs - columns
        weight, offset = case.layer(case.flat)
        shifts, out = case.of(columns, 2), case.of(case.outputs, 3)
        way.moved(out, case.x, shifts, case.flat, start, case.first, case.bias, relu, 1)
        x = np.repeat(case.x[None].astype(np.float64), 3, 0)
        x[:2, :, start : start + columns] += shifts
        expected = x @ weight.T + offset
        assert close(out, np.maximum(expected, 0) if relu else expected), name
        common, raised = case.of(case.outputs), case.of(case.outputs, 2)
        way.affine(common, case.x, case.flat, case.first, case.bias, 0, 1)
        way.raised(raised, shifts, common, case.flat, case.first, start, case.inputs, relu, 1)
        assert close(raised, out[:2]), name


def test_backwards(way: Any) -> None:
    for case, masked, name in cases((0, 1)):
        weight, _ = case.layer(case.flat)
        gradient, out, kept = case.of(case.outputs), case.of(case.inputs), case.of(case.inputs)
        kept[0, 0] = np.nan  # not positive
        way.back(out, gradient, case.flat, kept, case.first, masked, 1)
        expected = gradient @ weight
        assert close(out, np.where(kept > 0, expected, 0) if masked else expected), name
        written = np.zeros_like(case.flat)
        way.outer(written, gradient, case.x, case.first, case.bias, 1)
        found, sums = case.layer(written)
        assert close(found, gradient.T @ case.x.astype(np.float64)), name
        if case.bias:
            assert close(sums[0], gradient.sum(0, dtype=np.float64)), name
        assert not written[: case.first].any(), name
        assert not written[-3:].any(), name


def test_neither_neighbours_nor_places_nor_threads_show(way: Any) -> None:
    """A row's numbers are those it has alone, bit for bit; of PyTorch nobody says so."""
    if way is plain_products:
        return
    case = Case((391, 300, 150), 1)
    own, out = (case.flat, case.first, 1, 0), case.of(case.outputs)
    kernels.affine(out, case.x, *own, 1)
    shared = np.empty_like(out)
    kernels.affine(shared, case.x, *own, 5)
    assert np.array_equal(out, shared)
    for row in (0, 6, 200, 390):
        alone, x = np.empty((1, 150), np.float32), np.empty(301, np.float32)[1:].reshape(1, -1)
        x[:] = case.x[row]
        kernels.affine(alone, x, case.flat, case.first, 1, 0, 1)
        assert np.array_equal(alone[0], out[row])
    gradients = np.zeros_like(case.flat), np.zeros_like(case.flat)
    kernels.outer(gradients[0], out, case.x, case.first, 1, 1)
    kernels.outer(gradients[1], out, case.x, case.first, 1, 3)
    assert np.array_equal(*gradients)


def test_not_finite_numbers_stay_in_their_rows(way: Any) -> None:
    case = Case((20, 30, 70), 1)
    case.x[3, 4], case.x[9, 0] = np.nan, np.inf
    out = case.of(case.outputs)
    way.affine(out, case.x, case.flat, case.first, 1, 1, 1)
    assert np.isnan(out[3]).all()
    rest = np.delete(out, [3, 9], 0)
    assert np.isfinite(rest).all()


def test_arrays_that_do_not_fit_are_refused(way: Any) -> None:
    flat, x, out = numbers(20), numbers(4, 3), numbers(4, 5)
    three, steps, masks = numbers(2, 4, 5), numbers(2), numbers(4, 3)
    bad: list[Any] = [
        ("affine", out, x, flat, 6, 0, 0, 1),  # beyond the end
        ("affine", out, x, flat, 1, 1, 0, 1),  # its bias does
        ("affine", out, x, flat, -1, 0, 0, 1),
        ("affine", numbers(3, 5), x, flat, 0, 0, 0, 1),
        ("affine", out, x, flat.reshape(2, 10), 0, 0, 0, 1),
        ("along", three, x, flat, flat[:14], steps, EVERY, 0, 0, 0, 1),
        ("along", three, x, flat, flat, numbers(3), EVERY, 0, 0, 0, 1),
        ("along", three, x, flat, flat, steps, np.array([0, 1, 2, 4]), 0, 0, 0, 1),
        ("along", three, x, flat, flat, steps, np.array([0, 1, 2]), 0, 0, 0, 1),
        ("along", three, x, flat, flat, steps, np.array([0, 1, -1, 2]), 0, 0, 0, 1),
        ("along", three, numbers(3, 4, 3), flat, flat, steps, EVERY, 0, 0, 0, 1),
        ("raised", three, numbers(2, 4, 2), out, flat, 0, 2, 3, 0, 1),
        ("moved", three, x, numbers(1, 4, 2), flat, 2, 0, 0, 0, 1),
        ("back", x, out, flat, numbers(4, 2), 0, 1, 1),
        ("back", x, out, flat, masks, 6, 1, 1),
        ("outer", flat, numbers(3, 5), x, 0, 0, 1),
        ("outer", flat, out, x, 3, 1, 1),
    ]
    for index, (name, *arguments) in enumerate(bad):
        errors = (ValueError, BufferError, IndexError, RuntimeError)
        refused(f"{name} of {index}", errors, getattr(way, name), *arguments)
