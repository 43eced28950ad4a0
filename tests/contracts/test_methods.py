"""What every method must do, in both timings (`vertizo.methods.base`)."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests import federations
from tests.rows import each
from torch import Tensor, nn

from vertizo.core.errors import ShapeError
from vertizo.data.vertical import VerticalData
from vertizo.methods.choice import METHODS
from vertizo.privacy.plan import NoPrivacy
from vertizo.protocol.messages import Query, Reply
from vertizo.run import checkpoint

PAIRS = [(name, timing) for name, method in METHODS.items() for timing in method.timings]
LOGITS = ["label-statistic"]
"""Methods whose clients send as many numbers as there are classes, and learn by themselves."""
every_method = each("method", METHODS)
every_pair = each("method, timing", PAIRS)
with_and_without_noise = each("plan", ["none", "gaussian", "embedding-noise"])

LIVELY = {
    "epochs": 3,
    "client.optimizer.momentum": 0.9,
    "server.optimizer.momentum": 0.9,
    "simulation.drop": 0.2,
}
"""Momentum on both sides, and messages that get lost."""


def lively(method: str) -> dict[str, Any]:
    """`LIVELY`, with rates at which the method does not diverge.

    A server that moves by forward differences goes √d_0 times as far as by its gradient; at the
    rate of the others, with momentum, its weights and with them the clients' slopes explode.
    """
    zeroth_order = METHODS[method].server_update != "sgd"
    return {**LIVELY, "server.optimizer.learning_rate": 0.003 if zeroth_order else 0.1}


def large_steps(method: str) -> dict[str, Any]:
    """A smoothing at which loss differences keep their digits, where losses are told apart."""
    changes = {}
    if "smoothing" in METHODS[method].model_fields:
        changes["method.smoothing"] = 0.05
    if METHODS[method].server_update != "sgd":
        changes["server.smoothing"] = 0.05
    return changes


def askers(timing: str) -> list[int]:
    """Clients that one answer takes: all of them in step, or any one."""
    return [0, 1, 2] if timing == "synchronous" else [1]


def rates(method: str) -> dict[str, Any]:
    """Learning rates and epochs: gradients bear larger steps than estimates do.

    ZOO-VFL needs smaller steps at the server, and then more of them, which is the weakness that
    VFL-Cascaded shows of it.
    """
    options = METHODS[method]
    zeroth_order = options.server_update != "sgd"
    exact = options.first_order_client and method != "czofo"
    return {
        "client.optimizer.learning_rate": 0.1 if exact else 0.03,
        "server.optimizer.learning_rate": 0.02 if zeroth_order else 0.1,
        "epochs": 40 if zeroth_order else 20,
    }


@each("method, timing", [pair for pair in PAIRS if pair[0] not in LOGITS])
def test_clients_are_trained(method: str, timing: str) -> None:
    """Held against the same run with clients that stay as they were initialised."""
    found = {}
    for control in ("none", "frozen"):
        changes = {
            **large_steps(method),
            "control": control,
            "batch_size": 16,
            "client.model": {"name": "mlp", "outputs": 1},
            "server.model": {"name": "mlp", "hidden": [12]},
            **rates(method),
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


@every_pair
def test_any_differentiable_module_may_be_the_server(
    tmp_path: Path, method: str, timing: str
) -> None:
    """It steps by the batch's losses at what its table then holds.

    By autograd's gradient, Q times where the method has local steps; where the method's server is
    one of forward differences, by the rise of the loss along the line that it moved on.
    """
    (tmp_path / "server.py").write_text(SERVER)
    model = {"name": "module", "path": f"{tmp_path / 'server.py'}:tanh"}
    changes = {**large_steps(method), "server.model": model, "server.join": "concat"}
    federation = federations.build(method, timing, changes)
    options = federations.config(method, timing).method
    side, labels = federation.server.side, federation.data.labels["train"]
    start = side.model.parameters.clone().double()
    clients = askers(timing)
    asked = federations.query(federations.ask(federation, clients[0]), METHODS[method].up)
    ids, own = asked.ids, slice(3 * clients[0], 3 * clients[0] + 3)
    federations.converse(federation, clients)
    rows = side.table.values[ids].double()
    rows[:, own] = options.stored(asked.embeddings).double()  # a step may move the table on
    moved = side.model.parameters.double() - start

    def loss(module: nn.Module, parameters: Tensor) -> Tensor:
        nn.utils.vector_to_parameters(parameters, module.parameters())
        return nn.functional.cross_entropy(module(rows), labels[ids])

    module = nn.Sequential(nn.Linear(9, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    if options.server_update == "sgd":
        here = start
        for _ in range(options.server_steps):
            module.zero_grad()
            loss(module, here).backward()
            gradient = torch.cat([w.grad.reshape(-1) for w in module.parameters()])
            here = here - 0.1 * gradient
        assert torch.allclose(start + moved, here, atol=1e-6)
        return
    direction = moved * math.sqrt(start.numel()) / moved.norm()  # scaled-sphere, up to its sign
    with torch.no_grad():
        plain = loss(module, start)
        slopes = [(loss(module, start + 0.05 * u) - plain) / 0.05 for u in (direction, -direction)]
    expected = [-0.1 * slope * u for slope, u in zip(slopes, (direction, -direction), strict=True)]
    assert float(moved.norm()) > 0.01
    assert min(float((moved - e).norm() / moved.norm()) for e in expected) < 1e-4
    assert max(float((moved - e).norm() / moved.norm()) for e in expected) > 1e-3


@every_pair
@with_and_without_noise
def test_shapes_are_as_declared(method: str, timing: str, plan: str) -> None:
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


@every_pair
def test_the_number_of_points_is_the_methods(method: str, timing: str) -> None:
    federation = federations.build(method, timing)
    query = federations.query(federations.ask(federation, 0), METHODS[method].up)
    for embeddings in (query.embeddings[1:], torch.cat([query.embeddings, query.embeddings])):
        frame = federations.encoded(Query(0, 0, query.ids, embeddings), METHODS[method].up)
        with pytest.raises(ShapeError):
            federation.server.receive(frame)


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("dpzv", {"method.num_directions": 3}),
    ("dpzv", {"method.num_directions": 3, "method.clipping": "jointly"}),
    ("czofo", {"method.scalars": "record", "method.num_directions": 5}),
    ("cascaded", {"method.reply": "difference"}),
    ("zoo-vfl", {"method.reply": "difference"}),
    ("compressed-vfl", {"method.local_steps": 3}),
]
"""Methods, and options that change what is sent or remembered."""


def variant_of(options: dict[str, Any], plan: str = "none") -> dict[str, Any]:
    """How slopes are clipped can be said where they are."""
    changes = dict(options)
    if "method.clipping" in options and plan == "none":
        changes |= federations.HARDLY_ANY
    if plan == "embedding-noise":
        changes.pop("method.clipping", None)
    return changes | federations.PLANS[plan]


PLANS = federations.PLANS
RESUMED: list[tuple[str, str | None, dict[str, Any], list[int]]] = [
    *((*pair, PLANS[plan], [0, 1, 7]) for pair in PAIRS for plan in ("none", "gaussian")),
    *((*pair, federations.EMBEDDING_NOISE, [7]) for pair in PAIRS),
    *((name, None, variant_of(options, plan), [5]) for name, options in VARIANTS for plan in PLANS),
]
"""Method, timing, changes, and rounds to stop after. Noise on embeddings needs no state."""


@each("method, timing, more, stops", RESUMED)
def test_a_client_that_was_restarted_between_asking_and_being_told_goes_on_alike(
    method: str, timing: str | None, more: dict[str, Any], stops: list[int]
) -> None:
    changes = {"client.optimizer.momentum": 0.9, **more}
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


@each("method, timing, more, stops", RESUMED)
def test_a_run_that_was_stopped_goes_on_bit_by_bit(
    tmp_path: Path, method: str, timing: str | None, more: dict[str, Any], stops: list[int]
) -> None:
    """Through a checkpoint file, into objects that were built anew."""
    changes = {**lively(method), **more}
    whole, tape = federations.ran(method, timing, changes)
    assert whole.simulator.traffic.lost > 0
    for rounds in stops:
        first, beginning = federations.ran(method, timing, changes, rounds=rounds)
        checkpoint.save(tmp_path / "state", first.state())
        end = federations.Tape(METHODS[method].up)
        second = federations.build(method, timing, changes, observer=end)
        second.load(checkpoint.load(tmp_path / "state"))
        again = federations.copied(second.state())
        assert not federations.differences(federations.copied(first.state()), again)
        federations.go_on(second)
        assert beginning.seen + end.seen == tape.seen
        assert not federations.differences(whole.state(), second.state())


@every_pair
def test_a_copy_does_not_disturb_the_run_it_was_taken_of(method: str, timing: str) -> None:
    """State of one federation, loaded into another, is each one's own from then on."""
    whole, _ = federations.ran(method, timing, lively(method))
    first, _ = federations.ran(method, timing, lively(method), rounds=6)
    second = federations.build(method, timing, lively(method))
    second.load(first.state())
    federations.go_on(second)
    federations.go_on(first)
    assert not federations.differences(whole.state(), second.state())
    assert not federations.differences(whole.state(), first.state())


@every_pair
@with_and_without_noise
def test_the_same_messages_get_the_same_answers_without_the_simulator(
    method: str, timing: str, plan: str
) -> None:
    """A server knows nothing of clocks and drivers: it answers what it is asked, in that order."""
    changes = {**lively(method), **federations.PLANS[plan]}
    simulated, tape = federations.ran(method, timing, changes)
    told: dict[tuple[int, int], bytes] = {}
    asked: dict[tuple[int, int], bytes] = {}
    for (_, way, client, frame), (*_, message) in zip(tape.seen, tape.messages(), strict=True):
        if isinstance(message, Reply):
            assert way == "down"
            told.setdefault((client, message.number), frame)
        elif isinstance(message, Query):
            asked[client, message.number] = frame
    server = federations.build(method, timing, changes).server
    given: dict[tuple[int, int], bytes] = {}
    for query in tape.queries() if timing == "asynchronous" else _all_queries(tape):
        for client, frame in server.receive(asked[query.client, query.number]):
            given[client, federations.reply(frame).number] = bytes(frame)
    assert given == told
    assert not federations.differences(simulated.server.state(), server.state())


def _all_queries(tape: Any) -> list[Query]:
    sent = {}
    for _, way, client, message in tape.messages():
        if way == "up":
            sent.setdefault((message.number, client), message)
    return [sent[key] for key in sorted(sent)]


@every_pair
def test_tiny_noise_and_a_wide_clip_are_the_plain_method(method: str, timing: str) -> None:
    """Nothing is rounded here: 8 bits would turn some tiny difference into a step.

    A loss of float32 swallows most of so little noise; in enough rounds every party gets some.
    """
    noise = 1e-6
    changes = {**large_steps(method), **rates(method), "epochs": 4, "codecs.up.name": "none"}
    tiny = {"privacy.mechanism": "gaussian", "privacy.clip": 1e9, "privacy.noise_std": noise}
    plain, _ = federations.ran(method, timing, changes)
    noised, _ = federations.ran(method, timing, {**changes, **tiny})
    pairs = [*zip(plain.models, noised.models, strict=True)]
    for a, b in [*pairs, (plain.server.side.model, noised.server.side.model)]:
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
    method: str, timing: str, of: VerticalData, *, scale: float = 1.0, more: dict[str, Any]
) -> tuple[list[Tensor], list[Query], list[Any]]:
    """Per-record values behind the replies of one round, the queries, and the replies.

    Of embeddings as they are: the 8 bits of Compressed-VFL have one scale for a batch, so that a
    record moves the others' embeddings before any method sees them.
    """
    changes = {**large_steps(method), "codecs.up.name": "none", **more}
    federation = federations.build(method, timing, changes, of=of)
    spy = federation.server.side.plan = Spy()
    frames = [federations.ask(federation, client) for client in askers(timing)]
    queries = [federations.query(frame) for frame in frames]
    if scale != 1.0:
        for query in queries:
            query.embeddings[:, 3] *= scale
        frames = [federations.encoded(query) for query in queries]
    answers = [a for frame in frames for a in federation.server.receive(frame)]
    return spy.seen, queries, [federations.reply(answer) for _, answer in answers]


def relabelled(data: VerticalData, record: int) -> VerticalData:
    labels = data.labels["train"].clone()
    labels[record] = (labels[record] + 1) % 3
    return replace(data, labels={**data.labels, "train": labels})


@each(
    "method, timing, more",
    [
        *((*pair, {}) for pair in PAIRS),
        *((name, METHODS[name].timings[0], variant_of(options)) for name, options in VARIANTS),
    ],
)
def test_a_record_decides_its_own_values_and_no_others(
    method: str, timing: str, more: dict[str, Any]
) -> None:
    """On this rests the sensitivity of everything that is released.

    A label outside the batch decides nothing at all.
    """
    data = federations.data()
    plain, queries, replies = spied(method, timing, data, more=more)
    ids = queries[0].ids.tolist()
    others = [row for row in range(len(ids)) if row != 3]
    each_of_three = method == "dpzv" and more.keys() == {"method.num_directions"}
    entries = 3 if each_of_three else 1  # that the accounting has of a record
    assert len(plain) == entries * len(queries)
    assert federations.config(method, changes=more).method.releases_per_query == entries
    for changed_data, scale in ((relabelled(data, ids[3]), 1.0), (data, 1.5)):
        changed, _, _ = spied(method, timing, changed_data, scale=scale, more=more)
        for a, b in zip(plain, changed, strict=True):
            assert torch.allclose(a[others], b[others], atol=1e-5)
            assert not torch.allclose(a[3], b[3], atol=1e-5)
    absent = next(record for record in range(29) if record not in queries[0].ids)
    same, _, alike = spied(method, timing, relabelled(data, absent), more=more)
    assert all(torch.equal(a, b) for a, b in zip(plain, same, strict=True))
    assert all(torch.equal(a.values, b.values) for a, b in zip(replies, alike, strict=True))


@every_pair
def test_replies_are_all_computed_before_the_server_steps(method: str, timing: str) -> None:
    """So they do not depend on how far it steps."""
    replies = []
    for rate in (1e-6, 10.0):
        federation = federations.build(method, timing, {"server.optimizer.learning_rate": rate})
        frames = [federations.ask(federation, client) for client in askers(timing)]
        answers = [a for frame in frames for a in federation.server.receive(frame)]
        replies.append([bytes(answer) for _, answer in answers])
    assert len(replies[0]) == (3 if timing == "synchronous" else 1)
    assert replies[0] == replies[1]


@every_pair
def test_a_short_batch_is_divided_by_the_nominal_size(method: str, timing: str) -> None:
    """Five records among batches of five, and of eight: the same sums, over five and over eight.

    Asked of the server's side: a synchronous server would name a batch of its own.
    """
    ids = torch.tensor([4, 0, 27, 13, 2])
    options = federations.config(method, timing).method
    points = options.points
    embeddings = torch.linspace(-2, 2, points * 15).sin().view(points, 5, 3)
    values = []
    for nominal in (5, 8):
        federation = federations.build(method, timing, {"batch_size": nominal})
        queries = [Query(client, 0, ids, embeddings / (1 + client)) for client in askers(timing)]
        replies = federation.server.side.answer(queries, 1)
        assert [reply.client for reply in replies] == askers(timing)
        values.append(torch.stack([reply.values for reply in replies]) * nominal)
    assert torch.allclose(*values, rtol=1e-5, atol=1e-6)
    assert float(values[0].abs().max()) > 0.005


@every_pair
def test_nothing_draws_from_global_generators(method: str, timing: str) -> None:
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
def test_a_query_is_all_that_a_client_says_of_its_features(method: str) -> None:
    """Records outside the batch leave no trace in it."""
    data = federations.data()
    first = federations.build(method, of=data)
    frame = federations.ask(first, 0)
    asked = federations.query(frame, METHODS[method].up).ids
    absent = next(record for record in range(29) if record not in asked)
    data.features[0]["train"][absent] += 100
    assert federations.ask(federations.build(method, of=data), 0) == frame
    data.features[0]["train"][int(asked[0])] += 100
    assert federations.ask(federations.build(method, of=data), 0) != frame


@every_pair
def test_evaluations_are_counted_as_they_are_made(method: str, timing: str) -> None:
    """The points that a query adds to the table's own, and one for each further local step."""
    federation = federations.build(method, timing)
    seen = []
    head = federation.server.side.model
    evaluate = head.evaluate

    def counting(points: Any, *others: Any) -> Any:
        seen.append(len(points))
        return evaluate(points, *others)

    head.evaluate = counting
    federations.converse(federation, 2 * askers(timing))
    options = federations.config(method, timing).method
    first = len(askers(timing)) * options.evaluations_per_query + 1
    assert seen == 2 * [first, *[1] * (options.server_steps - 1)]


@every_pair
def test_the_meter_sums_the_training_losses(method: str, timing: str) -> None:
    federation, tape = federations.ran(method, timing, rounds=5)
    meter = federation.server.side.meter
    queries = tape.queries()
    sizes = [query.ids.numel() for query in queries]
    expected = sum(sizes) // (3 if timing == "synchronous" else 1)
    assert meter.records == expected
    assert 0.3 < meter.loss / meter.records < 3
    assert 0 <= meter.correct <= meter.records
