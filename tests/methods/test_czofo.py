"""VFL-CZOFO against plain PyTorch in float64, and against the gradient it estimates."""

from __future__ import annotations

import math
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.rows import each
from torch import Tensor, nn

from vertizo.core.errors import ConfigError
from vertizo.core.randomness import Stream
from vertizo.methods.base import ClientSide
from vertizo.methods.czofo import Czofo
from vertizo.models.array import ArrayModel
from vertizo.models.losses import Classification
from vertizo.models.optimizers import Sgd
from vertizo.models.torch import wrap
from vertizo.party.server_model import NoUpdate, ServerModel, ServerSide
from vertizo.party.table import EmbeddingTable
from vertizo.privacy.plan import NoPrivacy
from vertizo.protocol.messages import Query, Reply
from vertizo.zeroth_order.directions import LAWS
from vertizo.zeroth_order.record_directions import record_directions

TIMINGS = ("asynchronous", "synchronous")
FORMS = ("batch", "record")
JOINS = ("concat", "sum", "mean")
SMOOTHING = 0.05
Q = 4


def options(**more: Any) -> dict[str, Any]:
    given = {"smoothing": SMOOTHING, "num_directions": Q, **more}
    return {f"method.{key}": value for key, value in given.items()}


def joined(name: str, parts: list[Tensor]) -> Tensor:
    if name == "concat":
        return torch.cat(parts, 1)
    return torch.stack(parts).sum(0) / (len(parts) if name == "mean" else 1)


@each("timing", TIMINGS)
@each("form", FORMS)
@each("join, law", [*zip(JOINS, ("sphere", "gaussian", "sphere"), strict=True)])
def test_rounds_by_hand(
    federations: SimpleNamespace, timing: str, form: str, join: str, law: Any
) -> None:
    """Slopes at ``h + μ u_j`` for all records at once, the server's step, the client's step."""
    momentum, nominal, dim = 0.5, 8, federations.DIM
    changes = {
        **options(scalars=form, directions=law),
        "server.join": join,
        "server.optimizer.momentum": momentum,
        "client.optimizer.momentum": momentum,
    }
    federation = federations.build("czofo", timing, changes)
    side, labels = federation.server.side, federation.data.labels["train"]
    width = side.table.width
    velocity = torch.zeros_like(side.model.parameters, dtype=torch.float64)
    velocities = [torch.zeros_like(m.parameters, dtype=torch.float64) for m in federation.models]
    factor = dim if law == "sphere" else 1
    order = [0, 1, 2] if timing == "synchronous" else [2]
    sizes = set()
    for round_ in range(10):
        widths = [width, federations.HIDDEN, federations.CLASSES]
        server = federations.twin(side.model.parameters, widths)
        frames = [federations.ask(federation, client) for client in order]
        queries = [federations.query(frame) for frame in frames]
        ids = queries[0].ids
        sizes.add(ids.numel())
        table = side.table.values.clone()
        for query in queries:
            table[ids, dim * query.client : dim * (query.client + 1)] = query.embeddings[0]
        parts = [part.double() for part in table[ids].split(dim, 1)]
        answers = [a for frame in frames for a in federation.server.receive(frame)]
        assert [client for client, _ in answers] == order
        assert torch.equal(side.table.values, table)

        def losses(rows: list[Tensor], server: nn.Module = server, ids: Tensor = ids) -> Tensor:
            return F.cross_entropy(server(joined(join, rows)), labels[ids], reduction="none")

        plain = losses(parts)
        for query, (client, answer) in zip(queries, answers, strict=True):
            seed = Stream.from_seed(0).child("shared", client).seed(query.number)
            u, _ = record_directions(law, Q, ids.numel(), dim, seed)
            slopes = []
            for direction in u.double():
                moved = [*parts]
                moved[client] = parts[client] + SMOOTHING * direction
                slopes.append((losses(moved) - plain) / SMOOTHING)
            each = torch.stack(slopes, 1).detach() / nominal
            expected = each if form == "record" else each.sum(0)
            told = federations.reply(answer).values
            assert told.shape == expected.shape
            assert torch.allclose(told.double(), expected, atol=1e-5)

            rows = [
                (told[i] if form == "record" else told).double() @ u[:, i].double()
                for i in range(ids.numel())
            ]
            own = federations.twin(federation.models[client].parameters, [federations.COLUMNS, dim])
            h = own(federation.data.features[client]["train"][ids].double())
            h.backward(factor / Q * torch.stack(rows))
            gradient = torch.cat([w.grad.flatten() for w in own.parameters()])
            velocities[client] = momentum * velocities[client] + gradient
            federation.clients[client].tell(answer)
            after = federations.flat(own) - 0.05 * velocities[client]
            assert torch.allclose(federation.models[client].parameters.double(), after, atol=1e-5)

        (plain.sum() / nominal).backward()
        velocity = momentum * velocity + torch.cat([w.grad.flatten() for w in server.parameters()])
        stepped = federations.flat(server) - 0.1 * velocity
        assert torch.allclose(side.model.parameters.double(), stepped, atol=1e-6)
        if timing == "asynchronous":
            order = [(round_ * 2) % 3]
    assert sizes == {8, 29 % 8}


@each("form", FORMS)
@each("law", LAWS)
def test_the_estimate_is_unbiased(federations: SimpleNamespace, form: str, law: Any) -> None:
    """Three directions of embeddings of two numbers: axes too, though they come out uneven."""
    method = Czofo(smoothing=1e-3, directions=law, scalars=form, num_directions=3)
    rows, gradient = federations.estimates(method, 1000)
    error = rows.std(0) / math.sqrt(len(rows))
    # float32 losses are known to 1e-7 or so, of which μ makes a thousand times as much
    assert torch.all((rows.mean(0) - gradient).abs() <= 5 * error + 2e-4)
    assert float(error.norm() / gradient.norm()) < 0.25


def test_the_variance_falls_as_directions_rise(federations: SimpleNamespace) -> None:
    spread = {}
    for form in FORMS:
        for count in (1, 4, 16):
            method = Czofo(smoothing=0.01, scalars=form, num_directions=count)
            rows, _ = federations.estimates(method, 700)
            spread[form, count] = float(rows.var(0).sum())
    for form in FORMS:
        assert spread[form, 1] / spread[form, 4] == pytest.approx(4, rel=0.3)
        assert spread[form, 4] / spread[form, 16] == pytest.approx(4, rel=0.3)
    for count in (1, 4, 16):  # a batch's slope carries the noise of all its records
        assert spread["batch", count] > 3 * spread["record", count]


@each("timing", TIMINGS)
def test_every_axis_once_is_vafl_up_to_the_smoothing(
    federations: SimpleNamespace, timing: str
) -> None:
    """And the difference shrinks as μ does, where the server has no kinks."""
    smooth = {"server.model": {"name": "mlp", "hidden": []}}

    def after(method: str, changes: dict[str, Any]) -> Tensor:
        federation, _ = federations.ran(method, timing, {**smooth, **changes}, rounds=4)
        parts = [model.parameters for model in federation.models]
        return torch.cat([*parts, federation.server.side.model.parameters])

    axes = options(directions="coordinate", scalars="record", num_directions=federations.DIM)
    exact = after("vafl", {})
    start = federations.build("vafl", timing, smooth)
    moved = exact - torch.cat(
        [*(m.parameters for m in start.models), start.server.side.model.parameters]
    )
    errors = [
        float((after("czofo", {**axes, "method.smoothing": mu}) - exact).norm())
        for mu in (0.2, 0.1, 0.05, 0.025)
    ]
    assert errors[-1] < 0.02 * float(moved.norm())
    for larger, smaller in pairwise(errors):
        assert larger / smaller == pytest.approx(2, rel=0.25)


def halves(
    method: Czofo, mine: Stream, theirs: Stream, private: int = 0
) -> tuple[Any, Any, Tensor, Tensor]:
    """A client and a server side, the client's parameters, and a batch of six records."""
    torch.manual_seed(3)
    features = torch.randn(6, 3)
    model = wrap(nn.Linear(3, 2))
    side = ServerSide(
        method=method,
        model=ServerModel(wrap(nn.Linear(2, 3)), Classification(3)),
        table=EmbeddingTable(6, [2]),
        labels=torch.tensor([0, 1, 2, 1, 0, 2]),
        plan=NoPrivacy(6),
        update=NoUpdate(),
        shared=[theirs],
    )
    client = method.client(ClientSide(model, Sgd(0.1), Stream.from_seed(private), mine))
    return client, side, model.parameters, features


def moved_by(method: Czofo, mine: Stream, theirs: Stream, private: int = 0) -> tuple[Tensor, Query]:
    client, server, parameters, features = halves(method, mine, theirs, private)
    before = parameters.clone()
    query = Query(0, 5, torch.arange(6), client.ask(5, features))
    (reply,) = server.answer([query], 1)
    client.tell(5, features, reply.values)
    return parameters - before, query


@each("form", FORMS)
def test_directions_come_from_the_shared_stream_alone(form: str) -> None:
    method = Czofo(scalars=form, smoothing=0.01, num_directions=4000)
    one, two = Stream.from_seed(1), Stream.from_seed(2)
    right, query = moved_by(method, one, one)
    again, same = moved_by(method, one, one, private=7)
    assert torch.equal(right, again)
    assert torch.equal(query.embeddings, same.embeddings)
    other, unmoved = moved_by(method, two, two)  # another estimate of the same gradient
    assert torch.equal(query.embeddings, unmoved.embeddings)
    assert not torch.equal(other, right)
    assert float((other - right).norm()) < 0.5 * float(right.norm())
    wrong, _ = moved_by(method, two, one)  # sides that do not agree on directions: noise alone
    assert float(wrong.norm()) < 0.5 * float(right.norm())


def test_no_direction_is_ever_sent(federations: SimpleNamespace) -> None:
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
    assert set(held["party"]) == {"answered", "ids", "batch", "frame", "known"}


def test_directions_that_are_shared_are_left_as_they_were(federations: SimpleNamespace) -> None:
    """In one process both sides are handed the same array, and a later query may be as well."""
    federation = federations.build("czofo", changes=options(scalars="record"))
    seed = Stream.from_seed(0).child("shared", 0).seed(0)
    u, _ = record_directions("sphere", Q, 8, federations.DIM, seed)
    before = u.clone()
    federations.converse(federation, [0])
    assert torch.equal(u, before)


def test_no_two_queries_and_no_two_clients_share_directions(federations: SimpleNamespace) -> None:
    method = federations.config("czofo").method
    root, h = Stream.from_seed(0), torch.zeros(8, 3)
    drawn = [
        method.drawn(root.child("shared", client), number, h)[0]
        for client in range(3)
        for number in range(3)
    ]
    for i, u in enumerate(drawn):
        assert all(not torch.allclose(u, other) for other in drawn[:i])


@each("form", FORMS)
def test_a_client_that_was_restarted_needs_no_query_of_its_own(form: str) -> None:
    """The embeddings are made again; the update is the same, bit by bit."""
    method, stream = Czofo(scalars=form, num_directions=7), Stream.from_seed(1)
    values = torch.linspace(-1, 1, 7 if form == "batch" else 42)
    values = values if form == "batch" else values.view(6, 7)
    ends = []
    for asks in (True, False):
        client, _, parameters, features = halves(method, stream, stream)
        if asks:
            client.ask(3, features)
        client.tell(3, features, values)
        ends.append(parameters.clone())
    assert torch.equal(*ends)


@each("form, shape", [("batch", (5,)), ("record", (8, 5))])
def test_reply_shapes(form: str, shape: tuple[int, ...]) -> None:
    method = Czofo(scalars=form, num_directions=5)
    assert method.reply_shape(8, 64) == shape
    assert not method.reply_is_gradient
    assert method.evaluations_per_query == 5
    assert method.points == method.releases_per_query == 1


@each("form", FORMS)
def test_the_clip_is_on_a_records_q_slopes_together(
    federations: SimpleNamespace, form: str
) -> None:
    """Norm at most C in either form: one entry in the accounting."""
    seen = {}
    for clip in (1e6, 0.2):
        quiet = {
            "privacy.mechanism": "gaussian",
            "privacy.clip": clip,
            "privacy.noise_std": 1e-9,
        }
        changes = {**options(scalars="record"), **quiet}
        federation = federations.build("czofo", changes=changes)
        ((_, answer),) = federation.server.receive(federations.ask(federation, 0))
        seen[clip] = federations.reply(answer).values * 8
    norms = seen[1e6].norm(dim=1)
    assert float(norms.min()) < 0.2 < float(norms.max())
    expected = seen[1e6] * (0.2 / norms.clamp(min=0.2))[:, None]
    assert torch.allclose(seen[0.2], expected, atol=1e-5)
    if form == "batch":
        quiet = {"privacy.mechanism": "gaussian", "privacy.clip": 0.2, "privacy.noise_std": 1e-9}
        federation = federations.build("czofo", changes={**options(), **quiet})
        ((_, answer),) = federation.server.receive(federations.ask(federation, 0))
        told = federations.reply(answer).values * 8
        assert torch.allclose(told, expected.sum(0), atol=1e-5)
        assert federations.charged(federation).max() == 1


def test_a_model_without_gradients_is_refused_before_training() -> None:
    model = ArrayModel(lambda w, x: x * w, torch.zeros(4))
    with pytest.raises(ConfigError, match=r"czofo needs .* ArrayModel"):
        Czofo().client(ClientSide(model, Sgd(0.1), Stream.from_seed(0), Stream.from_seed(9)))
