from __future__ import annotations

import math
from collections import Counter, defaultdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from vertizo.config.schema import ExperimentConfig
from vertizo.protocol import wire
from vertizo.protocol.messages import Batch, Query, Reply
from vertizo.run import traffic as uploads

METHODS = ("dpzv", "cascaded", "vafl")
TIMINGS = ("asynchronous", "synchronous")
every_method = pytest.mark.parametrize("method", METHODS)
both_timings = pytest.mark.parametrize("timing", TIMINGS)

CONSTANT = {"simulation.delay": {"distribution": "constant", "mean": 1.0}}
LOSSY = {"simulation.drop": 0.3, "simulation.timeout": 2.0}
RECORDS, PER_EPOCH, PARTIES = 29, 4, 3


def frames(tape: Any, way: str) -> list[tuple[float, int, bytes]]:
    return [(now, client, frame) for now, seen, client, frame in tape.seen if seen == way]


def asked(tape: Any) -> dict[int, dict[int, Query]]:
    """Every client's queries by number, repetitions dropped."""
    result: dict[int, dict[int, Query]] = defaultdict(dict)
    for _, way, client, message in tape.messages():
        if way == "up":
            assert isinstance(message, Query)
            result[client][message.number] = message
    return result


@every_method
@both_timings
def test_a_seed_decides_the_whole_transcript(
    federations: SimpleNamespace, method: str, timing: str
) -> None:
    changes = {**LOSSY, **federations.GAUSSIAN}
    first, tape = federations.ran(method, timing, changes)
    second, again = federations.ran(method, timing, changes)
    assert tape.seen == again.seen
    assert federations.differences(first.state(), second.state()) == []
    other, changed = federations.ran(method, timing, {**changes, "seed": 1})
    assert [now for now, *_ in tape.seen] != [now for now, *_ in changed.seen]
    queries, others = ({frame for *_, frame in frames(t, "up")} for t in (tape, changed))
    assert not queries & others
    assert other.server.round == first.server.round


@both_timings
@pytest.mark.parametrize("drop", [0.0, 0.3])
def test_each_record_is_in_one_batch_of_a_clients_epoch(
    federations: SimpleNamespace, timing: str, drop: float
) -> None:
    _, tape = federations.ran("dpzv", timing, {"epochs": 3, "simulation.drop": drop})
    orders = set()
    for client in range(PARTIES):
        numbers = asked(tape)[client]
        assert sorted(numbers) == list(range(3 * PER_EPOCH))
        for epoch in range(3):
            of_epoch = range(epoch * PER_EPOCH, (epoch + 1) * PER_EPOCH)
            ids = [record for n in of_epoch for record in numbers[n].ids.tolist()]
            assert sorted(ids) == list(range(RECORDS))
            orders.add(tuple(ids))
    assert len(orders) == (3 if timing == "synchronous" else 9)


@every_method
@both_timings
def test_clients_stop_after_their_epochs(
    federations: SimpleNamespace, method: str, timing: str
) -> None:
    federation, tape = federations.ran(method, timing, {"epochs": 2})
    assert federation.simulator.activations == [2 * PER_EPOCH] * PARTIES
    rounds = 2 * PER_EPOCH * (1 if timing == "synchronous" else PARTIES)
    assert federation.server.round == rounds == federation.total_rounds
    assert [party.answered for party in federation.clients] == [2 * PER_EPOCH] * PARTIES
    seen = len(tape.seen)
    assert federation.simulator.step() is False
    assert len(tape.seen) == seen


@both_timings
def test_a_step_is_one_round_of_the_server(federations: SimpleNamespace, timing: str) -> None:
    federation = federations.build("cascaded", timing, LOSSY)
    federation.start(upload_table=False)
    rounds = 0
    while federation.simulator.step():
        rounds += 1
        assert federation.server.round == rounds
    assert rounds == federation.total_rounds


def test_time_does_not_run_backwards(federations: SimpleNamespace) -> None:
    for timing in TIMINGS:
        federation, tape = federations.ran("dpzv", timing, LOSSY)
        times = [now for now, *_ in tape.seen]
        assert times == sorted(times)
        assert federation.simulator.now == times[-1]


@every_method
def test_synchronous_clients_answer_for_the_named_batch(
    federations: SimpleNamespace, method: str
) -> None:
    _, tape = federations.ran(method, "synchronous")
    named: dict[int, list[int]] = {}
    for _, _, _, message in tape.messages():
        if isinstance(message, Batch):
            ids = message.ids.tolist()
            assert named.setdefault(message.number, ids) == ids
    assert len(named) == 2 * PER_EPOCH
    for client in range(PARTIES):
        assert {n: q.ids.tolist() for n, q in asked(tape)[client].items()} == named


@pytest.mark.parametrize("drop", [0.0, 0.3])
def test_a_synchronous_round_takes_as_long_as_its_slowest_client(
    federations: SimpleNamespace, drop: float
) -> None:
    changes = {"simulation.drop": drop, "simulation.stragglers": {1: 2.0}}
    _, tape = federations.ran("dpzv", "synchronous", changes)
    arrived: dict[int, dict[int, float]] = defaultdict(dict)
    stepped: dict[int, float] = {}
    for now, _, client, message in tape.messages():
        if isinstance(message, Query):
            arrived[message.number][client] = now
        elif isinstance(message, Reply):
            stepped.setdefault(message.number, now)
            if drop == 0:
                assert now == max(arrived[message.number].values())
    assert len(stepped) == 2 * PER_EPOCH
    assert all(stepped[n] < stepped[n + 1] for n in range(2 * PER_EPOCH - 1))
    for number, times in arrived.items():
        assert len(times) == PARTIES
        assert number == 0 or min(times.values()) > stepped[number - 1]


def test_constant_synchronous_rounds_are_as_long_as_the_straggler(
    federations: SimpleNamespace,
) -> None:
    changes = {**CONSTANT, "simulation.stragglers": {2: 3.5}}
    federation, _ = federations.ran("vafl", "synchronous", changes)
    assert federation.simulator.now == pytest.approx(3.5 * 2 * PER_EPOCH)
    assert federation.server.staleness.largest == 0


def test_asynchronous_clients_do_not_wait(federations: SimpleNamespace) -> None:
    """With constant times, the n-th query of a client arrives after n of its rounds."""
    changes = {**CONSTANT, "simulation.stragglers": {2: 3.5}}
    _, tape = federations.ran("vafl", "asynchronous", changes)
    for now, way, client, message in tape.messages():
        slowness = 3.5 if client == 2 else 1.0
        assert now == pytest.approx((message.number + 1) * slowness), way


@both_timings
def test_bandwidth_adds_the_time_of_the_bytes(federations: SimpleNamespace, timing: str) -> None:
    changes = {**CONSTANT, "simulation.bandwidth": 1000.0}
    federation, tape = federations.ran("cascaded", timing, changes)
    begun = [0.0] * PARTIES
    sizes = [0] * PARTIES
    for now, way, client, frame in tape.seen:
        if way == "down":
            sizes[client] = len(frame)
            continue
        least = begun[client] + 1.0 + len(frame) / 1000.0
        assert now >= least - 1e-9
        if timing == "asynchronous":
            assert now <= least + sizes[client] / 1000.0 + 1e-9
        begun[client] = now
    free, _ = federations.ran("cascaded", timing, CONSTANT)
    extra = federation.simulator.now - free.simulator.now
    sent = sum(len(frame) for _, client, frame in frames(tape, "up") if client == 0)
    assert extra >= sent / 1000.0 - 1e-9 > 1.0


@every_method
@both_timings
def test_traffic_is_what_the_observer_saw(
    federations: SimpleNamespace, method: str, timing: str
) -> None:
    federation, tape = federations.ran(method, timing, LOSSY)
    traffic = federation.simulator.traffic
    assert traffic.up == sum(len(frame) for *_, frame in frames(tape, "up"))
    assert traffic.down == sum(len(frame) for *_, frame in frames(tape, "down"))
    assert traffic.table == traffic.evaluation == 0
    assert traffic.up > traffic.down > 0


@both_timings
def test_uploads_are_counted_apart(federations: SimpleNamespace, timing: str) -> None:
    federation = federations.build("dpzv", timing)
    start = [model.parameters.clone() for model in federation.models]
    size = sum(len(party.upload("train", 0, RECORDS)) for party in federation.clients)
    federation.start(upload_table=True)
    traffic = federation.simulator.traffic
    assert traffic.table == size
    assert size > RECORDS * PARTIES * 3 * 4
    assert (traffic.up, traffic.evaluation) == (0, 0)
    expected = torch.cat(
        [
            model(own["train"])
            for model, own in zip(federation.models, federation.data.features, strict=True)
        ],
        1,
    )
    assert torch.equal(federation.server.side.table.values, expected)
    assert all(
        torch.equal(a, model.parameters) for a, model in zip(start, federation.models, strict=True)
    )
    federations.go_on(federation, 3)
    before = (traffic.up, traffic.down, traffic.table)
    for purpose in ("test", "validation"):
        federation.simulator.upload(purpose, 11)
        federation.server.score(purpose)
    assert (traffic.up, traffic.down, traffic.table) == before
    sizes = [
        len(party.upload(purpose, 0, 11))
        for party in federation.clients
        for purpose in ("test", "validation")
    ]
    assert traffic.evaluation == sum(sizes)


def test_an_upload_in_several_frames_is_the_same_table(
    federations: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables, sizes = [], []
    for rows in (10_000, 7):
        monkeypatch.setattr(uploads, "UPLOAD_ROWS", rows)
        federation = federations.build()
        federation.start(upload_table=True)
        tables.append(federation.server.side.table.values)
        sizes.append(federation.simulator.traffic.table)
    assert torch.allclose(*tables, atol=1e-6)
    assert sizes[1] > sizes[0]


def test_evaluating_does_not_change_a_run(federations: SimpleNamespace) -> None:
    for timing in TIMINGS:
        _, plain = federations.ran("dpzv", timing, LOSSY)
        tape = federations.Tape()
        federation = federations.build("dpzv", timing, LOSSY, observer=tape)
        federation.start(upload_table=False)
        while federation.simulator.step():
            federation.simulator.upload("test", 11)
            federation.server.score("test")
        assert tape.seen == plain.seen


def lossy(federations: SimpleNamespace, timing: str, **more: Any) -> tuple[Any, Any]:
    return federations.ran("dpzv", timing, {**LOSSY, "epochs": 20, **more})


@both_timings
def test_the_right_share_of_messages_is_lost(federations: SimpleNamespace, timing: str) -> None:
    federation, tape = lossy(federations, timing)
    sent = sum(not isinstance(message, Batch) for *_, message in tape.messages())
    arrived = 2 * 20 * PER_EPOCH * PARTIES
    lost = federation.simulator.traffic.lost
    if timing == "asynchronous":
        assert lost == _lost(tape)
    assert sent > arrived
    assert abs(lost / sent - 0.3) < 5 * math.sqrt(0.3 * 0.7 / sent)
    assert federations.ran("dpzv", timing)[0].simulator.traffic.lost == 0


def _lost(tape: Any) -> int:
    """Asynchronous: each query sent but the last got lost, or the reply that followed it did."""
    sent = Counter(
        (client, message.number)
        for _, way, client, message in tape.messages()
        if way == "up" and isinstance(message, Query)
    )
    return sum(count - 1 for count in sent.values())


def test_what_is_lost_is_sent_again_after_the_timeout(federations: SimpleNamespace) -> None:
    _, tape = lossy(federations, "asynchronous")
    last: dict[tuple[int, int], tuple[float, bytes]] = {}
    again = 0
    for (now, client, frame), (_, _, _, message) in zip(
        frames(tape, "up"), [m for m in tape.messages() if m[1] == "up"], strict=True
    ):
        key = client, message.number
        if key in last:
            again += 1
            assert now == pytest.approx(last[key][0] + 2.0)
            assert frame == last[key][1]
        last[key] = now, frame
    assert again > 50


@both_timings
def test_a_repeated_query_gets_the_same_reply(federations: SimpleNamespace, timing: str) -> None:
    _, tape = lossy(federations, timing)
    told: dict[tuple[int, int], bytes] = {}
    repeated = 0
    for _, client, frame in frames(tape, "down"):
        message = wire.decode(frame, federations.CODEC)
        if isinstance(message, Reply):
            repeated += (client, message.number) in told
            assert told.setdefault((client, message.number), frame) == frame
    assert repeated > 20


@both_timings
def test_losses_charge_no_record_twice(federations: SimpleNamespace, timing: str) -> None:
    federation, _ = lossy(federations, timing, **federations.GAUSSIAN)
    counts = federations.charged(federation)
    assert counts.tolist() == [[20] * RECORDS] * PARTIES
    assert federation.simulator.traffic.lost > 50


@every_method
def test_losses_do_not_change_what_synchronous_rounds_learn(
    federations: SimpleNamespace, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replies wait for nobody's luck: the same messages are accepted, later."""
    monkeypatch.setattr(ExperimentConfig, "digest", "the same")  # on which the noise hangs
    changes = {**federations.GAUSSIAN, "server.optimizer.momentum": 0.9}
    plain, _ = federations.ran(method, "synchronous", changes)
    lossy, _ = federations.ran(method, "synchronous", {**changes, **LOSSY})
    assert lossy.simulator.traffic.lost > 5
    assert lossy.simulator.now > plain.simulator.now
    assert federations.differences(plain.parameters(), lossy.parameters()) == []
    assert federations.differences(plain.server.state(), lossy.server.state()) == []


@every_method
def test_losses_do_not_change_what_a_single_client_learns(
    federations: SimpleNamespace, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ExperimentConfig, "digest", "the same")  # on which the noise hangs
    data = federations.data(parties=1)
    plain, tape = federations.ran(method, changes=federations.GAUSSIAN, of=data)
    lossy, again = federations.ran(method, changes={**federations.GAUSSIAN, **LOSSY}, of=data)
    assert lossy.simulator.traffic.lost > 2
    assert federations.differences(plain.parameters(), lossy.parameters()) == []
    assert {f for *_, f in tape.seen} == {f for *_, f in again.seen}


@every_method
def test_losses_do_not_change_which_records_asynchronous_clients_ask_about(
    federations: SimpleNamespace, method: str
) -> None:
    _, plain = federations.ran(method)
    _, lossy = federations.ran(method, changes=LOSSY)
    for client in range(PARTIES):
        first, second = asked(plain)[client], asked(lossy)[client]
        assert first.keys() == second.keys()
        assert all(torch.equal(first[n].ids, second[n].ids) for n in first)
    taken = Counter((query.client, query.number) for query in lossy.queries())
    assert set(taken.values()) == {1}


def ages(queries: list[Query], records: int, parties: int) -> list[list[int]]:
    """For every client, how old its entries were in the other clients' rounds."""
    stored = np.zeros((records, parties), int)
    found: list[list[int]] = [[] for _ in range(parties)]
    for round_, query in enumerate(queries, 1):
        for record in query.ids.tolist():
            stored[record, query.client] = round_
            for client in range(parties):
                if client != query.client:
                    found[client].append(round_ - int(stored[record, client]))
    return found


@every_method
@pytest.mark.parametrize("drop", [0.0, 0.3])
@pytest.mark.parametrize("parties", [2, 3])
def test_staleness_equals_a_recount(
    federations: SimpleNamespace, method: str, drop: float, parties: int
) -> None:
    changes = {"epochs": 4, "simulation.drop": drop, "simulation.stragglers": {1: 3.0}}
    data = federations.data(parties=parties)
    federation, tape = federations.ran(method, changes=changes, of=data)
    found = [age for client in ages(tape.queries(), RECORDS, parties) for age in client]
    staleness = federation.server.staleness
    assert staleness.count == len(found)
    assert staleness.mean == pytest.approx(sum(found) / len(found), rel=1e-12)
    assert staleness.largest == max(found) > 4


def test_a_single_client_sees_nothing_stale(federations: SimpleNamespace) -> None:
    federation, _ = federations.ran(of=federations.data(parties=1))
    assert federation.server.staleness.mean == federation.server.staleness.largest == 0


@pytest.mark.parametrize("distribution", ["constant", "exponential", "log-normal"])
def test_stragglers_are_slower_by_their_factor_and_staler(
    federations: SimpleNamespace, distribution: str
) -> None:
    changes = {
        "epochs": 1000,
        "simulation.delay": {"distribution": distribution, "mean": 1.0},
        "simulation.stragglers": {2: 4.0},
    }
    federation, tape = federations.ran("dpzv", changes=changes, rounds=1800)
    counts = federation.simulator.activations
    assert sum(counts) == 1800
    spread = 0.0 if distribution == "constant" else 1.3
    for fast in counts[:2]:
        assert fast / counts[2] == pytest.approx(4.0, rel=0.02 + 4 * spread / math.sqrt(counts[2]))
    found = [np.mean(client) for client in ages(tape.queries(), RECORDS, PARTIES)]
    assert found[2] > 2.5 * found[0]
    assert found[2] > 2.5 * found[1]


def test_an_observer_changes_nothing(federations: SimpleNamespace) -> None:
    watched, _ = federations.ran("cascaded", changes=LOSSY)
    federation = federations.build("cascaded", changes=LOSSY)
    federation.start(upload_table=False)
    federations.go_on(federation)
    assert federations.differences(watched.state(), federation.state()) == []


@both_timings
def test_frames_go_between_the_parties_as_the_observer_sees_them(
    federations: SimpleNamespace, timing: str
) -> None:
    """Queries go up, replies and announcements go down, each in its client's name."""
    _, tape = federations.ran("dpzv", timing, LOSSY)
    kinds = defaultdict(set)
    for _, way, client, message in tape.messages():
        kinds[way].add(type(message))
        assert getattr(message, "client", client) == client
    down = {Reply, Batch} if timing == "synchronous" else {Reply}
    assert kinds == {"up": {Query}, "down": down}


def test_rounds_may_be_limited(federations: SimpleNamespace) -> None:
    for timing, most in (("asynchronous", 24), ("synchronous", 8)):
        assert federations.build("dpzv", timing, {"rounds": 5}).total_rounds == 5
        assert federations.build("dpzv", timing, {"rounds": 500}).total_rounds == most


def test_wide_embeddings_are_uploaded_in_few_rows_at_a_time(
    federations: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No frame outgrows what the wire takes, and the scores are the same."""
    found, sizes = [], []
    for limit in (2**24, 3 * 4 * 2, 1):
        monkeypatch.setattr(uploads, "UPLOAD_BYTES", limit)
        federation = federations.build("vafl", of=federations.data(16, held_out=5))
        largest: list[int] = []
        receive = federation.server.receive_upload

        def noted(frame: bytes, seen: list[int] = largest, receive: Any = receive) -> None:
            seen.append(len(frame))
            receive(frame)

        monkeypatch.setattr(federation.server, "receive_upload", noted)
        federation.simulator.upload("test", 5)
        found.append(federation.server.score("test"))
        sizes.append(len(largest))
    assert sizes == [3, 9, 15]
    assert all(other == pytest.approx(found[0]) for other in found)
