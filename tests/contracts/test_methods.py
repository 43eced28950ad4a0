"""What every method must do, in both timings (`vertizo.methods.base`)."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from vertizo import checkpoint, wire
from vertizo.config import MethodConfig
from vertizo.data.vertical import VerticalData
from vertizo.errors import ShapeError
from vertizo.messages import Query, Reply
from vertizo.option_text import options_of
from vertizo.privacy.plan import NoPrivacy

METHODS = [method.model_fields["name"].default for method in options_of(MethodConfig)]
TIMINGS = ["asynchronous", "synchronous"]
every_method = pytest.mark.parametrize("method", METHODS)
both_timings = pytest.mark.parametrize("timing", TIMINGS)
with_and_without_noise = pytest.mark.parametrize("plan", ["none", "gaussian"])

LIVELY = {
    "epochs": 3,
    "client.optimizer.momentum": 0.9,
    "server.optimizer.momentum": 0.9,
    "simulation.drop": 0.2,
}
"""Momentum on both sides, and messages that get lost."""


def large_steps(method: str) -> dict[str, Any]:
    """A smoothing at which loss differences keep their digits, for methods that have one."""
    return {} if method == "vafl" else {"method.smoothing": 0.05}


@every_method
@both_timings
def test_clients_are_trained(federations: SimpleNamespace, method: str, timing: str) -> None:
    """Held against the same run with clients that stay as they were initialised."""
    found = {}
    for control in ("none", "frozen"):
        changes = {
            **large_steps(method),
            "control": control,
            "epochs": 20,
            "batch_size": 16,
            "client.model": {"name": "mlp", "outputs": 1},
            "client.optimizer.learning_rate": 0.1 if method == "vafl" else 0.03,
            "server.optimizer.learning_rate": 0.1,
            "server.model": {"name": "mlp", "hidden": [12]},
        }
        federation, _ = federations.ran(method, timing, changes, of=federations.two_bits(160))
        federation.simulator.upload("test", 400)
        found[control] = federation.server.score("test")
    assert found["none"]["loss"] < found["frozen"]["loss"] - 0.15
    assert found["none"]["accuracy"] > found["frozen"]["accuracy"] + 0.1


SERVER = """
from torch import nn

def tanh():
    return nn.Sequential(nn.Linear(9, 4), nn.Tanh(), nn.Linear(4, 3))
"""


@every_method
@both_timings
def test_any_differentiable_module_may_be_the_server(
    federations: SimpleNamespace, tmp_path: Path, method: str, timing: str
) -> None:
    """It steps by autograd's gradient of the batch's losses, at what its table then holds."""
    (tmp_path / "server.py").write_text(SERVER)
    model = {"name": "module", "path": f"{tmp_path / 'server.py'}:tanh"}
    federation = federations.build(method, timing, {"server.model": model})
    side, labels = federation.server.side, federation.data.labels["table"]
    module = nn.Sequential(nn.Linear(9, 4), nn.Tanh(), nn.Linear(4, 3))
    nn.utils.vector_to_parameters(side.head.parameters.clone(), module.parameters())
    clients = [0, 1, 2] if timing == "synchronous" else [1]
    ids = federations.query(federations.ask(federation, clients[0])).ids
    federations.converse(federation, clients)
    losses = nn.functional.cross_entropy(module(side.table.values[ids]), labels[ids])
    losses.backward()
    gradient = torch.cat([w.grad.reshape(-1) for w in module.parameters()])
    expected = federations.flat(module) - 0.1 * gradient
    assert torch.allclose(side.head.parameters, expected, atol=1e-6)


@every_method
@both_timings
@with_and_without_noise
def test_shapes_are_as_declared(
    federations: SimpleNamespace, method: str, timing: str, plan: str
) -> None:
    federation, tape = federations.ran(method, timing, federations.PLANS[plan])
    options = federations.config(method, timing).method
    batch: dict[tuple[int, int], int] = {}
    for _, way, client, message in tape.messages():
        if way == "up":
            assert message.client == client
            batch[client, message.number] = message.ids.numel()
            assert message.embeddings.shape == (options.points, message.ids.numel(), 3)
        elif isinstance(message, Reply):
            assert message.client == client
            shape = options.reply_shape(batch[client, message.number], federations.DIM)
            assert message.values.shape == shape
    assert set(batch.values()) == {8, 29 % 8}
    assert federation.server.round == (8 if timing == "synchronous" else 24)


@every_method
@both_timings
def test_the_number_of_points_is_the_methods(
    federations: SimpleNamespace, method: str, timing: str
) -> None:
    federation = federations.build(method, timing)
    query = federations.query(federations.ask(federation, 0))
    for embeddings in (query.embeddings[1:], torch.cat([query.embeddings, query.embeddings])):
        frame = federations.encoded(Query(0, 0, query.ids, embeddings))
        with pytest.raises(ShapeError):
            federation.server.receive(frame)


@every_method
@both_timings
def test_a_client_that_was_restarted_between_asking_and_being_told_goes_on_alike(
    federations: SimpleNamespace, method: str, timing: str
) -> None:
    changes = {"client.optimizer.momentum": 0.9}
    federation = federations.build(method, timing, changes)
    order = [0, 1, 2]
    for _ in range(3):
        federations.converse(federation, order)
    frames = [federations.ask(federation, client) for client in order]
    held = [federations.client_holds(federation, client) for client in order]
    answers = [a for frame in frames for a in federation.server.receive(frame)]

    fresh = federations.build(method, timing, changes)
    for client, answer in answers:
        federations.restore_client(fresh, client, held[client])
        assert bytes(fresh.clients[client].ask()) == frames[client]
        federation.clients[client].tell(answer)
        fresh.clients[client].tell(answer)
        expected = federations.client_holds(federation, client)
        assert not federations.differences(expected, federations.client_holds(fresh, client))
        assert not torch.equal(expected["parameters"], held[client]["parameters"])


@every_method
@both_timings
@with_and_without_noise
@pytest.mark.parametrize("rounds", [0, 1, 7])
def test_a_run_that_was_stopped_goes_on_bit_by_bit(
    federations: SimpleNamespace, tmp_path: Path, method: str, timing: str, plan: str, rounds: int
) -> None:
    """Through a checkpoint file, into objects that were built anew."""
    changes = {**LIVELY, **federations.PLANS[plan]}
    whole, tape = federations.ran(method, timing, changes)
    assert whole.simulator.traffic.lost > 0
    first, beginning = federations.ran(method, timing, changes, rounds=rounds)
    checkpoint.save(tmp_path / "state", first.state())

    end = federations.Tape()
    second = federations.build(method, timing, changes, observer=end)
    second.load(checkpoint.load(tmp_path / "state"))
    again = federations.copied(second.state())
    assert not federations.differences(federations.copied(first.state()), again)
    federations.go_on(second)
    assert beginning.seen + end.seen == tape.seen
    assert not federations.differences(whole.state(), second.state())


@every_method
@both_timings
def test_a_copy_does_not_disturb_the_run_it_was_taken_of(
    federations: SimpleNamespace, method: str, timing: str
) -> None:
    """State of one federation, loaded into another, is each one's own from then on."""
    whole, _ = federations.ran(method, timing, LIVELY)
    first, _ = federations.ran(method, timing, LIVELY, rounds=6)
    second = federations.build(method, timing, LIVELY)
    second.load(first.state())
    federations.go_on(second)
    federations.go_on(first)
    assert not federations.differences(whole.state(), second.state())
    assert not federations.differences(whole.state(), first.state())


@every_method
@both_timings
@with_and_without_noise
def test_the_same_messages_get_the_same_answers_without_the_simulator(
    federations: SimpleNamespace, method: str, timing: str, plan: str
) -> None:
    """A server knows nothing of clocks and drivers: it answers what it is asked, in that order."""
    changes = {**LIVELY, **federations.PLANS[plan]}
    simulated, tape = federations.ran(method, timing, changes)
    told: dict[tuple[int, int], bytes] = {}
    for _, way, client, frame in tape.seen:
        message = wire.decode(frame, federations.CODEC)
        if isinstance(message, Reply):
            assert way == "down"
            told.setdefault((client, message.number), frame)
    server = federations.build(method, timing, changes).server
    given: dict[tuple[int, int], bytes] = {}
    for query in tape.queries() if timing == "asynchronous" else _all_queries(federations, tape):
        for client, frame in server.receive(federations.encoded(query)):
            given[client, federations.reply(frame).number] = bytes(frame)
    assert given == told
    assert not federations.differences(simulated.server.state(), server.state())


def _all_queries(federations: SimpleNamespace, tape: Any) -> list[Query]:
    sent = {}
    for _, way, client, message in tape.messages():
        if way == "up":
            sent.setdefault((message.number, client), message)
    return [sent[key] for key in sorted(sent)]


@every_method
@both_timings
def test_tiny_noise_and_a_wide_clip_are_the_plain_method(
    federations: SimpleNamespace, method: str, timing: str
) -> None:
    noise, changes = 1e-6, large_steps(method)
    tiny = {"privacy.mechanism": "gaussian", "privacy.clip": 1e9, "privacy.noise_std": noise}
    plain, _ = federations.ran(method, timing, changes)
    noised, _ = federations.ran(method, timing, {**changes, **tiny})
    pairs = [*zip(plain.models, noised.models, strict=True)]
    for a, b in [*pairs, (plain.server.side.head, noised.server.side.head)]:
        assert not torch.equal(a.parameters, b.parameters)
        assert torch.allclose(a.parameters, b.parameters, atol=1000 * noise)


class Spy(NoPrivacy):
    """A plan that keeps the per-record values which the method hands it."""

    def __init__(self) -> None:
        super().__init__(8)
        self.seen: list[Tensor] = []

    def total(self, values: Tensor) -> Tensor:
        self.seen.append(values.reshape(values.shape[0], -1).clone())
        return super().total(values)

    def each(self, values: Tensor) -> Tensor:
        self.seen.append(values.reshape(values.shape[0], -1).clone())
        return super().each(values)


def spied(
    federations: SimpleNamespace, method: str, timing: str, of: VerticalData, *, scale: float = 1.0
) -> tuple[list[Tensor], list[Query], list[Any]]:
    """Per-record values behind the replies of one round, the queries, and the replies."""
    federation = federations.build(method, timing, large_steps(method), of=of)
    spy = federation.server.side.plan = Spy()
    clients = [0, 1, 2] if timing == "synchronous" else [1]
    frames = [federations.ask(federation, client) for client in clients]
    queries = [federations.query(frame) for frame in frames]
    if scale != 1.0:
        for query in queries:
            query.embeddings[:, 3] *= scale
        frames = [federations.encoded(query) for query in queries]
    answers = [a for frame in frames for a in federation.server.receive(frame)]
    return spy.seen, queries, [federations.reply(answer) for _, answer in answers]


def relabelled(data: VerticalData, record: int) -> VerticalData:
    labels = data.labels["table"].clone()
    labels[record] = (labels[record] + 1) % 3
    changed = {**data.labels, "table": labels}
    return VerticalData(
        data.name, data.task, data.parties, data.features, changed, data.fitted_scaling
    )


@every_method
@both_timings
def test_a_record_decides_its_own_values_and_no_others(
    federations: SimpleNamespace, method: str, timing: str
) -> None:
    """On this rests the sensitivity of everything that is released."""
    data = federations.data()
    plain, queries, _ = spied(federations, method, timing, data)
    ids = queries[0].ids.tolist()
    others = [row for row in range(len(ids)) if row != 3]
    assert len(plain) == len(queries)
    for variant, scale in ((relabelled(data, ids[3]), 1.0), (data, 1.5)):
        changed, _, _ = spied(federations, method, timing, variant, scale=scale)
        for a, b in zip(plain, changed, strict=True):
            assert torch.allclose(a[others], b[others], atol=1e-5)
            assert not torch.allclose(a[3], b[3], atol=1e-5)


@every_method
@both_timings
def test_a_label_outside_the_batch_decides_nothing(
    federations: SimpleNamespace, method: str, timing: str
) -> None:
    data = federations.data()
    plain, queries, replies = spied(federations, method, timing, data)
    absent = next(record for record in range(29) if record not in queries[0].ids)
    changed, _, others = spied(federations, method, timing, relabelled(data, absent))
    assert all(torch.equal(a, b) for a, b in zip(plain, changed, strict=True))
    assert all(torch.equal(a.values, b.values) for a, b in zip(replies, others, strict=True))


@every_method
@both_timings
def test_replies_are_all_computed_before_the_server_steps(
    federations: SimpleNamespace, method: str, timing: str
) -> None:
    """So they do not depend on how far it steps."""
    replies = []
    for rate in (1e-6, 10.0):
        federation = federations.build(method, timing, {"server.optimizer.learning_rate": rate})
        frames = [federations.ask(federation, client) for client in range(3)]
        if timing == "asynchronous":
            frames = frames[:1]
        answers = [a for frame in frames for a in federation.server.receive(frame)]
        replies.append([bytes(answer) for _, answer in answers])
    assert len(replies[0]) == (3 if timing == "synchronous" else 1)
    assert replies[0] == replies[1]


@every_method
def test_a_short_batch_is_divided_by_the_nominal_size(
    federations: SimpleNamespace, method: str
) -> None:
    """Five records among batches of five, and of eight: the same sums, over five and over eight."""
    ids = torch.tensor([4, 0, 27, 13, 2])
    values = []
    for nominal in (5, 8):
        federation = federations.build(method, changes={"batch_size": nominal})
        points = federations.query(federations.ask(federation, 0)).embeddings.shape[0]
        embeddings = torch.linspace(-2, 2, points * 15).sin().view(points, 5, 3)
        frame = federations.encoded(Query(0, 0, ids, embeddings))
        ((_, answer),) = federation.server.receive(frame)
        values.append(federations.reply(answer).values * nominal)
    assert torch.allclose(*values, rtol=1e-5)
    assert float(values[0].abs().max()) > 0.01


@every_method
@both_timings
def test_nothing_draws_from_global_generators(
    federations: SimpleNamespace, method: str, timing: str
) -> None:
    def states() -> list[Any]:
        return [
            bytes(torch.get_rng_state().numpy()),
            repr(np.random.get_state()),
            random.getstate(),
        ]

    torch.manual_seed(0)
    before = states()
    _, tape = federations.ran(method, timing, federations.GAUSSIAN)
    assert states() == before
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    _, again = federations.ran(method, timing, federations.GAUSSIAN)
    assert again.seen == tape.seen


@every_method
def test_a_query_is_all_that_a_client_says_of_its_features(
    federations: SimpleNamespace, method: str
) -> None:
    """Records outside the batch leave no trace in it."""
    data = federations.data()
    first = federations.build(method, of=data)
    frame = federations.ask(first, 0)
    asked = federations.query(frame).ids
    absent = next(record for record in range(29) if record not in asked)
    data.features[0]["table"][absent] += 100
    assert federations.ask(federations.build(method, of=data), 0) == frame
    data.features[0]["table"][int(asked[0])] += 100
    assert federations.ask(federations.build(method, of=data), 0) != frame


@every_method
def test_evaluations_are_counted_as_they_are_made(
    federations: SimpleNamespace, method: str
) -> None:
    """The points that a query adds to the table's own."""
    federation = federations.build(method)
    seen = []
    head = federation.server.side.head
    evaluate = head.evaluate

    def counting(points: Any, *others: Any) -> Any:
        seen.append(len(points))
        return evaluate(points, *others)

    head.evaluate = counting
    federations.converse(federation, [0, 1])
    expected = federations.config(method).method.evaluations_per_query + 1
    assert seen == [expected, expected]


@every_method
@both_timings
def test_the_meter_sums_the_training_losses(
    federations: SimpleNamespace, method: str, timing: str
) -> None:
    federation, tape = federations.ran(method, timing, rounds=5)
    meter = federation.server.side.meter
    queries = tape.queries()
    sizes = [query.ids.numel() for query in queries]
    expected = sum(sizes) // (3 if timing == "synchronous" else 1)
    assert meter.records == expected
    assert 0.3 < meter.loss / meter.records < 3
    assert 0 <= meter.correct <= meter.records
