"""Rounds by CUDA graphs are the eager ones, bit for bit.

Here graphs are recorded operations on the processor's tensors (`tests.graphs`); on a card they are
graphs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
import torch
from tests import federations
from tests.cards import as_on_a_card, on_a_card
from tests.contracts.test_cards import CASES, GATE, made
from tests.graphs import Graphs, as_with_graphs
from tests.rows import each
from torch import Tensor, nn

from vertizo.core import arrays
from vertizo.core.arrays import graphs
from vertizo.core.arrays.graphs import Graph, Graphed
from vertizo.core.errors import NonFiniteError
from vertizo.core.randomness import Stream
from vertizo.methods.base import ClientSide
from vertizo.methods.czofo import Czofo
from vertizo.methods.first_order import Vafl
from vertizo.models.optimizers import Sgd
from vertizo.models.torch import wrap
from vertizo.party.graphed_client import GraphedClient
from vertizo.privacy.noise.secure import SecureNoise
from vertizo.run.loop.federation import Federation
from vertizo.zeroth_order import directions

CARD = torch.device("cpu")
"""Taken for a card."""
FEW = [GATE[0], GATE[4], GATE[5]]


def held_to_eager(
    make: Callable[[], Federation],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> Graphs:
    """Whether all that a run keeps at its end is the same with graphs and without."""
    with as_on_a_card(monkeypatch):
        eager = make()
        eager.start(upload_table=True)
        federations.go_on(eager)
    with as_with_graphs(monkeypatch) as used:
        found = make()
        found.start(upload_table=True)
        federations.go_on(found)
    same(eager, found)
    assert used.replayed > found.server.round  # a round has three; short batches come too seldom
    assert not caplog.messages
    return used


def same(one: Federation, other: Federation) -> None:
    wanted, found = federations.copied(one.state()), federations.copied(other.state())
    assert not federations.differences(wanted, found)


@each("case", CASES, gate=FEW)
def test_rounds_are_the_eager_ones(
    case: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    held_to_eager(lambda: made(*case), monkeypatch, caplog)


ADAM = {
    f"{party}.optimizer.{key}": value
    for party in ("client", "server")
    for key, value in (("algorithm", "adam"), ("momentum", 0.9))
}
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("dpzv", {"client.optimizer.momentum": 0.9, "server.optimizer.momentum": 0.5}),
    ("dpzv", ADAM),
    ("dpzv", {"client.optimizer.decay": "cosine", "server.optimizer.decay": "step"}),
    ("dpzv", {"client.optimizer.weight_decay": 0.1, "client.optimizer.decay": "linear"}),
    ("dpzv", {"client.optimizer.regularizer": "l1", "client.optimizer.weight_decay": 0.1}),
    ("dpzv", {"method.num_directions": 3}),
    ("dpzv", {"method.num_directions": 2, "method.clipping": "jointly", **federations.GAUSSIAN}),
    ("dpzv", {"control": "random"}),
    ("dpzv", {"server.join": "mean"}),
    *(("dpzv", {"method.directions": law}) for law in directions.LAWS),
    ("cascaded", {**ADAM, "client.optimizer.decay": "linear"}),
    ("cascaded", {"method.reply": "difference", "simulation.drop": 0.2}),
    ("czofo", {"method.directions": "coordinate", "method.scalars": "record"}),
    ("czofo", {**ADAM, "method.num_directions": 3}),
    ("vafl", {"simulation.drop": 0.2, "client.optimizer.momentum": 0.9}),
    ("vafl", federations.EMBEDDING_NOISE),
    ("vafl", {"client.model.hidden": [5]}),  # whose outputs its gradient needs
    ("czofo", {"client.model.hidden": [5]}),
    ("compressed-vfl", {"method.local_steps": 3}),
    ("split", {"control": "random"}),
    ("dpzv", {"control": "frozen"}),
    ("split", {"simulation.timeout": 0.5, "simulation.drop": 0.3}),
]


@each("method, options", OPTIONS, gate=OPTIONS[1:3])
def test_so_are_those_of_every_option(
    method: str,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    held_to_eager(lambda: federations.build(method, None, options), monkeypatch, caplog)


@pytest.mark.full
@each("method", ["dpzv", "cascaded", "zoo-vfl"])
def test_so_are_those_of_texts(
    method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("transformers")
    data = federations.data()
    parts = [{k: v.mul(7).long().remainder(20) for k, v in p.items()} for p in data.features]
    tokens = replace(data, features=tuple(parts))
    held_to_eager(
        lambda: federations.build(method, None, federations.TEXTS, of=tokens), monkeypatch, caplog
    )


def test_so_are_those_of_directions_that_are_not_held(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(directions, "KEEP_UP_TO", 0)
    monkeypatch.setattr(arrays.philox, "AT_ONCE", arrays.philox.CHUNK)
    held_to_eager(lambda: federations.build("dpzv"), monkeypatch, caplog)


@each("method, timing, update, plan", GATE, gate=FEW[1:2])
def test_a_run_goes_on_where_it_stopped(
    method: str, timing: str, update: str | None, plan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit, whether a round ran by a graph before the stop or eagerly after it."""
    with as_with_graphs(monkeypatch):
        whole, stopped, resumed = (made(method, timing, update, plan) for _ in range(3))
        for each_one in (whole, stopped):
            each_one.start(upload_table=False)
        federations.go_on(stopped, 17)
        kept = federations.copied(stopped.state())
        federations.go_on(stopped, 4)
        stopped.load(federations.copied(kept))
        resumed.load(kept)
        for each_one in (whole, stopped, resumed):
            federations.go_on(each_one)
    same(whole, stopped)
    same(whole, resumed)


@each("method", ("dpzv", "czofo"), gate=["dpzv"])
def test_a_state_that_is_loaded_replaces_what_graphs_read(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An optimiser that had not stepped makes its vector anew."""
    momentum = {"client.optimizer.momentum": 0.9, "server.optimizer.momentum": 0.9}
    with as_with_graphs(monkeypatch):
        whole, begun_again = (federations.build(method, None, momentum) for _ in range(2))
        for each_one in (whole, begun_again):
            each_one.start(upload_table=False)
        kept = federations.copied(begun_again.state())
        federations.go_on(begun_again)
        begun_again.load(kept)
        for each_one in (whole, begun_again):
            federations.go_on(each_one)
    same(whole, begun_again)


@each("method", ("dpzv", "czofo", "vafl"), gate=["czofo"])
def test_a_restarted_client_applies_what_it_was_told(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the query that a graph had computed, which a first-order method computes anew."""
    with as_with_graphs(monkeypatch):
        plain, torn = federations.build(method), federations.build(method)
        for each_one in (plain, torn):
            each_one.start(upload_table=False)
        for _ in range(20):
            federations.go_on(plain, 1)
            federations.go_on(torn, 1)
            for client in torn.clients:
                client.load(federations.copied(client.state()))
                torn.simulator.restored()
    for one, other in zip(plain.models, torn.models, strict=True):
        assert torch.allclose(one.parameters, other.parameters, 1e-5, 1e-6)


@each("method", (Vafl(), Czofo(num_directions=3)))
def test_a_query_that_was_taken_back_leaves_nothing(
    method: Vafl | Czofo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it was computed eagerly, as of a short batch, and a graph computes the next one."""
    pairs, models, stream = [], [], Stream.from_seed(3)
    rows, told = torch.randn(9, 8, 4), torch.randn(method.reply_shape(8, 3))
    with as_with_graphs(monkeypatch):
        for graphed in (False, True):
            torch.manual_seed(0)
            model = wrap(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)))
            side = ClientSide(model, Sgd(0.1), stream, stream)
            pair = method.client(side)
            if graphed:
                client = GraphedClient(pair, side, CARD, check=lambda values: None)
                pair = client.pair
            pairs.append(pair)
            models.append(model)
        for number in range(9):
            for pair in pairs:
                if number >= 2:  # twice before the first update is captured
                    pair.ask(number, rows[number])
                    pair.ask(number, rows[number, :5])
                pair.ask(number, rows[number])
                pair.tell(number, rows[number], told)
    assert torch.equal(models[0].parameters, models[1].parameters)
    of_queries = {type(key) for key, *_ in client._tell._graphs}
    assert of_queries == {Graph}  # each reads what a query's graph has kept


def called(function: Any, calls: int = 6, of: Tensor | None = None) -> list[Any]:
    graphed = Graphed[None](function, "a test", CARD)
    rows = torch.arange(6.0).view(2, 3) if of is None else of
    return [graphed(None, (call,), (rows + call,)) for call in range(calls)]


def test_numbers_of_the_host_are_those_of_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a call was given, what is counted, and what memory of the graph is filled with."""
    count = iter(range(100, 200))

    def work(_: None, numbers: Sequence[int], tensors: Sequence[Tensor]) -> tuple[Tensor]:
        passed = torch.ones(4) * 2  # whose memory later graphs take
        own = graphs.each_call(lambda: next(count))
        both = graphs.fed(lambda a, b: 1000 * a + b, numbers[0], own, device=CARD)
        row = graphs.fed(lambda a: torch.full((3,), a), own, device=CARD, shape=(3,))
        return (tensors[0].sum() + both + row.sum() + passed.sum(),)

    with as_with_graphs(monkeypatch) as used:
        found = [float(result) for (result,) in called(work)]
    assert found == [15 + 6 * k + 1000 * k + 4 * (100 + k) + 8 for k in range(6)]
    assert (used.captured, used.replayed) == (2, 4)  # once to learn what is filled


def test_a_number_that_would_be_frozen_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And the call runs eagerly, which is said once."""
    calls = []

    def work(_: None, numbers: Sequence[int], tensors: Sequence[Tensor]) -> tuple[Tensor]:
        place = len(calls)
        graphs.each_call(partial(calls.append, 0))
        return (tensors[0] + graphs.fed(float, place, device=CARD),)

    monkeypatch.setattr(graphs, "_note", graphs._note.__wrapped__)
    with as_with_graphs(monkeypatch) as used:
        found = called(work)
    assert [float(result.sum()) for (result,) in found] == [15 + 12 * k for k in range(6)]
    assert (len(calls), used.replayed) == (6, 0)
    assert caplog.messages == [
        "note: a test runs without a CUDA graph, more slowly: a number of the host is the same in "
        "every call"
    ]


def test_secure_noise_is_drawn_for_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(noise: SecureNoise) -> Any:
        return lambda _, numbers, tensors: (noise.sum(0, tensors[0].double()),)

    def noise() -> SecureNoise:
        return SecureNoise(
            clip_norm=1.0, noise_std=5.0, ahead=8, random_bytes=random.Random(1).randbytes
        )

    with as_on_a_card(monkeypatch):
        wanted = called(of(noise()))
    with as_with_graphs(monkeypatch) as used:
        found = called(of(noise()))
    assert used.replayed == 4
    assert [one.tolist() for (one,) in found] == [one.tolist() for (one,) in wanted]
    assert len({tuple(one.tolist()) for (one,) in found}) == 6


def test_what_leaves_its_bounds_ends_the_run_at_the_next_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where a graph has checked it."""
    with as_with_graphs(monkeypatch) as used:
        federation = federations.build("dpzv", None, {"server.embedding_bound": 50.0})
        federation.start(upload_table=True)
        federations.go_on(federation, 15)
        federation.simulator.upload("validation", 11)
        federation.models[1].parameters.mul_(1e4)
        before = used.replayed
        federations.go_on(federation, 8)
        assert used.replayed > before + 8
        with pytest.raises(NonFiniteError, match="embeddings of client 1 are NaN or outside"):
            federation.simulator.upload("validation", 11)


def test_so_does_a_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    with as_with_graphs(monkeypatch) as used:
        federation = federations.build("dpzv")
        federation.start(upload_table=True)
        federations.go_on(federation, 15)
        federation.server.side.model.parameters.mul_(1e30)
        before = used.replayed
        federations.go_on(federation, 4)
        assert used.replayed > before + 4
        with pytest.raises(NonFiniteError, match="values of the reply are NaN or outside"):
            federation.simulator.upload("validation", 11)


class Looking(nn.Module):
    """Looks at its output, as no graph can."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, rows: Tensor) -> Tensor:
        graphs.eager_only("it looks at its output")
        return self.layer(rows) * float(self.layer(rows).sum() > 0)


@each("method", ("dpzv", "czofo"))
def test_what_cannot_be_captured_runs_eagerly(
    method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    monkeypatch.setattr(graphs, "_note", cache(graphs._note.__wrapped__))
    changes = {"client.model": {"name": "module", "path": f"{__name__}:Looking"}}
    with as_on_a_card(monkeypatch):
        eager = federations.build(method, None, changes)
        eager.start(upload_table=True)
        federations.go_on(eager)
    with as_with_graphs(monkeypatch):
        found = federations.build(method, None, changes)
        found.start(upload_table=True)
        federations.go_on(found)
    same(eager, found)
    said = "note: a client's query runs without a CUDA graph, more slowly: it looks at its output"
    assert caplog.messages == [said]


@on_a_card
@each("case", CASES)
def test_on_a_card_too(
    case: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(graphs, "are_available", lambda device: False)
        eager = made(*case, device="cuda")
        eager.start(upload_table=True)
        federations.go_on(eager)
    found = made(*case, device="cuda")
    found.start(upload_table=True)
    federations.go_on(found)
    same(eager, found)
    assert found.server._graphed is not None
    assert found.server._graphed._graphs
    assert not caplog.messages
