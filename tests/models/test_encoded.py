"""A server model with an encoder equals one module of the same weights, by autograd."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import product
from unittest.mock import Mock

import pytest
import torch
from tests.autograd import gradients, normal, own_norms, record_norms
from torch import Tensor, nn

from vertizo.models.base import DifferentiableModel, Points
from vertizo.models.encoded import EncodedModel

WIDTH, CLASSES, BATCH = 6, 3, 7
SHIFTS = [0, 1, 3]
Maker = Callable[[int], nn.Module]


def top(activation: nn.Module) -> Maker:
    return lambda encoded: nn.Sequential(
        nn.Linear(WIDTH + encoded, 5), activation, nn.Linear(5, CLASSES)
    )


tanh_top, stack_top, TOKENS = top(nn.Tanh()), top(nn.ReLU()), (3,)
KINDS: dict[str, tuple[Maker, Callable[[], nn.Module], tuple[int, ...]]] = {
    "closed forms": (stack_top, lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU()), (4,)),
    "autograd above": (tanh_top, lambda: nn.Linear(4, 2), (4,)),
    "autograd below": (stack_top, lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh()), (4,)),
    "images": (tanh_top, lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh()), (1, 4, 5)),
    "tokens": (
        stack_top,
        lambda: nn.Sequential(nn.Embedding(10, 2), nn.Flatten(), nn.Linear(6, 2)),
        TOKENS,
    ),
}


def dtype_of(shape: tuple[int, ...]) -> torch.dtype:
    return torch.int64 if shape == TOKENS else torch.float32


class Whole(nn.Module):
    """The same in one module."""

    def __init__(self, top: nn.Module, encoder: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.top, self.encoder, self.shape = top, encoder, shape

    def forward(self, rows: Tensor) -> Tensor:
        inputs = rows[:, WIDTH:].reshape(len(rows), *self.shape)
        inputs = inputs.long() if self.shape == TOKENS else inputs
        own = self.encoder(inputs).flatten(1)
        return self.top(torch.cat([rows[:, :WIDTH], own], 1))

    def flat(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.parameters())


def pairs() -> Iterator[tuple[str, Whole, EncodedModel]]:
    """Modules, and the models over copies of their parts."""
    for kind, (make_top, make_encoder, shape) in KINDS.items():
        torch.manual_seed(3)
        encoder = make_encoder()
        size = encoder(torch.zeros(1, *shape, dtype=dtype_of(shape))).numel()
        top = make_top(size)
        asked = Mock(return_value=copy.deepcopy(top))
        model = EncodedModel(asked, copy.deepcopy(encoder), WIDTH, shape, dtype_of(shape))
        asked.assert_called_once_with(size)
        yield kind, Whole(top, encoder, shape), model


def rows_for(whole: Whole, batch: int = BATCH) -> Tensor:
    own = torch.Size(whole.shape).numel()
    rows = normal(1, batch, WIDTH + own)
    if dtype_of(whole.shape) == torch.int64:
        rows[:, WIDTH:] = (3 * rows[:, WIDTH:]).round().clamp(-4, 4) + 4
    return rows


def points_for(whole: Whole, shifts: int) -> Points:
    """The rows, and further points that move three columns of the embeddings."""
    moved = normal(2, shifts, BATCH, 3)
    return Points(rows_for(whole), ((2, moved),) if shifts else ())


def close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-5)


def test_it_says_what_one_module_says() -> None:
    """Outputs at every point; at the last gradients of the parameters, the encoder's last, of the
    embeddings alone, and the norms of each record's own."""
    for shifts, (kind, whole, model) in product(SHIFTS, pairs()):
        case, points = (shifts, kind), points_for(whole, shifts)
        assert isinstance(model, DifferentiableModel), case
        assert torch.equal(model.parameters, whole.flat().detach()), case
        for batch in (1, 2, BATCH):
            rows = rows_for(whole, batch)
            assert close(model(rows), whole(rows).detach()), case
            assert not model(rows).requires_grad, case
        outputs, pullback = model.forward(points)
        parts = [points.changed()] if shifts else []
        assert len(outputs) == len(points) * BATCH, case
        assert close(outputs, whole(torch.cat([*parts, points.rows])).detach()), case
        for part in whole.parameters():
            part.requires_grad_(True)
        for seed in (4, 5):  # a pullback may be used more than once
            weights = normal(seed, BATCH, CLASSES)
            expected, at_rows = gradients(whole, points.rows, weights)
            assert close(pullback(weights), expected), case
            assert close(pullback.inputs(weights), at_rows[:, :WIDTH]), case
            assert float(expected[-4:].abs().max()) > 0, case  # the encoder's too
        norms = own_norms(whole, points.rows, weights)
        assert torch.allclose(record_norms(pullback, weights), norms, rtol=1e-4, atol=1e-5), case


def test_the_order_of_both_gradients_does_not_matter() -> None:
    """Though each may be a buffer that the next call overwrites."""
    for kind, whole, model in pairs():
        weights, points = torch.ones(BATCH, CLASSES), points_for(whole, 1)
        _, first = model.forward(points)
        inputs, own = first.inputs(weights).clone(), first(weights).clone()
        _, second = model.forward(points)
        assert torch.equal(second(weights), own), kind
        assert torch.equal(second.inputs(weights), inputs), kind


def test_both_parts_live_in_one_vector() -> None:
    """A change of the vector is a change of the model, wherever it is; so is a direction."""
    for kind, whole, model in pairs():
        rows, before = rows_for(whole), model.parameters.clone()
        direction = normal(6, before.numel())

        def expected(vector: Tensor, whole: Whole = whole, rows: Tensor = rows) -> Tensor:
            nn.utils.vector_to_parameters(vector.clone(), whole.parameters())
            return whole(rows).detach()

        for offsets in [(0.1, -0.1), (0.0, 0.3), (1.0,)]:
            found = model.along(direction, offsets, rows)
            assert torch.equal(model.parameters, before), kind
            assert found.shape == (len(offsets), BATCH, CLASSES), kind
            for offset, outputs in zip(offsets, found, strict=True):
                assert close(outputs, expected(before + offset * direction)), kind
        top = sum(part.numel() for part in whole.top.parameters())
        for place in (slice(0, top), slice(top, None)):
            said = model(rows)
            model.parameters[place] += 0.1
            assert not torch.allclose(model(rows), said), kind
            assert close(model(rows), expected(model.parameters)), kind


def test_an_error_puts_the_parameters_back_and_a_record_decides_its_own_row_alone() -> None:
    for kind, whole, model in pairs():
        before, rows = model.parameters.clone(), rows_for(whole)
        with pytest.raises(RuntimeError):
            model.along(torch.ones_like(before), (0.5,), rows[:, :-1])
        assert torch.equal(model.parameters, before), kind
        changed = rows.clone()
        changed[2, WIDTH:] += 1
        moved = (model(changed) - model(rows)).abs().amax(1) > 1e-6
        assert moved.tolist() == [n == 2 for n in range(BATCH)], kind


def test_making_it_draws_nothing() -> None:
    """The encoder is asked for its width without touching a generator, nor is it trained by it."""
    torch.manual_seed(0)
    encoder, top = nn.Linear(4, 2), tanh_top(2)
    before, weights = torch.get_rng_state(), encoder.weight.clone()
    EncodedModel(lambda _: top, encoder, WIDTH, (4,))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(encoder.weight, weights)


def test_a_frozen_encoder_stays_and_is_no_part_of_the_vector() -> None:
    torch.manual_seed(0)
    encoder, top = nn.Sequential(nn.Linear(4, 2), nn.Tanh()).requires_grad_(False), tanh_top(2)
    size = sum(part.numel() for part in top.parameters())
    model = EncodedModel(lambda _: top, encoder, WIDTH, (4,))
    assert model.parameters.numel() == size
    rows = torch.randn(BATCH, WIDTH + 4)
    outputs, pullback = model.forward(Points(rows))
    assert torch.equal(outputs, model(rows))
    slopes = torch.ones_like(outputs)
    gradient = pullback(slopes)
    assert gradient.shape == (size,)
    each = pullback.record_gradients(slopes, slice(0, BATCH))
    assert torch.allclose(each.total(torch.ones(BATCH).double()).float(), gradient, atol=1e-4)
    assert pullback.inputs(slopes).shape == (BATCH, WIDTH)
    other = EncodedModel(lambda _: tanh_top(2), copy.deepcopy(encoder), WIDTH, (4,))
    before = encoder[0].weight.clone()
    with torch.no_grad():
        encoder[0].weight.mul_(2)
    other.load(model.state())
    assert torch.equal(other(rows), model(rows))
    assert torch.equal(encoder[0].weight, 2 * before)
