"""Functions of a parameter vector as models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from vertizo.core.errors import ConfigError
from vertizo.models.array import ArrayModel

Array = NDArray[Any]
INPUTS = torch.randn(5, 2, 2, generator=torch.Generator().manual_seed(1))


def linear(w: Array, x: Array) -> Array:
    return x.reshape(len(x), -1) @ w.reshape(4, 3)


def test_outputs_are_the_function_s() -> None:
    """Of parameters that are kept, not copied."""
    w = torch.randn(12)
    model = ArrayModel(linear, w)
    assert model.parameters is w
    for _ in range(2):
        assert torch.allclose(model(INPUTS), INPUTS.flatten(1) @ w.view(4, 3), atol=1e-6)
        w.fill_(1.0)


def test_along_asks_once_for_each_offset_in_order() -> None:
    """With float32 arrays; the parameters come back."""
    asked, seen = [], set()

    def function(w: Array, x: Array) -> Array:
        asked.append(w.copy())
        seen.add((type(w), w.dtype, w.shape, type(x), x.dtype, x.shape))
        return np.full((len(x), 1), w[0])

    model = ArrayModel(function, torch.tensor([1.0, 2.0]))
    found = model.along(torch.tensor([1.0, -1.0]), [0.5, 0.0, -2.0], INPUTS)
    assert np.array_equal(np.stack(asked), [[1.5, 1.5], [1, 2], [-1, 4]])
    assert found[:, 0, 0].tolist() == [1.5, 1.0, -1.0]
    assert model.parameters.tolist() == [1.0, 2.0]
    model(INPUTS)
    float32 = np.dtype("float32")
    assert seen == {(np.ndarray, float32, (2,), np.ndarray, float32, (5, 2, 2))}


def test_results_become_float32() -> None:
    for make in [
        lambda x: np.ones((len(x), 3)),
        lambda x: np.ones((len(x), 3), np.int64),
        lambda x: np.ones((3, len(x))).T,
        lambda x: np.ones((len(x), 6))[:, ::2],
        lambda x: [[1, 1, 1]] * len(x),
    ]:
        found = ArrayModel(lambda w, x, make=make: make(x), torch.zeros(1))(INPUTS)
        assert found.dtype == torch.float32, make
        assert torch.equal(found, torch.ones(5, 3)), make
        assert found.is_contiguous(), make


def test_other_shapes_are_refused() -> None:
    for shape in [(5,), (4, 3), (5, 3, 1), (), (3, 5)]:
        model = ArrayModel(lambda w, x, shape=shape: np.zeros(shape), torch.zeros(1))
        message = "returned shape .* for a batch of 5; it must return"
        with pytest.raises(ConfigError, match=message):
            model(INPUTS)
        with pytest.raises(ConfigError, match=message):
            model.along(torch.ones(1), [0.1], INPUTS)
