"""ZOO-VFL and Syn-ZOO-VFL against plain PyTorch in float64."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.rows import each
from torch import Tensor

from vertizo.core.randomness import Stream
from vertizo.methods.zoo_vfl import ZooVfl
from vertizo.zeroth_order.directions import Directions

KINDS = [
    ("zoo-vfl", "asynchronous"),
    ("zoo-vfl", "synchronous"),
    ("syn-zoo-vfl", "synchronous"),
]
every_kind = each("method, timing", KINDS)
SMOOTHING = 0.05
LARGE = {"method.smoothing": SMOOTHING, "server.smoothing": SMOOTHING}
RATE = 0.01


def server_directions(law: Any, dimension: int) -> Directions:
    """The server's own, as a federation of seed 0 draws them."""
    return Directions(law, dimension, Stream.from_seed(0).child("server").child("directions"))


@every_kind
@each("form", ["losses", "difference"])
@each("law", ["scaled-sphere", "sphere"])
def test_rounds_by_hand(
    federations: SimpleNamespace, method: str, timing: str, form: str, law: str
) -> None:
    """Replies and the server's forward difference are all of the weights before the step."""
    momentum, nominal, dim = 0.5, 8, federations.DIM
    changes = {
        **LARGE,
        "method.reply": form,
        "server.optimizer.momentum": momentum,
        "server.optimizer.learning_rate": RATE,
        "server.directions": law,
    }
    federation = federations.build(method, timing, changes)
    side, labels = federation.server.side, federation.data.labels["train"]
    size = side.model.parameters.numel()
    widths = [3 * dim, federations.HIDDEN, federations.CLASSES]
    directions = server_directions(law, size)
    velocity = torch.zeros(size, dtype=torch.float64)
    order = [0, 1, 2] if timing == "synchronous" else [2]
    sizes = set()
    for round_ in range(9):
        start = side.model.parameters.double()
        frames = [federations.ask(federation, client) for client in order]
        queries = [federations.query(frame) for frame in frames]
        ids = queries[0].ids
        sizes.add(ids.numel())
        table = side.table.values.clone()
        for query in queries:
            table[ids, dim * query.client : dim * (query.client + 1)] = query.embeddings[0]
        answers = [a for frame in frames for a in federation.server.receive(frame)]
        assert [client for client, _ in answers] == order
        assert torch.equal(side.table.values, table)

        def mean_loss(weights: Tensor, rows: Tensor, ids: Tensor = ids) -> Tensor:
            with torch.no_grad():
                logits = federations.twin(weights, widths)(rows.double())
                return F.cross_entropy(logits, labels[ids], reduction="sum") / nominal

        plain = mean_loss(start, table[ids])
        for query, (_, answer) in zip(queries, answers, strict=True):
            rows = table[ids].clone()
            rows[:, dim * query.client : dim * (query.client + 1)] = query.embeddings[1]
            shifted = mean_loss(start, rows)
            told = federations.reply(answer).values.double()
            if form == "losses":
                assert torch.allclose(told, torch.stack([plain, shifted]), atol=2e-6)
            else:
                assert told.shape == (1,)
                assert float(told) == pytest.approx(float(shifted - plain) / SMOOTHING, abs=3e-5)

        u = torch.zeros(size, dtype=torch.float64)
        direction = directions.draw(round_)
        direction.add_to(u, 1.0)
        slope = (mean_loss(start + SMOOTHING * u, table[ids]) - plain) / SMOOTHING
        factor = size if law == "sphere" else 1
        velocity = momentum * velocity + factor * slope * u
        assert torch.allclose(side.model.parameters.double(), start - RATE * velocity, atol=1e-5)
        assert float(velocity.norm()) > 0.1

        for client, answer in answers:
            before = federation.models[client].parameters.double()
            told = federations.reply(answer).values.double()
            slope = (told[1] - told[0]) / SMOOTHING if form == "losses" else told[0]
            own = Directions(
                "gaussian",
                before.numel(),
                Stream.from_seed(0).child("client", client).child("directions"),
            )
            u = torch.zeros_like(before)
            own.draw(federations.reply(answer).number).add_to(u, 1.0)
            federation.clients[client].tell(answer)
            moved = federation.models[client].parameters.double()
            assert torch.allclose(moved, before - 0.05 * slope * u, atol=1e-5)
        if timing == "asynchronous":
            order = [(round_ * 2) % 3]
    assert sizes == {8, 29 % 8}


@each("method", ["zoo-vfl", "syn-zoo-vfl", "cascaded"])
def test_replies(federations: SimpleNamespace, method: str) -> None:
    """Two losses, which rounding may not touch, or a difference, which is one number."""
    own = federations.config(method).method
    assert own.reply == ("difference" if method == "syn-zoo-vfl" else "losses")
    for form, shape in (("losses", (2,)), ("difference", (1,))):
        chosen = federations.config(method, changes={"method.reply": form}).method
        assert chosen.reply_shape(8, 3) == shape
        assert chosen.reply_is_losses == (form == "losses")
        assert chosen.points == 2
        assert chosen.evaluations_per_query == 1


def test_in_step_zoo_vfl_is_syn_zoo_vfl(federations: SimpleNamespace) -> None:
    """Once both answer in the same form, the same frames and weights, bit by bit."""
    changes = {"server.optimizer.learning_rate": RATE}
    syn, tape = federations.ran("syn-zoo-vfl", changes=changes)
    differences = {**changes, "method.reply": "difference"}
    zoo, other = federations.ran("zoo-vfl", "synchronous", differences)
    assert tape.seen == other.seen
    assert not federations.differences(syn.parameters(), zoo.parameters())


def test_either_reply_tells_a_client_the_same(federations: SimpleNamespace) -> None:
    ends = []
    for form in ("losses", "difference"):
        changes = {**LARGE, "method.reply": form, "server.optimizer.learning_rate": RATE}
        federation, _ = federations.ran("zoo-vfl", changes=changes, rounds=6)
        ends.append(torch.cat([model.parameters for model in federation.models]))
    assert torch.allclose(*ends, atol=1e-4)


def test_the_server_needs_no_gradient(federations: SimpleNamespace) -> None:
    """Its own step takes two losses, one of which it knows already."""
    federation = federations.build("zoo-vfl")
    evaluated = []
    head = federation.server.side.model
    evaluate = head.evaluate

    def without_gradient(*given: Any) -> Any:
        evaluation = evaluate(*given)
        evaluated.append(evaluation.losses)

        def pullback(gradient: Tensor) -> Tensor:
            raise AssertionError("a gradient was asked for")

        return replace(evaluation, _pullback=pullback)

    head.evaluate = without_gradient
    before = head.parameters.clone()
    federations.converse(federation, [0, 1, 2])
    assert [tuple(losses.shape) for losses in evaluated] == [(2, 8)] * 3
    assert federation.server.side.update.evaluations == 1
    assert not torch.equal(head.parameters, before)


@each("method", ["zoo-vfl", "syn-zoo-vfl"])
def test_a_difference_is_clipped_record_by_record(
    federations: SimpleNamespace, method: str
) -> None:
    """On both sides, and divided by the nominal batch size after that."""
    shift = torch.randn(2, 8, federations.DIM, generator=torch.Generator().manual_seed(0))
    found, slopes = {}, torch.empty(0)
    for clip in (None, 0.4):
        noise = {
            "privacy.mechanism": "gaussian",
            "privacy.clip": clip,
            "privacy.noise_std": 1e-9,
        }
        changes = {**LARGE, "method.reply": "difference", **(noise if clip else {})}
        federation = federations.build(method, changes=changes)
        frames = [federations.ask(federation, client) for client in range(3)]
        if method == "zoo-vfl":
            frames = frames[:1]
        query = replace(federations.query(frames[0]), embeddings=shift)
        table = federation.server.side.table.values.clone()
        for frame in frames:
            other = federations.query(frame)
            table[other.ids, 3 * other.client : 3 * other.client + 3] = other.embeddings[0]
        rows = table[query.ids].expand(2, -1, -1).clone()
        rows[..., :3] = shift
        labels = federation.data.labels["train"][query.ids]
        widths = [9, federations.HIDDEN, federations.CLASSES]
        server = federations.twin(federation.server.side.model.parameters, widths)
        plain, moved = (
            F.cross_entropy(server(point.double()), labels, reduction="none").detach()
            for point in rows
        )
        slopes = (moved - plain) / SMOOTHING
        frames[0] = federations.encoded(query)
        answers = [a for frame in frames for a in federation.server.receive(frame)]
        found[clip] = float(federations.reply(answers[0][1]).values)
    assert found[None] == pytest.approx(float(slopes.sum()) / 8, abs=1e-4)
    assert found[0.4] == pytest.approx(float(slopes.clamp(-0.4, 0.4).sum()) / 8, abs=1e-5)
    assert float(slopes.min()) < -0.4 < 0.4 < float(slopes.max())


def test_many_directions_approach_the_gradient(federations: SimpleNamespace) -> None:
    """By differences; every law is tried at VFL-Cascaded, whose client half this is."""
    rounds = 3000
    method = ZooVfl(smoothing=0.01, reply="difference")
    estimate, gradient = federations.estimated_gradient(method, rounds)
    error = float((estimate - gradient).norm() / gradient.norm())
    assert error < 3 * math.sqrt((gradient.numel() + 1) / rounds)
