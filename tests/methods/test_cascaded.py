"""VFL-Cascaded against plain PyTorch in float64."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.rows import each
from torch import Tensor, nn

from vertizo.core.randomness import Stream
from vertizo.methods.base import ClientSide
from vertizo.methods.cascaded import Cascaded
from vertizo.models.array import ArrayModel
from vertizo.models.optimizers import Sgd
from vertizo.protocol.messages import Reply
from vertizo.zeroth_order.directions import LAWS

TIMINGS = ("asynchronous", "synchronous")
SMOOTHING = 0.05
LARGE = {"method.smoothing": SMOOTHING}
JOINS = ("concat", "sum", "mean")


@each("timing", TIMINGS)
@each("join", JOINS)
def test_rounds_by_hand(federations: SimpleNamespace, timing: str, join: str) -> None:
    """Both losses on the same server weights; the table and the step at the unperturbed ``c``."""
    momentum, nominal, rate, dim = 0.5, 8, 0.1, federations.DIM
    changes = {**LARGE, "server.optimizer.momentum": momentum, "server.join": join}
    federation = federations.build("cascaded", timing, changes)
    side = federation.server.side
    labels = federation.data.labels["train"]
    width = 3 * dim if join == "concat" else dim
    velocity = torch.zeros_like(side.model.parameters, dtype=torch.float64)
    order = [0, 1, 2] if timing == "synchronous" else [2]
    sizes = set()

    def losses(server: nn.Module, parts: list[Tensor]) -> Tensor:
        if join == "concat":
            rows = torch.cat(parts, 1)
        else:
            rows = torch.stack(parts).sum(0) / (3 if join == "mean" else 1)
        return F.cross_entropy(server(rows.double()), labels[ids], reduction="none")

    for round_ in range(10):
        server = federations.twin(
            side.model.parameters, [width, federations.HIDDEN, federations.CLASSES]
        )
        frames = [federations.ask(federation, client) for client in order]
        queries = [federations.query(frame) for frame in frames]
        ids = queries[0].ids
        sizes.add(ids.numel())
        table = side.table.values.clone()
        for query in queries:
            table[ids, dim * query.client : dim * (query.client + 1)] = query.embeddings[0]
        rows = list(table[ids].split(dim, 1))
        answers = [a for frame in frames for a in federation.server.receive(frame)]

        assert [client for client, _ in answers] == order
        plain = losses(server, rows)
        for query, (_, answer) in zip(queries, answers, strict=True):
            shifted = [*rows]
            shifted[query.client] = query.embeddings[1]
            expected = torch.stack([plain.sum(), losses(server, shifted).sum()]) / nominal
            reply = federations.reply(answer)
            assert reply.values.shape == (2,)
            assert torch.allclose(reply.values.double(), expected.detach(), atol=2e-6)
        assert torch.equal(side.table.values, table)

        (plain.sum() / nominal).backward()
        velocity = momentum * velocity + torch.cat([w.grad.flatten() for w in server.parameters()])
        stepped = federations.flat(server) - rate * velocity
        assert torch.allclose(side.model.parameters.double(), stepped, atol=1e-6)

        for client, answer in answers:
            federation.clients[client].tell(answer)
        if timing == "asynchronous":
            order = [(round_ * 2) % 3]
    assert sizes == {8, 29 % 8}


NORMS = {"sphere": 1.0, "scaled-sphere": math.sqrt(7), "rademacher": math.sqrt(7), "coordinate": 1}
FACTORS = {"sphere": 7.0, "coordinate": 7.0}


@each("law", LAWS)
@each("momentum", [0.0, 0.9])
def test_a_client_moves_by_the_difference_of_the_two_losses(law: str, momentum: float) -> None:
    """Its embedding is its parameters here: the direction can be read off the query."""
    model = ArrayModel(lambda w, x: np.repeat(w[None], len(x), 0), torch.linspace(-1, 1, 7))
    method = Cascaded(smoothing=SMOOTHING, directions=law)
    half = method.client(
        ClientSide(model, Sgd(0.1, momentum), Stream.from_seed(5), Stream.from_seed(9))
    )
    features, velocity = torch.zeros(3, 2), torch.zeros(7)
    for number, (plain, shifted) in enumerate([(1.0, 1.25), (2.0, 1.0), (0.5, 0.5)]):
        before = model.parameters.clone()
        c, c_shifted = half.ask(number, features)
        assert torch.equal(model.parameters, before)
        assert torch.equal(c, before.expand(3, 7))
        direction = (c_shifted - c)[0] / SMOOTHING
        if law in NORMS:
            assert float(direction.norm()) == pytest.approx(NORMS[law], rel=1e-5)
        half.tell(number, features, torch.tensor([plain, shifted]))
        slope = (shifted - plain) / SMOOTHING
        velocity = momentum * velocity + FACTORS.get(law, 1.0) * slope * direction
        assert torch.allclose(model.parameters, before - 0.1 * velocity, atol=2e-4)


@each("law", LAWS)
def test_many_directions_approach_the_gradient(federations: SimpleNamespace, law: Any) -> None:
    rounds = 3000
    method = Cascaded(smoothing=0.01, directions=law)
    estimate, gradient = federations.estimated_gradient(method, rounds)
    error = float((estimate - gradient).norm() / gradient.norm())
    assert error < 3 * math.sqrt((gradient.numel() + 1) / rounds)


@each("timing", TIMINGS)
def test_a_difference_may_be_told_instead(federations: SimpleNamespace, timing: str) -> None:
    """One number over μ, which moves the client as far as the two losses would."""
    ends = []
    for form, shape in (("losses", (2,)), ("difference", (1,))):
        changes = {**LARGE, "method.reply": form}
        federation, tape = federations.ran("cascaded", timing, changes)
        told = [m.values for *_, m in tape.messages() if isinstance(m, Reply)]
        assert {tuple(values.shape) for values in told} == {shape}
        first = told[0]
        slope = (first[1] - first[0]) / SMOOTHING if form == "losses" else first[0]
        ends.append((float(slope), torch.cat([m.parameters for m in federation.models])))
    assert ends[0][0] == pytest.approx(ends[1][0], abs=1e-5)
    assert torch.allclose(ends[0][1], ends[1][1], atol=1e-4)
