"""A large stack evaluated along an unheld direction equals the plain ways, and moves nothing."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor, nn

from vertizo.models import blockwise
from vertizo.models.linear_stack import LinearStack
from vertizo.models.torch import wrap
from vertizo.zeroth_order import estimators
from vertizo.zeroth_order.directions import KEEP_UP_TO, LAWS, Direction
from vertizo.zeroth_order.estimators import at_once, by_blocks, in_place, outputs

SPREAD = [law for law in LAWS if law != "coordinate"]
OFFSETS = [(1e-2, -1e-2), (0.0, 1e-2), (1e-2,), (1e-2, 0.0, -3e-2)]


def three_layers() -> nn.Module:
    return nn.Sequential(
        nn.Linear(300, 500),
        nn.ReLU(),
        nn.Linear(500, 400, bias=False),
        nn.ReLU(),
        nn.Linear(400, 7),
    )


def one_layer() -> nn.Module:
    return nn.Linear(700, 300)


def flattening() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(6 * 50, 400), nn.ReLU(), nn.Linear(400, 300))


def made(module: nn.Module) -> LinearStack:
    model = wrap(module)
    assert isinstance(model, LinearStack)
    return model


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def test_equals_the_plain_ways() -> None:
    for law, offsets, (make, shape) in product(
        SPREAD,
        OFFSETS,
        [
            (three_layers, (5, 300)),
            (one_layer, (5, 700)),
            (one_layer, (5, 3, 700)),
            (flattening, (5, 6, 50)),
        ],
    ):
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


def forbidden(*_: object) -> Tensor:
    raise AssertionError("another way was meant")


def large() -> LinearStack:
    model = made(nn.Sequential(nn.Linear(1000, 1100), nn.ReLU(), nn.Linear(1100, 3)))
    assert model.parameters.numel() > KEEP_UP_TO
    return model


def test_large_stacks_take_this_way(monkeypatch: pytest.MonkeyPatch) -> None:
    model = large()
    monkeypatch.setattr(estimators, "in_place", forbidden)
    monkeypatch.setattr(estimators, "at_once", forbidden)
    direction = Direction("scaled-sphere", model.parameters.numel(), 3, keep=False)
    assert outputs(model, torch.randn(4, 1000), direction, (1e-3, -1e-3)).shape == (2, 4, 3)


def test_large_batches_and_single_numbers_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    model = large()
    monkeypatch.setattr(estimators, "by_blocks", forbidden)
    d = model.parameters.numel()
    most = d // (blockwise.SPARE * 1103)
    assert blockwise.fits(model, torch.zeros(most, 1000), 2)
    assert not blockwise.fits(model, torch.zeros(most + 1, 1000), 2)
    inputs = torch.randn(most + 1, 1000)
    outputs(model, inputs, Direction("gaussian", d, 3, keep=False), (1e-3, -1e-3))
    outputs(model, inputs[:2], Direction("coordinate", d, 3, keep=False), (1e-3, -1e-3))
