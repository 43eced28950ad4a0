"""A server model with an encoder equals one module of the same weights, by autograd."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import product
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from vertizo.models.base import DifferentiableModel, Points, Pullback
from vertizo.models.encoded import EncodedModel

WIDTH, CLASSES, BATCH = 6, 3, 7
SHIFTS = [0, 1, 3]
Maker = Callable[[int], nn.Module]


def tanh_top(encoded: int) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH + encoded, 5), nn.Tanh(), nn.Linear(5, CLASSES))


def stack_top(encoded: int) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH + encoded, 5), nn.ReLU(), nn.Linear(5, CLASSES))


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh())


def lookup() -> nn.Module:
    return nn.Sequential(nn.Embedding(10, 2), nn.Flatten(), nn.Linear(6, 2))


TOKENS = (3,)
KINDS: dict[str, tuple[Maker, Callable[[], nn.Module], tuple[int, ...]]] = {
    "closed forms": (stack_top, lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU()), (4,)),
    "autograd above": (tanh_top, lambda: nn.Linear(4, 2), (4,)),
    "autograd below": (stack_top, lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh()), (4,)),
    "images": (tanh_top, convolution, (1, 4, 5)),
    "tokens": (stack_top, lookup, TOKENS),
}


def dtype_of(shape: tuple[int, ...]) -> torch.dtype:
    return torch.int64 if shape == TOKENS else torch.float32


class Whole(nn.Module):
    """The same in one module."""

    def __init__(self, top: nn.Module, encoder: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.top, self.encoder, self.shape = top, encoder, shape

    def forward(self, rows: Tensor) -> Tensor:
        inputs = rows[:, WIDTH:].reshape(len(rows), *self.shape).to(dtype_of(self.shape))
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
    rows = torch.randn(batch, WIDTH + own, generator=torch.Generator().manual_seed(1))
    if dtype_of(whole.shape) == torch.int64:
        rows[:, WIDTH:] = (3 * rows[:, WIDTH:]).round().clamp(-4, 4) + 4
    return rows


def points_for(whole: Whole, shifts: int) -> Points:
    """The rows, and further points that move three columns of the embeddings."""
    generator = torch.Generator().manual_seed(2)
    moved = torch.randn(shifts, BATCH, 3, generator=generator)
    return Points(rows_for(whole), ((2, moved),) if shifts else ())


def close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-5)


def test_it_is_a_model() -> None:
    for kind, whole, model in pairs():
        assert isinstance(model, DifferentiableModel), kind
        assert torch.equal(model.parameters, whole.flat().detach()), kind


def test_outputs() -> None:
    for kind, whole, model in pairs():
        for batch in (1, 2, BATCH):
            rows = rows_for(whole, batch)
            assert close(model(rows), whole(rows).detach()), kind
            assert not model(rows).requires_grad, kind


def test_outputs_at_every_point() -> None:
    for shifts, (kind, whole, model) in product(SHIFTS, pairs()):
        points = points_for(whole, shifts)
        outputs, _ = model.forward(points)
        parts = [points.changed()] if shifts else []
        assert close(outputs, whole(torch.cat([*parts, points.rows])).detach()), (shifts, kind)
        assert len(outputs) == len(points) * BATCH, (shifts, kind)


def test_gradients_at_the_last_point() -> None:
    """With respect to the parameters, those of the encoder last, and to the embeddings alone."""
    for shifts, (kind, whole, model) in product(SHIFTS, pairs()):
        points = points_for(whole, shifts)
        _, pullback = model.forward(points)
        for seed in (4, 5):  # a pullback may be used more than once
            weights = torch.randn(BATCH, CLASSES, generator=torch.Generator().manual_seed(seed))
            rows = points.rows.clone().requires_grad_(True)
            for part in whole.parameters():
                part.requires_grad_(True)
            sources = [*whole.parameters(), rows]
            *parts, at_rows = torch.autograd.grad(whole(rows), sources, weights)
            expected = torch.cat([part.reshape(-1) for part in parts])
            assert close(pullback(weights), expected), (shifts, kind)
            assert close(pullback.inputs(weights), at_rows[:, :WIDTH]), (shifts, kind)
            assert float(expected[-4:].abs().max()) > 0, (shifts, kind)  # the encoder's too


def test_the_order_of_both_gradients_does_not_matter() -> None:
    """Though each may be a buffer that the next call overwrites."""
    for kind, whole, model in pairs():
        weights = torch.ones(BATCH, CLASSES)
        points = points_for(whole, 1)
        _, first = model.forward(points)
        inputs, own = first.inputs(weights).clone(), first(weights).clone()
        _, second = model.forward(points)
        assert torch.equal(second(weights), own), kind
        assert torch.equal(second.inputs(weights), inputs), kind


def test_along_a_direction() -> None:
    for offsets, (kind, whole, model) in product([(0.1, -0.1), (0.0, 0.3), (1.0,)], pairs()):
        before = model.parameters.clone()
        direction = torch.randn(before.numel(), generator=torch.Generator().manual_seed(6))
        rows = rows_for(whole)
        found = model.along(direction, offsets, rows)
        assert torch.equal(model.parameters, before), (offsets, kind)
        assert found.shape == (len(offsets), BATCH, CLASSES), (offsets, kind)
        for offset, outputs in zip(offsets, found, strict=True):
            nn.utils.vector_to_parameters(before + offset * direction, whole.parameters())
            assert close(outputs, whole(rows).detach()), (offsets, kind)


def test_along_puts_the_parameters_back_after_an_error() -> None:
    for kind, whole, model in pairs():
        before = model.parameters.clone()
        with pytest.raises(RuntimeError):
            model.along(torch.ones_like(before), (0.5,), rows_for(whole)[:, :-1])
        assert torch.equal(model.parameters, before), kind


def test_both_parts_live_in_one_vector() -> None:
    """A change of the vector is a change of the model, wherever it is."""
    for kind, whole, model in pairs():
        rows = rows_for(whole)
        top = sum(part.numel() for part in whole.top.parameters())
        for place in (slice(0, top), slice(top, None)):
            before = model(rows)
            model.parameters[place] += 0.1
            assert not torch.allclose(model(rows), before), kind
            nn.utils.vector_to_parameters(model.parameters.clone(), whole.parameters())
            assert close(model(rows), whole(rows).detach()), kind


def test_a_record_decides_its_own_row_alone() -> None:
    for kind, whole, model in pairs():
        rows = rows_for(whole)
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


def record_norms(pullback: Pullback, gradient: Tensor) -> Tensor:
    """Norm of each record's own gradient, float64 [batch]."""
    return pullback.record_gradients(gradient, slice(0, len(gradient))).squares().sqrt()


def test_record_norms_at_the_last_point() -> None:
    """Of all parameters together, those of the encoder among them."""
    for shifts, (kind, whole, model) in product(SHIFTS, pairs()):
        points = points_for(whole, shifts)
        _, pullback = model.forward(points)
        weights = torch.randn(BATCH, CLASSES, generator=torch.Generator().manual_seed(4))
        for part in whole.parameters():
            part.requires_grad_(True)
        expected = []
        for row, weight in zip(points.rows, weights, strict=True):
            parts = torch.autograd.grad(whole(row[None]), list(whole.parameters()), weight[None])
            expected.append(torch.cat([part.reshape(-1) for part in parts]).norm())
        found = record_norms(pullback, weights)
        assert torch.allclose(found, torch.stack(expected).double(), rtol=1e-4, atol=1e-5), (
            shifts,
            kind,
        )


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
