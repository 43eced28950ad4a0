"""The check of methods: what every `vertizo.methods.base.Method` must do, in all its timings."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vertizo.core.errors import ShapeError
from vertizo.data.vertical import VerticalData
from vertizo.privacy.plan import NoPrivacy
from vertizo.protocol.messages import Query, Reply
from vertizo.run.results import checkpoint
from vertizo.testing import federations
from vertizo.testing.demands import demand, demand_refused, same
from vertizo.testing.federations import PLANS, Named, Tape, alike
from vertizo.testing.sensitivity import a_record_moves_no_release_too_far
from vertizo.testing.subject import Subject

Demand = Callable[[Subject], object]
STOPS = (0, 1, 7)
"""Numbers of rounds after which a run is stopped and resumed."""


def check_method(
    method: Named,
    changes: Mapping[str, Any] | None = None,
    *,
    rough: bool = False,
    pairwise: bool = False,
) -> None:
    """Check that a method does what every method must; else raise AssertionError, in one line.

    In each of its timings, with and without noise: messages have the shapes that it declares; a run
    that was stopped, and a client that was restarted, go on bit for bit; nothing draws from global
    generators; a record decides its own part of a reply and no other's, on which every guarantee
    rests; batches are divided by their nominal size; evaluations are counted. It takes seconds.

    Args:
        method: a name, an import path, or a class, found in its module by its name.
        changes: changes of the configuration, by dotted keys, as ``{"method.smoothing": 0.01}``.
        rough: whether a client's step may jump where a reply changes by little, as a sign does;
            else a run with tiny noise must end near the one without.
        pairwise: whether to try each demand with each plan and each timing, but not with each pair
            of the two, and to stop runs once for each plan. It takes half as long.
    """
    made = federations.config(method, None, changes).method
    for turn, timing in enumerate(made.timings):
        for held in CONTRACT:
            held(Subject(method, timing, dict(changes or {})))
        if not rough:
            _tiny_noise_changes_little(Subject(method, timing, dict(changes or {})))
        for row, plan in enumerate(PLANS.values()):
            subject = Subject(method, timing, {**(changes or {}), **plan})
            stops = (STOPS[row % len(STOPS)],) if pairwise else STOPS
            stopped: Demand = partial(stopped_runs_go_on, stops=stops)
            for column, demanded in enumerate([*UNDER_EVERY_PLAN, stopped]):
                if not pairwise or (row + column) % len(made.timings) == turn:
                    demanded(subject)


def shapes_are_as_declared(subject: Subject) -> None:
    """Check shapes of queries and replies, sizes of batches, and the number of rounds."""
    federation, tape = subject.ran()
    options, batch = subject.options, dict[tuple[int, int], int]()
    for _, way, client, message in tape.messages():
        if way == "up" and isinstance(message, Query):
            batch[client, message.number] = message.ids.numel()
            sent = (options.points, message.ids.numel(), federations.DIM)
            same(message.embeddings.shape, sent, f"{subject}: shape of a query")
        elif isinstance(message, Reply):
            shape = options.reply_shape(batch[client, message.number], federations.DIM)
            same(message.values.shape, shape, f"{subject}: shape of a reply")
    same(set(batch.values()), {8, 29 % 8}, f"{subject}: sizes of batches")
    rounds = 8 if subject.timing == "synchronous" else 24
    same(federation.server.round, rounds, f"{subject}: rounds of two epochs")


def _other_numbers_of_points_are_refused(subject: Subject) -> None:
    federation = subject.build()
    query = federations.query(federations.ask(federation, 0), subject.up)
    for embeddings in (query.embeddings[1:], torch.cat([query.embeddings, query.embeddings])):
        frame = federations.encoded(Query(0, 0, query.ids, embeddings), subject.up)
        words = f"{subject}: a query of {len(embeddings)} points passes"
        demand_refused(ShapeError, federation.server.receive, frame, words=words)


def restarted_clients_go_on(subject: Subject) -> None:
    """Check that a client restarted between its query and the reply goes on bit for bit."""
    momentum = {"client.optimizer.momentum": 0.9}
    federation, order = subject.build(momentum), [0, 1, 2]
    for _ in range(3):
        federations.converse(federation, order)
    frames = [federations.ask(federation, client) for client in order]
    held = [federations.client_holds(federation, client) for client in order]
    answers = [a for frame in frames for a in federation.server.receive(frame)]
    fresh = subject.build(momentum)
    for client, answer in answers:
        federations.restore_client(fresh, client, held[client])
        again = bytes(fresh.clients[client].ask()) == frames[client]
        demand(again, f"{subject}: a restarted client asks otherwise")
        federation.clients[client].tell(answer)
        fresh.clients[client].tell(answer)
        expected = federations.client_holds(federation, client)
        alike(expected, federations.client_holds(fresh, client), f"{subject}: a restarted client")
        moved = not torch.equal(expected["parameters"], held[client]["parameters"])
        demand(moved, f"{subject}: a reply moves no client")


def stopped_runs_go_on(subject: Subject, stops: tuple[int, ...] = STOPS) -> None:
    """Check that a run resumed from a checkpoint file, in new objects, goes on bit for bit."""
    lively = subject.lively()
    whole, tape = subject.ran(lively)
    demand(whole.simulator.traffic.lost > 0, f"{subject}: no message was lost")
    for rounds in stops:
        first, beginning = subject.ran(lively, rounds=rounds)
        with tempfile.TemporaryDirectory() as folder:
            checkpoint.save(Path(folder) / "state", first.state())
            kept = checkpoint.load(Path(folder) / "state")
        end = Tape(subject.up)
        second = subject.build(lively, observer=end)
        second.load(kept)
        alike(first.state(), second.state(), f"{subject}: loaded after {rounds} rounds")
        federations.go_on(second)
        demand(beginning.seen + end.seen == tape.seen, f"{subject}: resumed, it says other things")
        alike(whole.state(), second.state(), f"{subject}: resumed after {rounds} rounds")


def _copies_are_their_own(subject: Subject) -> None:
    """Check that two federations share no memory once one's state was loaded into the other."""
    whole, _ = subject.ran(subject.lively())
    first, _ = subject.ran(subject.lively(), rounds=6)
    second = subject.build(subject.lively())
    second.load(first.state())
    for one in (second, first):
        federations.go_on(one)
    alike(whole.state(), second.state(), f"{subject}: a copy")
    alike(whole.state(), first.state(), f"{subject}: what was copied")


def _a_server_knows_no_driver(subject: Subject) -> None:
    """Check that a server gives the same replies to the same queries without a simulator."""
    simulated, tape = subject.ran(subject.lively())
    told: dict[tuple[int, int], bytes] = {}
    asked: dict[tuple[int, int], bytes] = {}
    for (_, _, client, frame), (*_, message) in zip(tape.seen, tape.messages(), strict=True):
        if isinstance(message, Reply):
            told.setdefault((client, message.number), frame)
        elif isinstance(message, Query):
            asked[client, message.number] = frame
    server = subject.build(subject.lively()).server
    given: dict[tuple[int, int], bytes] = {}
    order = [(query.client, query.number) for query in tape.queries()]
    if subject.timing == "synchronous":
        order = sorted(asked, key=lambda key: (key[1], key[0]))
    for key in order:
        for client, answer in server.receive(asked[key]):
            given[client, federations.reply(bytes(answer)).number] = bytes(answer)
    demand(given == told, f"{subject}: other replies without the simulator")
    alike(simulated.server.state(), server.state(), f"{subject}: without the simulator")


def _tiny_noise_changes_little(subject: Subject) -> None:
    """Check that tiny noise, with a wide clip, moves models by little, and every model a bit. No
    codec rounds here: 8 bits would turn some tiny difference into a step. Losses in float32 swallow
    most of so little noise; in enough rounds every party gets some."""
    noise = 1e-6
    changes = {**subject.rates(), "epochs": 4, "codecs.up.name": "none", **subject.large_steps()}
    tiny = {"privacy.mechanism": "gaussian", "privacy.clip": 1e9, "privacy.noise_std": noise}
    plain, _ = subject.ran(changes)
    noised, _ = subject.ran({**changes, **tiny})
    one, other = (
        [*(model.parameters for model in made.models), made.server.side.model.parameters]
        for made in (plain, noised)
    )
    for a, b in zip(one, other, strict=True):
        demand(not torch.equal(a, b), f"{subject}: noise reaches no model")
        near = torch.allclose(a, b, atol=1000 * noise)
        demand(near, f"{subject}: noise of {noise} moves a model far")


class _Spy(NoPrivacy):
    """A plan that records the per-record values which the method hands it."""

    def __init__(self) -> None:
        super().__init__(8)
        self.seen: list[Tensor] = []

    def total(self, values: Tensor) -> Tensor:
        self.seen.append(values.reshape(values.shape[0], -1).clone())
        return super().total(values)

    def each(self, values: Tensor) -> Tensor:
        self.seen.append(values.reshape(values.shape[0], -1).clone())
        return super().each(values)


def _spied(
    subject: Subject, of: VerticalData, scale: float = 1.0
) -> tuple[list[Tensor], list[Query], list[Tensor]]:
    """Per-record values behind the replies of one round, the queries, and the replies.

    Embeddings are sent uncoded: the 8 bits of Compressed-VFL have one scale for a batch, so that a
    record would move the others' embeddings before any method sees them.
    """
    federation = subject.build({**subject.large_steps(), "codecs.up.name": "none"}, of=of)
    spy = federation.server.side.plan = _Spy()
    frames = [federations.ask(federation, client) for client in subject.askers]
    queries = [federations.query(frame) for frame in frames]
    if scale != 1.0:
        for query in queries:
            query.embeddings[:, 3] *= scale
        frames = [federations.encoded(query) for query in queries]
    answers = [a for frame in frames for a in federation.server.receive(frame)]
    return spy.seen, queries, [federations.reply(bytes(answer)).values for _, answer in answers]


def _relabelled(data: VerticalData, record: int) -> VerticalData:
    labels = data.labels["train"].clone()
    labels[record] = (labels[record] + 1) % 3
    return replace(data, labels={**data.labels, "train": labels})


def a_record_decides_its_own_values(subject: Subject) -> None:
    """Check that a record decides its own values only, and labels outside the batch decide none.

    The sensitivity of everything that is released rests on this.
    """
    data = federations.data()
    plain, queries, replies = _spied(subject, data)
    ids = queries[0].ids.tolist()
    others = [row for row in range(len(ids)) if row != 3]
    entries = subject.options.releases_per_query
    if entries is not None:
        same(len(plain), entries * len(queries), f"{subject}: releases of a round")
    for changed_data, scale in ((_relabelled(data, ids[3]), 1.0), (data, 1.5)):
        changed, _, _ = _spied(subject, changed_data, scale)
        for a, b in zip(plain, changed, strict=True):
            held = torch.allclose(a[others], b[others], atol=1e-5)
            demand(held, f"{subject}: a record decides what others add to a reply")
            moved = not torch.allclose(a[3], b[3], atol=1e-5)
            demand(moved, f"{subject}: a record does not decide what it adds to a reply")
    absent = next(record for record in range(29) if record not in queries[0].ids)
    unmoved, _, unchanged = _spied(subject, _relabelled(data, absent))
    for values, held_values in ((plain, unmoved), (replies, unchanged)):
        equal = all(torch.equal(a, b) for a, b in zip(values, held_values, strict=True))
        demand(equal, f"{subject}: a label outside the batch decides a reply")


def _replies_come_before_steps(subject: Subject) -> None:
    """Check that replies do not depend on how far the server steps."""
    replies = []
    for rate in (1e-6, 10.0):
        federation = subject.build({"server.optimizer.learning_rate": rate})
        frames = [federations.ask(federation, client) for client in subject.askers]
        answers = [a for frame in frames for a in federation.server.receive(frame)]
        replies.append([bytes(answer) for _, answer in answers])
    same(len(replies[0]), len(subject.askers), f"{subject}: replies of a round")
    demand(replies[0] == replies[1], f"{subject}: replies depend on the server's learning rate")


def _short_batches_are_divided_by_the_nominal_size(subject: Subject) -> None:
    """Check that five records among batches of five and of eight give sums over five and eight.

    The server's side is asked directly: a synchronous server would name a batch of its own.
    """
    ids, points = torch.tensor([4, 0, 27, 13, 2]), subject.options.points
    embeddings = torch.linspace(-2, 2, points * 15).sin().view(points, 5, 3)
    values = []
    for nominal in (5, 8):
        federation = subject.build({"batch_size": nominal})
        asked = [Query(client, 0, ids, embeddings / (1 + client)) for client in subject.askers]
        replies = federation.server.side.answer(asked, 1)
        same([reply.client for reply in replies], subject.askers, f"{subject}: who is answered")
        values.append(torch.stack([reply.values for reply in replies]) * nominal)
    equal = torch.allclose(values[0], values[1], rtol=1e-5, atol=1e-6)
    demand(equal, f"{subject}: a short batch is not divided by the nominal size")
    demand(float(values[0].abs().max()) > 0.005, f"{subject}: replies say nothing")


def nothing_draws_from_global_generators(subject: Subject) -> None:
    """Check that global generators are neither drawn from nor matter: a run can be repeated."""

    def states() -> list[Any]:
        of_torch = bytes(torch.get_rng_state().numpy())
        return [of_torch, repr(np.random.get_state()), random.getstate()]

    before = states()
    _, tape = subject.ran({**federations.GAUSSIAN, **subject.changes})
    demand(states() == before, f"{subject}: draws from a global generator")
    torch.rand(()), np.random.random(), random.random()  # which moves their states on
    _, again = subject.ran({**federations.GAUSSIAN, **subject.changes})
    demand(again.seen == tape.seen, f"{subject}: a run is not repeated")


def _queries_say_nothing_of_other_records(subject: Subject) -> None:
    data = federations.data()
    frame = federations.ask(subject.build(of=data), 0)
    asked = federations.query(frame, subject.up).ids
    absent = next(record for record in range(29) if record not in asked)
    for record, equal in ((absent, True), (int(asked[0]), False)):
        data.features[0]["train"][record] += 100
        found = federations.ask(subject.build(of=data), 0) == frame
        words = "a record outside a batch changes its query" if equal else "a query says nothing"
        demand(found == equal, f"{subject}: {words}")


def _evaluations_are_counted(subject: Subject) -> None:
    """Check the number of points evaluated: a query's, the table's, one for each further step."""
    federation, seen = subject.build(), list[int]()
    head: Any = federation.server.side.model
    evaluate = head.evaluate

    def counting(points: Any, *others: Any) -> Any:
        seen.append(len(points))
        return evaluate(points, *others)

    head.evaluate = counting
    federations.converse(federation, 2 * subject.askers)
    options = subject.options
    first = len(subject.askers) * options.evaluations_per_query + 1
    expected = 2 * [first, *[1] * (options.server_steps - 1)]
    same(seen, expected, f"{subject}: points at which the server computed losses")


def _the_meter_sums_training_losses(subject: Subject) -> None:
    federation, tape = subject.ran(rounds=5)
    meter, of_all = federation.server.side.meter.read(), subject.timing == "synchronous"
    records = sum(query.ids.numel() for query in tape.queries()) // (3 if of_all else 1)
    same(meter.records, records, f"{subject}: records that the meter counted")
    usual = 0.3 < meter.loss / meter.records < 3 and 0 <= meter.correct <= meter.records
    demand(usual, f"{subject}: the meter has a loss of {meter.loss / meter.records:.3g}")


CONTRACT: tuple[Demand, ...] = (
    nothing_draws_from_global_generators,
    _other_numbers_of_points_are_refused,
    _copies_are_their_own,
    a_record_decides_its_own_values,
    a_record_moves_no_release_too_far,
    _replies_come_before_steps,
    _short_batches_are_divided_by_the_nominal_size,
    _queries_say_nothing_of_other_records,
    _evaluations_are_counted,
    _the_meter_sums_training_losses,
)
UNDER_EVERY_PLAN: tuple[Demand, ...] = (
    shapes_are_as_declared,
    _a_server_knows_no_driver,
    restarted_clients_go_on,
)
