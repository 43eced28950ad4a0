"""One federation on a virtual clock: what is sent, when, what is lost, and what it leads to."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from tests import federations as fed
from tests.rows import each
from tests.same import same

from vertizo.config.schema import ExperimentConfig
from vertizo.protocol import wire
from vertizo.protocol.messages import Batch, Query, Reply
from vertizo.run.loop import traffic as uploads

METHODS = ("dpzv", "cascaded", "vafl")
TIMINGS = ("asynchronous", "synchronous")
every_method = each("method", METHODS)
both_timings = each("timing", TIMINGS)

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
def test_a_seed_decides_the_whole_transcript(method: str, timing: str) -> None:
    changes = {**LOSSY, **fed.GAUSSIAN}
    first, tape = fed.ran(method, timing, changes)
    second, again = fed.ran(method, timing, changes)
    assert tape.seen == again.seen
    assert fed.differences(first.state(), second.state()) == []
    other, changed = fed.ran(method, timing, {**changes, "seed": 1})
    assert [now for now, *_ in tape.seen] != [now for now, *_ in changed.seen]
    queries, others = ({frame for *_, frame in frames(t, "up")} for t in (tape, changed))
    assert not queries & others
    assert other.server.round == first.server.round


@both_timings
@each("drop", [0.0, 0.3])
def test_each_record_is_in_one_batch_of_a_clients_epoch(timing: str, drop: float) -> None:
    _, tape = fed.ran("dpzv", timing, {"epochs": 3, "simulation.drop": drop})
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
def test_clients_stop_after_their_epochs(method: str, timing: str) -> None:
    federation, tape = fed.ran(method, timing, {"epochs": 2})
    assert federation.simulator.activations == [2 * PER_EPOCH] * PARTIES
    rounds = 2 * PER_EPOCH * (1 if timing == "synchronous" else PARTIES)
    assert federation.server.round == rounds == federation.total_rounds
    assert [party.answered for party in federation.clients] == [2 * PER_EPOCH] * PARTIES
    seen = len(tape.seen)
    assert federation.simulator.step() is False
    assert len(tape.seen) == seen
    assert fed.build(method, timing, {"rounds": 5}).total_rounds == 5
    assert fed.build(method, timing, {"rounds": 500}).total_rounds == rounds


@every_method
@both_timings
def test_the_walk_of_a_run(method: str, timing: str) -> None:
    """A step is a round; time does not run backwards; traffic is what the observer saw.

    Queries go up, replies and announcements down, each in its client's name. Neither the observer
    nor an evaluation in between changes anything.
    """
    tape = fed.Tape()
    federation = fed.build(method, timing, LOSSY, observer=tape)
    federation.start(upload_table=False)
    rounds = 0
    while federation.simulator.step():
        rounds += 1
        assert federation.server.round == rounds
    assert rounds == federation.total_rounds
    times = [now for now, *_ in tape.seen]
    assert times == sorted(times)
    assert federation.simulator.now == times[-1]
    traffic = federation.simulator.traffic
    assert traffic.up == sum(len(frame) for *_, frame in frames(tape, "up"))
    assert traffic.down == sum(len(frame) for *_, frame in frames(tape, "down"))
    assert traffic.table == traffic.evaluation == 0
    assert traffic.up > traffic.down > 0
    kinds = defaultdict(set)
    for _, way, client, message in tape.messages():
        kinds[way].add(type(message))
        assert getattr(message, "client", client) == client
    down = {Reply, Batch} if timing == "synchronous" else {Reply}
    assert kinds == {"up": {Query}, "down": down}
    unseen, again = fed.build(method, timing, LOSSY), fed.Tape()
    fed.go_on(begun(unseen))
    assert fed.differences(federation.state(), unseen.state()) == []
    evaluated = begun(fed.build(method, timing, LOSSY, observer=again))
    while evaluated.simulator.step():
        evaluated.simulator.upload("test", 11)
        evaluated.server.score("test")
    assert again.seen == tape.seen


def begun(federation: Any) -> Any:
    federation.start(upload_table=False)
    return federation


@every_method
def test_synchronous_clients_answer_for_the_named_batch(method: str) -> None:
    _, tape = fed.ran(method, "synchronous")
    named: dict[int, list[int]] = {}
    for _, _, _, message in tape.messages():
        if isinstance(message, Batch):
            ids = message.ids.tolist()
            assert named.setdefault(message.number, ids) == ids
    assert len(named) == 2 * PER_EPOCH
    for client in range(PARTIES):
        assert {n: q.ids.tolist() for n, q in asked(tape)[client].items()} == named


@each("drop", [0.0, 0.3])
def test_a_synchronous_round_takes_as_long_as_its_slowest_client(drop: float) -> None:
    changes = {"simulation.drop": drop, "simulation.stragglers": {1: 2.0}}
    _, tape = fed.ran("dpzv", "synchronous", changes)
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


def test_stragglers_hold_up_synchronous_rounds_and_no_asynchronous_client() -> None:
    """With constant times, the n-th query of a client arrives after n of its rounds."""
    changes = {**CONSTANT, "simulation.stragglers": {2: 3.5}}
    federation, _ = fed.ran("vafl", "synchronous", changes)
    assert federation.simulator.now == pytest.approx(3.5 * 2 * PER_EPOCH)
    assert federation.server.staleness.largest == 0
    _, tape = fed.ran("vafl", "asynchronous", changes)
    for now, way, client, message in tape.messages():
        slowness = 3.5 if client == 2 else 1.0
        assert now == pytest.approx((message.number + 1) * slowness), way


@both_timings
def test_bandwidth_adds_the_time_of_the_bytes(timing: str) -> None:
    changes = {**CONSTANT, "simulation.bandwidth": 1000.0}
    federation, tape = fed.ran("cascaded", timing, changes)
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
    free, _ = fed.ran("cascaded", timing, CONSTANT)
    extra = federation.simulator.now - free.simulator.now
    sent = sum(len(frame) for _, client, frame in frames(tape, "up") if client == 0)
    assert extra >= sent / 1000.0 - 1e-9 > 1.0


@both_timings
def test_uploads_are_counted_apart(timing: str) -> None:
    federation = fed.build("dpzv", timing)
    start = [model.parameters.clone() for model in federation.models]
    size = sum(len(party.upload("train", 0, RECORDS)) for party in federation.clients)
    federation.start(upload_table=True)
    traffic = federation.simulator.traffic
    assert traffic.table == size
    assert size > RECORDS * PARTIES * 3 * 4
    assert (traffic.up, traffic.evaluation) == (0, 0)
    pairs = zip(federation.models, federation.data.features, strict=True)
    expected = torch.cat([model(own["train"]) for model, own in pairs], 1)
    assert torch.equal(federation.server.side.table.values, expected)
    assert same(start, [model.parameters for model in federation.models])
    fed.go_on(federation, 3)
    before = (traffic.up, traffic.down, traffic.table)
    for purpose in ("test", "validation"):
        federation.simulator.upload(purpose, 11)
        federation.server.score(purpose)
    assert (traffic.up, traffic.down, traffic.table) == before
    clients, purposes = federation.clients, ("test", "validation")
    sizes = [len(party.upload(purpose, 0, 11)) for party in clients for purpose in purposes]
    assert traffic.evaluation == sum(sizes)


@cache
def lossy(timing: str) -> tuple[Any, Any]:
    return fed.ran("dpzv", timing, {**LOSSY, "epochs": 20})


@both_timings
def test_losses(timing: str) -> None:
    """The right share is lost, sent again after the timeout, answered the same, charged once."""
    federation, tape = lossy(timing)
    sent = sum(not isinstance(message, Batch) for *_, message in tape.messages())
    lost = federation.simulator.traffic.lost
    assert sent > 2 * 20 * PER_EPOCH * PARTIES
    assert abs(lost / sent - 0.3) < 5 * math.sqrt(0.3 * 0.7 / sent)
    assert fed.ran("dpzv", timing)[0].simulator.traffic.lost == 0
    last: dict[tuple[int, int], tuple[float, bytes]] = {}
    told: dict[tuple[int, int], bytes] = {}
    again = repeated = 0
    for (now, way, client, frame), (*_, message) in zip(tape.seen, tape.messages(), strict=True):
        key = client, getattr(message, "number", 0)
        if isinstance(message, Reply):
            repeated += key in told
            assert told.setdefault(key, frame) == frame
        elif way == "up":
            before, same = last.get(key, (now, frame))
            again += key in last
            assert frame == same
            if key in last and timing == "asynchronous":
                assert now == pytest.approx(before + LOSSY["simulation.timeout"])
            last[key] = now, frame
    assert again > 50
    assert repeated > 20
    if timing == "asynchronous":  # each query sent but the last got lost, or its reply did
        assert lost == again
    federation, _ = fed.ran("dpzv", timing, {**LOSSY, **fed.GAUSSIAN, "epochs": 20})
    assert fed.charged(federation).tolist() == [[20] * RECORDS] * PARTIES
    assert federation.simulator.traffic.lost > 50


@every_method
@each("timing, parties", [("synchronous", 3), ("asynchronous", 1)])
def test_losses_do_not_change_what_is_learnt_in_step_or_alone(
    method: str, timing: str, parties: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replies wait for nobody's luck: the same messages are accepted, later."""
    monkeypatch.setattr(ExperimentConfig, "digest", "the same")  # on which the noise hangs
    changes, data = {**fed.GAUSSIAN, "server.optimizer.momentum": 0.9}, fed.data(parties=parties)
    plain, tape = fed.ran(method, timing, changes, of=data)
    lossy, again = fed.ran(method, timing, {**changes, **LOSSY}, of=data)
    assert lossy.simulator.traffic.lost > 2
    assert lossy.simulator.now > plain.simulator.now
    assert fed.differences(plain.parameters, lossy.parameters) == []
    assert fed.differences(plain.server.state(), lossy.server.state()) == []
    if parties == 1:
        assert {frame for *_, frame in tape.seen} == {frame for *_, frame in again.seen}


@every_method
def test_losses_do_not_change_which_records_asynchronous_clients_ask_about(method: str) -> None:
    _, plain = fed.ran(method)
    _, lossy = fed.ran(method, changes=LOSSY)
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
@each("drop", [0.0, 0.3])
@each("parties", [1, 2, 3])
def test_staleness_equals_a_recount(method: str, drop: float, parties: int) -> None:
    changes = {"epochs": 4, "simulation.drop": drop, "simulation.stragglers": {parties - 1: 3.0}}
    data = fed.data(parties=parties)
    federation, tape = fed.ran(method, changes=changes, of=data)
    found = [age for client in ages(tape.queries(), RECORDS, parties) for age in client]
    staleness = federation.server.staleness
    assert staleness.count == len(found)
    if parties == 1:
        assert staleness.mean == staleness.largest == len(found) == 0
        return
    assert staleness.mean == pytest.approx(sum(found) / len(found), rel=1e-12)
    assert staleness.largest == max(found) > 4


@each("distribution", ["constant", "exponential", "log-normal"], gate=["exponential"])
def test_stragglers_are_slower_by_their_factor_and_staler(distribution: str) -> None:
    changes = {
        "epochs": 1000,
        "simulation.delay": {"distribution": distribution, "mean": 1.0},
        "simulation.stragglers": {2: 4.0},
    }
    federation, tape = fed.ran("dpzv", changes=changes, rounds=1800)
    counts = federation.simulator.activations
    assert sum(counts) == 1800
    spread = 0.0 if distribution == "constant" else 1.3
    for fast in counts[:2]:
        assert fast / counts[2] == pytest.approx(4.0, rel=0.02 + 4 * spread / math.sqrt(counts[2]))
    found = [np.mean(client) for client in ages(tape.queries(), RECORDS, PARTIES)]
    assert found[2] > 2.5 * found[0]
    assert found[2] > 2.5 * found[1]


def test_uploads_in_several_frames_are_the_same_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows at a time, fewer of wide embeddings: no frame outgrows what the wire takes."""
    tables, scores, bytes_, counts = [], [], [], []
    for limit, value in (
        ("UPLOAD_ROWS", 10_000),
        ("UPLOAD_ROWS", 7),
        ("UPLOAD_BYTES", 3 * 4 * 2),
        ("UPLOAD_BYTES", 1),
    ):
        federation, frames = fed.build("vafl", of=fed.data(16, held_out=5)), []
        receive = federation.server.receive_upload
        with monkeypatch.context() as patch:
            patch.setattr(uploads, limit, value)
            patch.setattr(
                federation.server,
                "receive_upload",
                lambda frame, seen=frames, receive=receive: (seen.append(frame), receive(frame)),
            )
            federation.simulator.upload("test", 5)
            scores.append(federation.server.score("test"))
            federation.simulator.upload("train", 16)
        counts.append(sum(wire.decode(f, fed.CODEC).purpose == "test" for f in frames))
        tables.append(federation.server.side.table.values)
        bytes_.append(federation.simulator.traffic.table)
    assert counts == [3, 3, 9, 15]
    assert bytes_ == sorted(bytes_)
    assert bytes_[0] < bytes_[1]
    assert all(torch.allclose(table, tables[0], atol=1e-6) for table in tables)
    assert all(score == pytest.approx(scores[0]) for score in scores)
