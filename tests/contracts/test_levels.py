"""Images that take a byte for each number on a card are the float32 images, bit for bit."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests import federations
from tests.cards import DEVICES, as_on_a_card
from tests.graphs import as_with_graphs
from tests.rows import each
from torch import Tensor

from vertizo.core.arrays import levels
from vertizo.core.arrays.levels import level_table
from vertizo.data.datasets.files import scaled
from vertizo.run.build import placement
from vertizo.run.loop.federation import Federation

CPU = torch.device("cpu")


def images(records: int, *sides: int) -> Tensor:
    """Scaled images of 8 bits, with all levels where there are as many numbers."""
    channels = sides[0]
    pixels = torch.arange(records * torch.Size(sides).numel()).mul(77).remainder(256)
    pixels = pixels.to(torch.uint8).view(records, *sides)
    means, spreads = torch.rand(2, channels, generator=torch.Generator().manual_seed(1))
    return scaled(pixels.numpy(), means.tolist(), (spreads + 0.1).tolist())


def bits(numbers: Tensor) -> Tensor:
    return numbers.cpu().contiguous().view(torch.int32)


@pytest.mark.parametrize("device", DEVICES)
@each("records, sides", [(40, (3, 8, 6)), (1, (1, 1, 1)), (300, (1, 4, 4)), (2, (5, 32, 32))])
def test_rows_are_the_same_bits(
    records: int, sides: tuple[int, ...], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any number of channels and records, however few of them are looked at at once."""
    table = images(records, *sides)
    for chunk in (levels.CHUNK, 1, table[0].nbytes * 7):
        monkeypatch.setattr(levels, "CHUNK", chunk)
        kept = level_table(table, torch.device(device))
        assert kept is not None
        assert kept.levels.nbytes * 4 == table.nbytes
        ids = torch.randint(records, (50,))
        assert torch.equal(bits(kept.rows(ids)), bits(table[ids]))


def test_zeros_keep_their_signs_and_what_is_no_number_its_bits() -> None:
    odd = torch.tensor([0.0, -0.0, float("nan"), -float("nan"), float("inf"), -float("inf"), 1e-45])
    table = odd.repeat(4).view(7, 1, 2, 2)
    kept = level_table(table, CPU)
    assert kept is not None
    assert torch.equal(bits(kept.rows(torch.arange(7))), bits(table))


def test_other_features_are_kept_as_they_are() -> None:
    """One number too many in one channel, in the last image; tables; IDs of tokens; none at all."""
    table = torch.arange(256.0).repeat(2, 1).view(2, 1, 16, 16).repeat(3, 2, 1, 1)
    assert level_table(table, CPU) is not None
    table[-1, -1, -1, -1] = 256.0
    assert level_table(table, CPU) is None
    assert level_table(torch.zeros(5, 4), CPU) is None
    assert level_table(torch.zeros(5, 1, 2, 2, dtype=torch.int64), CPU) is None
    assert level_table(torch.zeros(0, 1, 2, 2), CPU) is None


OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("dpzv", {}),
    ("dpzv", {"client.crop": 1, "client.flip": True}),
    ("vafl", {}),
    ("cascaded", {"client.crop": 1}),
    ("czofo", {}),
]


@each("method, options", OPTIONS, gate=OPTIONS[:3])
@each("kind", (as_on_a_card, as_with_graphs))
def test_rounds_read_them(
    method: str, options: dict[str, Any], kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing else: the float32 images of these clients are spoilt."""
    whole = federations.data(sides=(2, 4, 4))
    held = [{key: v.mul(8).round().div(8) for key, v in own.items()} for own in whole.features]
    data = replace(whole, features=tuple(held), are_images=True)

    def ran(context: AbstractContextManager[Any], *, spoilt: bool) -> Federation:
        with context:
            made = federations.build(method, None, options, of=data)
            for client in made.clients:
                assert (client.levels is not None) == spoilt
                if spoilt:
                    train = torch.full_like(client.features["train"], torch.nan)
                    client.features = {**client.features, "train": train}
            made.start(upload_table=False)
            federations.go_on(made)
        return made

    wanted = ran(kind(monkeypatch), spoilt=False)
    monkeypatch.setattr(
        placement, "levels_beside", lambda _, train, device: level_table(train, CPU)
    )
    found = ran(kind(monkeypatch), spoilt=True)
    parameters = [model.parameters for made in (wanted, found) for model in made.models]
    assert all(map(torch.equal, parameters[: len(held)], parameters[len(held) :]))
    assert all(bool(numbers.isfinite().all()) for numbers in parameters)
