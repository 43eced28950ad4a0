"""A large stack evaluated along an unheld direction equals the plain ways, and moves nothing."""

from __future__ import annotations

from itertools import product
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from vertizo.models.linear import blockwise
from vertizo.models.linear.linear_stack import LinearStack
from vertizo.models.torch import wrap
from vertizo.zeroth_order import estimators
from vertizo.zeroth_order.directions import KEEP_UP_TO, LAWS, Direction
from vertizo.zeroth_order.estimators import at_once, by_blocks, in_place, outputs

SPREAD = [law for law in LAWS if law != "coordinate"]
OFFSETS = [(1e-2, -1e-2), (0.0, 1e-2), (1e-2,), (1e-2, 0.0, -3e-2)]


MAKERS = [
    (
        lambda: nn.Sequential(
            nn.Linear(300, 500),
            nn.ReLU(),
            nn.Linear(500, 400, bias=False),
            nn.ReLU(),
            nn.Linear(400, 7),
        ),
        (5, 300),
    ),
    (lambda: nn.Linear(700, 300), (5, 700)),
    (lambda: nn.Linear(700, 300), (5, 3, 700)),
    (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(300, 400), nn.ReLU(), nn.Linear(400, 300)),
        (5, 6, 50),
    ),
]


def made(module: nn.Module) -> LinearStack:
    model = wrap(module)
    assert isinstance(model, LinearStack)
    return model


def test_equals_the_plain_ways() -> None:
    for law, offsets, (make, shape) in product(SPREAD, OFFSETS, MAKERS):
        case = law, offsets, make, shape
        torch.manual_seed(0)
        model, inputs = made(make()), torch.randn(shape)
        before = model.parameters.clone()
        direction = Direction(law, before.numel(), 3, keep=False)
        found = by_blocks(model, inputs, direction, offsets)
        assert torch.equal(model.parameters, before), case
        shifted = in_place(model, inputs, direction, offsets)
        model.parameters.copy_(before)
        held = at_once(model, inputs, direction, offsets)
        assert found.shape == shifted.shape == held.shape, case
        assert torch.allclose(found, shifted, rtol=1e-5, atol=2e-6), case
        assert torch.allclose(found, held, rtol=1e-5, atol=2e-6), case
        plain = model(inputs)
        assert all(
            torch.allclose(row, plain, rtol=1e-5, atol=2e-6) == (offset == 0)
            for row, offset in zip(found, offsets, strict=True)
            if law != "sphere"  # of length 1, which is next to nothing for so many numbers
        ), case


def test_large_stacks_take_this_way_but_not_large_batches_or_single_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = made(nn.Sequential(nn.Linear(1000, 1100), nn.ReLU(), nn.Linear(1100, 3)))
    d = model.parameters.numel()
    assert d > KEEP_UP_TO
    most = d // (blockwise.SPARE * 1103)
    assert blockwise.fits(model, torch.zeros(most, 1000), 2)
    assert not blockwise.fits(model, torch.zeros(most + 1, 1000), 2)
    for ways, law, rows in [
        (("in_place", "at_once"), "scaled-sphere", 4),
        (("by_blocks",), "gaussian", most + 1),
        (("by_blocks",), "coordinate", 2),
    ]:
        with monkeypatch.context() as patch:
            for way in ways:
                patch.setattr(estimators, way, Mock(side_effect=AssertionError("not this way")))
            direction, inputs = Direction(law, d, 3, keep=False), torch.randn(rows, 1000)
            assert outputs(model, inputs, direction, (1e-3, -1e-3)).shape == (2, rows, 3)
