"""VFL-Cascaded, ZOO-VFL and Syn-ZOO-VFL against plain PyTorch in float64."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests import federations
from tests.rows import each
from torch import Tensor
from torch.nn.functional import cross_entropy

from vertizo.core.randomness import Stream
from vertizo.methods.base import Method
from vertizo.methods.forward_difference import Cascaded, ZooVfl
from vertizo.protocol.messages import Reply
from vertizo.zeroth_order.directions import LAWS, Directions

TIMINGS = ("asynchronous", "synchronous")
KINDS = [("zoo-vfl", "asynchronous"), ("zoo-vfl", "synchronous"), ("syn-zoo-vfl", "synchronous")]
SMOOTHING = 0.05
LARGE = {"method.smoothing": SMOOTHING}
RATE = 0.01


@each("timing", TIMINGS)
@each("join", ("concat", "sum", "mean"))
def test_rounds_of_cascaded_by_hand(timing: str, join: str) -> None:
    """Both losses on the same server weights; the table and the step at the unperturbed ``c``."""
    changes = {**LARGE, "server.optimizer.momentum": 0.5, "server.join": join}
    federation = federations.build("cascaded", timing, changes)
    for made in federations.rounds(federation, timing, join=join, momentum=0.5):
        for query, reply in made.pairs:
            shifted = made.losses(query.client, query.embeddings[1])
            expected = torch.stack([made.losses().sum(), shifted.sum()]) / 8
            assert reply.values.shape == (2,)
            assert torch.allclose(reply.values.double(), expected.detach(), atol=2e-6)


def drawn(law: Any, size: int, number: int, *names: str | int) -> Tensor:
    """A direction in float64, as a federation of seed 0 draws it for the party of that name."""
    stream = Stream.from_seed(0).child(*names).child("directions")
    u = torch.zeros(size, dtype=torch.float64)
    Directions(law, size, stream).draw(number).add_to(u, 1.0)
    return u


@each("method, timing", KINDS)
@each("form", ["losses", "difference"])
@each("law", ["scaled-sphere", "sphere"])
def test_rounds_of_zoo_by_hand(method: str, timing: str, form: str, law: str) -> None:
    """Replies and the server's forward difference are all of the weights before the step."""
    changes = {**LARGE, "server.smoothing": SMOOTHING, "method.reply": form}
    changes |= {"server.optimizer.momentum": 0.5, "server.optimizer.learning_rate": RATE}
    changes["server.directions"] = law
    federation = federations.build(method, timing, changes)
    parameters = federation.server.side.model.parameters
    start, size = parameters.double(), parameters.numel()
    velocity = torch.zeros(size, dtype=torch.float64)
    made_rounds = federations.rounds(federation, timing, momentum=None)
    for number, made in enumerate(made_rounds):
        with torch.no_grad():
            plain = made.losses().sum() / 8
            shifts = [made.losses(q.client, q.embeddings[1]).sum() / 8 for q, _ in made.pairs]
        for (query, reply), shifted in zip(made.pairs, shifts, strict=True):
            told, client = reply.values.double(), query.client
            slope = told[0]
            if form == "losses":
                assert torch.allclose(told, torch.stack([plain, shifted]), atol=2e-6)
                slope = (told[1] - told[0]) / SMOOTHING
            else:
                assert told.shape == (1,)
                assert float(told) == pytest.approx(float(shifted - plain) / SMOOTHING, abs=3e-5)
            before = made.before[client].double()
            u = drawn("gaussian", before.numel(), reply.number, "client", client)
            moved = federation.models[client].parameters.double()
            assert torch.allclose(moved, before - 0.05 * slope * u, atol=1e-5)

        u = drawn(law, size, number, "server")
        torch.nn.utils.vector_to_parameters(start + SMOOTHING * u, made.server.parameters())
        with torch.no_grad():
            slope = (made.losses().sum() / 8 - plain) / SMOOTHING
        velocity = 0.5 * velocity + (size if law == "sphere" else 1) * slope * u
        assert torch.allclose(parameters.double(), start - RATE * velocity, atol=1e-5)
        assert float(velocity.norm()) > 0.1
        start = parameters.double()


def loss_at(weights: Tensor, rows: Tensor, labels: Tensor) -> Tensor:
    """The batch's loss, over B = 8, of the small federation's server with these weights."""
    width = rows.shape[1]
    hidden, classes = federations.HIDDEN, federations.CLASSES
    sizes = (hidden * width, hidden, classes * hidden, classes)
    first, shift, second, last = weights.split(sizes)
    above = (rows @ first.view(hidden, width).T + shift).clamp(min=0)
    return cross_entropy(above @ second.view(classes, hidden).T + last, labels, reduction="sum") / 8


@each("join", ("concat", "sum", "mean"))
@each("askers", [(0, 1, 2), (0, 2)])
def test_the_published_server_perturbs_clients_as_well(join: str, askers: tuple[int, ...]) -> None:
    """Algorithm 2, line 9: f(w_0 + μu_0, ĉ_1 … ĉ_M) − f(w_0, c_1 … c_M), written out in float64.

    Clients that a round waits for no longer keep their table's rows in both.
    """
    changes = {**LARGE, "method.server_embeddings": "published", "server.smoothing": SMOOTHING}
    changes |= {"server.join": join, "server.optimizer.learning_rate": RATE}
    federation = federations.build("syn-zoo-vfl", changes=changes)
    side, labels = federation.server.side, federation.data.labels["train"]
    moved = torch.tensor(0.0)
    for number in range(6):
        before = side.model.parameters.double()
        queries = [federations.query(federations.ask(federation, client)) for client in askers]
        ids = queries[0].ids
        plain = [part.double() for part in side.table.values[ids].split(federations.DIM, 1)]
        shifted = [*plain]
        for asked in queries:
            plain[asked.client], shifted[asked.client] = asked.embeddings.double()
        answers = [a for q in queries for a in federation.server.receive(federations.encoded(q))]
        answers = answers or federation.server.close_round()
        rows, all_shifted = (federations.joined(join, parts) for parts in (plain, shifted))
        at = labels[ids]
        u = drawn("scaled-sphere", before.numel(), number, "server")
        here = loss_at(before, rows, at)
        slope = (loss_at(before + SMOOTHING * u, all_shifted, at) - here) / SMOOTHING
        usual = (loss_at(before + SMOOTHING * u, rows, at) - here) / SMOOTHING
        moved = torch.maximum(moved, (slope - usual).abs())
        after = side.model.parameters.double()
        assert torch.allclose(after, before - RATE * slope * u, atol=2e-6)
        for client, answer in answers:
            one = [*plain]
            one[client] = shifted[client]
            told = float(federations.reply(answer).values)
            rise = loss_at(before, federations.joined(join, one), at) - here
            assert told == pytest.approx(float(rise) / SMOOTHING, abs=3e-5)
            federation.clients[client].tell(answer)
    assert float(moved) > 0.1


def test_no_epsilon_holds_with_the_published_server() -> None:
    """It trains on raw labels, whatever noise replies carry."""
    more = {"method.server_embeddings": "published", "server.update": "forward-difference"}
    statement = federations.build("syn-zoo-vfl", None, {**federations.GAUSSIAN, **more}).statement()
    assert (statement.guarantee, statement.epsilon, statement.covers) == ("none", None, ())


@pytest.mark.full
def test_the_published_server_has_the_same_mean_and_more_variance() -> None:
    """Over many directions: those of clients are independent of the server's."""
    found: dict[str, Tensor] = {}
    for form in ("unperturbed", "published"):
        changes = {"method.server_embeddings": form, "batch_size": 29, "epochs": 1500}
        changes |= {"method.smoothing": 1e-2, "server.smoothing": 1e-2}
        changes["client.optimizer.learning_rate"] = 1e-12
        federation = federations.build("syn-zoo-vfl", changes=changes)
        side, kept = federation.server.side, federations.GradientRows()
        side.update.optimizer = kept  # type: ignore[attr-defined]
        for _ in range(1500):
            federations.converse(federation, [0, 1, 2])
        found[form] = torch.stack(kept.rows)
        server, at = federations.server_twin(federation), federation.data.labels["train"]
        cross_entropy(server(side.table.values.double()), at).backward()
        error = (found[form].mean(0) - federations.gradient_of(server)).norm()
        spread = found[form].var(0).sum().sqrt() / math.sqrt(1500)
        assert float(error) < 1.5 * float(spread)
    assert float(found["published"].var(0).sum() / found["unperturbed"].var(0).sum()) > 1.2


@each("law", LAWS)
@each("momentum", [0.0, 0.9])
def test_a_client_moves_by_the_difference_of_the_two_losses(law: Any, momentum: float) -> None:
    half, model = federations.bare(Cascaded(smoothing=SMOOTHING, directions=law), momentum)
    features, velocity = torch.zeros(3, 2), torch.zeros(7)
    for number, (plain, shifted) in enumerate([(1.0, 1.25), (2.0, 1.0), (0.5, 0.5)]):
        before = model.parameters.clone()
        c, c_shifted = half.ask(number, features)
        assert torch.equal(model.parameters, before)
        assert torch.equal(c, before.expand(3, 7))
        direction = (c_shifted - c)[0] / SMOOTHING
        if law in federations.NORMS:
            assert float(direction.norm()) == pytest.approx(federations.NORMS[law], rel=1e-5)
        half.tell(number, features, torch.tensor([plain, shifted]))
        slope = federations.FACTORS.get(law, 1.0) * (shifted - plain) / SMOOTHING
        velocity = momentum * velocity + slope * direction
        assert torch.allclose(model.parameters, before - 0.1 * velocity, atol=2e-4)


@pytest.mark.full
@each(
    "method",
    [
        *(Cascaded(smoothing=0.01, directions=law) for law in LAWS),
        ZooVfl(smoothing=0.01, reply="difference"),
    ],
)
def test_many_directions_approach_the_gradient(method: Method) -> None:
    estimate, gradient = federations.estimated_gradient(method, 3000)
    error = float((estimate - gradient).norm() / gradient.norm())
    assert error < 3 * math.sqrt((gradient.numel() + 1) / 3000)


@each("method, timing", [*(("cascaded", timing) for timing in TIMINGS), *KINDS])
def test_either_reply_tells_a_client_the_same(method: str, timing: str) -> None:
    """Two losses, which rounding may not touch, or their difference over μ."""
    usual = "difference" if method == "syn-zoo-vfl" else "losses"
    assert federations.config(method).method.reply == usual
    ends = []
    for form, shape in (("losses", (2,)), ("difference", (1,))):
        changes = {**LARGE, "method.reply": form}
        if method != "cascaded":
            changes |= {"server.smoothing": SMOOTHING, "server.optimizer.learning_rate": RATE}
        federation, tape = federations.ran(method, timing, changes, rounds=6)
        chosen = federations.config(method, timing, changes).method
        assert chosen.reply_shape(8, 3) == shape
        assert chosen.reply_is_losses == (form == "losses")
        assert (chosen.points, chosen.evaluations_per_query) == (2, 1)
        told = [m.values for *_, m in tape.messages() if isinstance(m, Reply)]
        assert {tuple(values.shape) for values in told} == {shape}
        first = (told[0][1] - told[0][0]) / SMOOTHING if form == "losses" else told[0][0]
        ends.append((float(first), torch.cat([m.parameters for m in federation.models])))
    assert ends[0][0] == pytest.approx(ends[1][0], abs=1e-5)
    assert torch.allclose(ends[0][1], ends[1][1], atol=1e-4)


def test_in_step_zoo_vfl_is_syn_zoo_vfl() -> None:
    """Once both answer in the same form, the same frames and weights, bit by bit."""
    changes = {"server.optimizer.learning_rate": RATE}
    syn, tape = federations.ran("syn-zoo-vfl", changes=changes)
    differences = {**changes, "method.reply": "difference"}
    zoo, other = federations.ran("zoo-vfl", "synchronous", differences)
    assert tape.seen == other.seen
    assert not federations.differences(syn.parameters, zoo.parameters)


def test_the_server_needs_no_gradient() -> None:
    """Its own step takes two losses, one of which it knows already."""
    federation, evaluated = federations.build("zoo-vfl"), []
    head = federation.server.side.model
    evaluate, before = head.evaluate, head.parameters.clone()

    def pullback(gradient: Tensor) -> Tensor:
        raise AssertionError("a gradient was asked for")

    def without_gradient(*given: Any) -> Any:
        evaluation = evaluate(*given)
        evaluated.append(tuple(evaluation.losses.shape))
        return replace(evaluation, _pullback=pullback)

    head.evaluate = without_gradient
    federations.converse(federation, [0, 1, 2])
    assert evaluated == [(2, 8)] * 3
    assert federation.server.side.update.evaluations == 1
    assert not torch.equal(head.parameters, before)


@each("method", ["zoo-vfl", "syn-zoo-vfl"])
def test_a_difference_is_clipped_record_by_record(method: str) -> None:
    """On both sides, and divided by the nominal batch size after that."""
    shift = torch.randn(2, 8, federations.DIM, generator=torch.Generator().manual_seed(0))
    found, slopes = {}, torch.empty(0)
    for clip in (None, 0.4):
        noise = {**federations.HARDLY_ANY, "privacy.clip": clip} if clip else {}
        changes = {**LARGE, "method.reply": "difference", **noise}
        federation = federations.build(method, changes=changes)
        askers = range(1 if method == "zoo-vfl" else 3)
        queries = [federations.query(federations.ask(federation, m)) for m in askers]
        queries[0] = query = replace(queries[0], embeddings=shift)
        table = federation.server.side.table.values.clone()
        for other in queries:
            table[other.ids, 3 * other.client : 3 * other.client + 3] = other.embeddings[0]
        rows = table[query.ids].expand(2, -1, -1).clone()
        rows[..., :3] = shift
        labels = federation.data.labels["train"][query.ids]
        server = federations.server_twin(federation)
        plain, moved = (
            cross_entropy(server(point.double()), labels, reduction="none").detach()
            for point in rows
        )
        slopes = (moved - plain) / SMOOTHING
        receive = federation.server.receive
        answers = [a for asked in queries for a in receive(federations.encoded(asked))]
        found[clip] = float(federations.reply(answers[0][1]).values)
    assert found[None] == pytest.approx(float(slopes.sum()) / 8, abs=1e-4)
    assert found[0.4] == pytest.approx(float(slopes.clamp(-0.4, 0.4).sum()) / 8, abs=1e-5)
    assert float(slopes.min()) < -0.4 < 0.4 < float(slopes.max())
