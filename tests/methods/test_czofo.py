"""VFL-CZOFO against plain PyTorch in float64, and against the gradient it estimates."""

from __future__ import annotations

import math
from itertools import pairwise, product
from typing import Any

import pytest
import torch
from tests import federations
from tests.rows import each, pairs
from torch import Tensor

from vertizo.core.errors import ConfigError
from vertizo.core.randomness import Stream
from vertizo.methods.czofo import Czofo
from vertizo.protocol.messages import Query, Reply
from vertizo.zeroth_order.directions import LAWS, record_directions

TIMINGS = ("asynchronous", "synchronous")
FORMS = ("batch", "record")
SMOOTHING = 0.05
Q = 4


def options(**more: Any) -> dict[str, Any]:
    given = {"smoothing": SMOOTHING, "num_directions": Q, **more}
    return {f"method.{key}": value for key, value in given.items()}


@each("timing", TIMINGS)
@each("form", FORMS)
@each("join, law", [("concat", "sphere"), ("sum", "gaussian"), ("mean", "sphere")])
def test_rounds_by_hand(timing: str, form: str, join: str, law: Any) -> None:
    """Slopes at ``h + μ u_j`` for all records at once, the server's step, the client's step."""
    momentum, dim = 0.5, federations.DIM
    changes = {**options(scalars=form, directions=law), "server.join": join}
    changes |= {f"{side}.optimizer.momentum": momentum for side in ("server", "client")}
    federation = federations.build("czofo", timing, changes)
    velocities = [torch.zeros_like(m.parameters, dtype=torch.float64) for m in federation.models]
    factor = dim if law == "sphere" else 1
    for made in federations.rounds(federation, timing, join=join, momentum=momentum):
        plain, ids = made.losses(), made.ids
        for query, reply in made.pairs:
            client = query.client
            seed = Stream.from_seed(0).child("shared", client).seed(query.number)
            u = record_directions(law, Q, ids.numel(), dim, seed)[0].double()
            shifted = [made.losses(client, made.parts[client] + SMOOTHING * u_j) for u_j in u]
            slopes = torch.stack([(at - plain) / SMOOTHING for at in shifted], 1).detach() / 8
            told, expected = reply.values, slopes if form == "record" else slopes.sum(0)
            assert told.shape == expected.shape
            assert torch.allclose(told.double(), expected, atol=1e-5)

            weights = told.double().expand(ids.numel(), Q)
            own = federations.twin(made.before[client], [federations.COLUMNS, dim])
            h = own(federation.data.features[client]["train"][ids].double())
            h.backward(factor / Q * torch.einsum("iq,qid->id", weights, u))
            velocities[client] = momentum * velocities[client] + federations.gradient_of(own)
            after = federations.flat(own) - 0.05 * velocities[client]
            assert torch.allclose(federation.models[client].parameters.double(), after, atol=1e-5)


@each("law, form", [*product(LAWS, FORMS)], gate=pairs(LAWS, FORMS))
def test_the_estimate_is_unbiased(form: str, law: Any) -> None:
    """Three directions of embeddings of two numbers: axes too, though they come out uneven."""
    method = Czofo(smoothing=1e-3, directions=law, scalars=form, num_directions=3)
    rows, gradient = federations.estimates(method, 1000)
    error = rows.std(0) / math.sqrt(len(rows))
    # float32 losses are known to 1e-7 or so, of which μ makes a thousand times as much
    assert torch.all((rows.mean(0) - gradient).abs() <= 5 * error + 2e-4)
    assert float(error.norm() / gradient.norm()) < 0.25


def test_the_variance_falls_as_directions_rise() -> None:
    spread = {}
    for form in FORMS:
        for count in (1, 4, 16):
            method = Czofo(smoothing=0.01, scalars=form, num_directions=count)
            rows, _ = federations.estimates(method, 400)
            spread[form, count] = float(rows.var(0).sum())
    for form in FORMS:
        assert spread[form, 1] / spread[form, 4] == pytest.approx(4, rel=0.3)
        assert spread[form, 4] / spread[form, 16] == pytest.approx(4, rel=0.3)
    for count in (1, 4, 16):  # a batch's slope carries the noise of all its records
        assert spread["batch", count] > 3 * spread["record", count]


@each("timing", TIMINGS)
def test_every_axis_once_is_vafl_up_to_the_smoothing(timing: str) -> None:
    """And the difference shrinks as μ does, where the server has no kinks."""
    smooth = {"server.model": {"name": "mlp", "hidden": []}}

    def after(method: str, changes: dict[str, Any]) -> Tensor:
        federation, _ = federations.ran(method, timing, {**smooth, **changes}, rounds=4)
        parts = [model.parameters for model in federation.models]
        return torch.cat([*parts, federation.server.side.model.parameters])

    axes = options(directions="coordinate", scalars="record", num_directions=federations.DIM)
    exact = after("vafl", {})
    start = federations.build("vafl", timing, smooth)
    parts = [*(m.parameters for m in start.models), start.server.side.model.parameters]
    moved = exact - torch.cat(parts)
    errors = [
        float((after("czofo", {**axes, "method.smoothing": mu}) - exact).norm())
        for mu in (0.2, 0.1, 0.05, 0.025)
    ]
    assert errors[-1] < 0.02 * float(moved.norm())
    for larger, smaller in pairwise(errors):
        assert larger / smaller == pytest.approx(2, rel=0.25)


def moved_by(method: Czofo, **seeds: int) -> tuple[Tensor, Query]:
    both = federations.halves(method, **seeds)
    before = both.parameters.clone()
    query = both.round(5)
    return both.parameters - before, query


@each("form", FORMS)
def test_directions_come_from_the_shared_stream_alone(form: str) -> None:
    method = Czofo(scalars=form, smoothing=0.01, num_directions=4000)
    right, query = moved_by(method)
    again, same = moved_by(method, private=7)
    assert torch.equal(right, again)
    assert torch.equal(query.embeddings, same.embeddings)
    other, unmoved = moved_by(method, mine=9, theirs=9)  # another estimate of the same gradient
    assert torch.equal(query.embeddings, unmoved.embeddings)
    assert not torch.equal(other, right)
    assert float((other - right).norm()) < 0.5 * float(right.norm())
    wrong, _ = moved_by(method, mine=9)  # sides that do not agree on directions: noise alone
    assert float(wrong.norm()) < 0.5 * float(right.norm())


def test_no_direction_is_ever_sent() -> None:
    """Embeddings at the parameters themselves go up, q numbers come back."""
    federation, tape = federations.ran("czofo", changes=options())
    for _, way, _, message in tape.messages():
        if way == "up":
            assert message.embeddings.shape == (1, message.ids.numel(), federations.DIM)
        elif isinstance(message, Reply):
            assert message.values.shape == (Q,)
    first = federations.build("czofo", changes=options())
    query = federations.query(federations.ask(first, 0))
    plain = first.models[0](first.data.features[0]["train"][query.ids])
    assert torch.allclose(query.embeddings[0], plain, atol=1e-6)
    held = federations.client_holds(federation, 0)
    assert set(held["party"]) == {"answered", "waiting", "received"}


def test_directions_that_are_shared_are_left_as_they_were() -> None:
    """In one process both sides are handed the same array, and a later query may be as well."""
    federation = federations.build("czofo", changes=options(scalars="record"))
    seed = Stream.from_seed(0).child("shared", 0).seed(0)
    u, _ = record_directions("sphere", Q, 8, federations.DIM, seed)
    before = u.clone()
    federations.converse(federation, [0])
    assert torch.equal(u, before)


def test_no_two_queries_and_no_two_clients_share_directions() -> None:
    method = federations.config("czofo").method
    root, h = Stream.from_seed(0), torch.zeros(8, 3)
    both = product(range(3), range(3))
    drawn = [method.drawn(root.child("shared", client), number, h)[0] for client, number in both]
    for i, u in enumerate(drawn):
        assert all(not torch.allclose(u, other) for other in drawn[:i])


@each("form", FORMS)
def test_a_client_that_was_restarted_needs_no_query_of_its_own(form: str) -> None:
    """The embeddings are made again; the update is the same, bit by bit."""
    method = Czofo(scalars=form, num_directions=7)
    values = torch.linspace(-1, 1, 7 if form == "batch" else 42)
    values = values if form == "batch" else values.view(6, 7)
    ends = []
    for asks in (True, False):
        both = federations.halves(method)
        if asks:
            both.client.ask(3, both.features)
        both.client.tell(3, both.features, values)
        ends.append(both.parameters.clone())
    assert torch.equal(*ends)


@each("form, shape", [("batch", (5,)), ("record", (8, 5))])
def test_reply_shapes(form: str, shape: tuple[int, ...]) -> None:
    method = Czofo(scalars=form, num_directions=5)
    assert method.reply_shape(8, 64) == shape
    assert not method.reply_is_gradient
    assert method.evaluations_per_query == 5
    assert method.points == method.releases_per_query == 1


def test_the_clip_is_on_a_records_q_slopes_together() -> None:
    """Norm at most C in either form: one entry in the accounting."""
    seen = {}
    for form, clip in (("record", 1e6), ("record", 0.2), ("batch", 0.2)):
        changes = {**options(scalars=form), **federations.HARDLY_ANY, "privacy.clip": clip}
        federation = federations.build("czofo", changes=changes)
        ((_, answer),) = federation.server.receive(federations.ask(federation, 0))
        seen[form, clip] = federations.reply(answer).values * 8
        assert federations.charged(federation).max() == 1
    norms = seen["record", 1e6].norm(dim=1)
    assert float(norms.min()) < 0.2 < float(norms.max())
    expected = seen["record", 1e6] * (0.2 / norms.clamp(min=0.2))[:, None]
    assert torch.allclose(seen["record", 0.2], expected, atol=1e-5)
    assert torch.allclose(seen["batch", 0.2], expected.sum(0), atol=1e-5)


def test_a_model_without_gradients_is_refused_before_training() -> None:
    with pytest.raises(ConfigError, match=r"czofo needs .* ArrayModel"):
        federations.bare(Czofo(), 0.0)
