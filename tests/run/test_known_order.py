"""Batches that both sides know: a number on the wire in place of record IDs."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
import torch
from tests import federations as fed
from tests.rows import each
from tests.same import same
from torch import Tensor

from vertizo.core.errors import ConfigError, MalformedError, OtherRoundError, UnknownPartyError
from vertizo.lab.audit.setting import Setting
from vertizo.protocol import wire
from vertizo.protocol.messages import Batch, Query
from vertizo.run.loop.federation import Federation

KNOWN = {"codecs.ids": "implicit"}
TIMINGS = ("asynchronous", "synchronous")
each_timing = each("timing", TIMINGS)


def order_of(federation: Federation) -> wire.Order:
    def order(client: int | None, batch: int) -> Tensor:
        return federation.clients[client or 0].batches.ids(batch)

    return order


def opened(federation: Federation, frame: bytes) -> Query:
    query = wire.decode(frame, fed.CODEC, order=order_of(federation))
    assert isinstance(query, Query)
    return query


@each_timing
@each("method", ["dpzv", "czofo", "vafl"])
def test_a_number_is_answered_as_the_ids_it_stands_for(method: str, timing: str) -> None:
    """The same federation twice, one of them told all IDs: the same replies and parameters."""
    short, plain = (fed.build(method, timing, KNOWN) for _ in range(2))
    order = [0, 1, 2] * 5 if timing == "synchronous" else [0, 2, 1, 1, 0, 0, 2, 0, 0]
    saved = 0
    for client in order:
        frame = fed.ask(short, client)
        query = opened(short, frame)
        assert query.batch == (short.server.round if timing == "synchronous" else query.number)
        written_out = fed.encoded(replace(query, batch=None))
        saved += len(written_out) - len(frame)
        assert opened(plain, fed.ask(plain, client)).ids.tolist() == query.ids.tolist()
        replies = short.server.receive(frame)
        assert plain.server.receive(written_out) == replies
        for receiver, reply in replies:
            short.clients[receiver].tell(reply)
            plain.clients[receiver].tell(reply)
    assert saved > 5 * len(order)
    assert same(short.parameters, plain.parameters)


@each_timing
def test_every_record_is_in_one_batch_of_each_epoch_and_orders_differ(timing: str) -> None:
    federation = fed.build(timing=timing, changes=KNOWN)
    orders = []
    for client in federation.clients:
        batches = [client.batches.ids(n) for n in range(client.batches.per_epoch)]
        orders.append(torch.cat(batches).tolist())
        assert sorted(orders[-1]) == list(range(federation.data.records))
    assert len({tuple(order) for order in orders}) == (1 if timing == "synchronous" else 3)
    sent = fed.build(timing=timing)
    assert orders[0] != sent.clients[0].batches.ids(0).tolist()


@each_timing
def test_a_client_that_was_stopped_makes_the_same_bytes_anew(timing: str) -> None:
    """From a checkpoint, and from the small note that stands for a query."""
    first = fed.build(timing=timing, changes=KNOWN)
    frame = fed.ask(first, 1)
    for note in (frame, first.clients[1].opened()):
        again = fed.build(timing=timing, changes=KNOWN)
        again.clients[1].reopen(note)
        assert again.clients[1].ask() == frame
    state = first.clients[1].state()
    restored = fed.build(timing=timing, changes=KNOWN)
    restored.clients[1].load({**state, "waiting": {**state["waiting"], "frame": None}})
    assert restored.clients[1].ask() == frame


def test_a_server_goes_on_with_a_query_that_waits() -> None:
    federation, restored = (fed.build(timing="synchronous", changes=KNOWN) for _ in range(2))
    frames = [fed.ask(federation, client) for client in range(3)]
    assert federation.server.receive(frames[0]) == []
    restored.server.load(federation.server.state())
    for server in (federation.server, restored.server):
        assert server.receive(frames[1]) == []
    assert federation.server.receive(frames[2]) == restored.server.receive(frames[2])


def test_numbers_of_other_rounds_and_of_no_client_are_refused() -> None:
    federation = fed.build(timing="synchronous", changes=KNOWN)
    query = opened(federation, fed.ask(federation, 0))
    for batch in (1, 4, 2**62):
        moved = replace(query, batch=batch, ids=order_of(federation)(0, batch))
        with pytest.raises(OtherRoundError):
            federation.server.receive(fed.encoded(moved))
    assert federation.server.receive(fed.encoded(query)) == []
    federation = fed.build(changes=KNOWN)
    query = opened(federation, fed.ask(federation, 0))
    with pytest.raises(UnknownPartyError):
        federation.server.receive(fed.encoded(replace(query, client=3)))


def test_where_ids_are_sent_a_number_is_refused() -> None:
    known, sent = fed.build(changes=KNOWN), fed.build()
    with pytest.raises(MalformedError, match="not known"):
        sent.server.receive(fed.ask(known, 0))
    frame = fed.encoded(Batch(0, torch.arange(8), batch=0))
    with pytest.raises(MalformedError, match="not known"):
        fed.build(timing="synchronous").clients[0].ask(frame)


@each("number", [0, 1, 255, 256, 2**32, 2**63 - 1])
def test_numbers_come_back(number: int) -> None:
    ids = torch.tensor([4, 2])
    messages = (Batch(3, ids, number), Query(1, 3, ids, torch.zeros(1, 2, 2), number))
    for message in messages:
        frame = fed.encoded(message)
        found = wire.decode(frame, fed.CODEC, order=lambda client, batch: ids + (batch - number))
        assert isinstance(found, Batch | Query)
        assert (found.batch, found.ids.tolist()) == (number, [4, 2])


def test_numbers_of_other_sizes_are_refused() -> None:
    """And an audit, which numbers cannot go with."""
    for data in (b"", bytes(9), b"\xff" * 8):
        body = msgspec.msgpack.encode([4, 0, 0, data])
        frame = wire.HEADER.pack(wire.MAGIC, wire.VERSION, 0, len(body)) + body
        with pytest.raises(MalformedError, match="number of a batch"):
            wire.decode(frame, fed.CODEC, order=lambda client, batch: torch.arange(2))
    with pytest.raises(ConfigError, match=r"codecs\.ids"):
        Setting(fed.config(changes=KNOWN), fed.data(), record=0)
