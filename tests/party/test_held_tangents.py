"""Tangents that never change are sent once: no reply differs, and nobody can claim them unsent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests import federations as fed
from tests.party.test_party import resumed_after
from tests.rows import each

from vertizo.core.errors import ConflictError
from vertizo.party.checks import with_tangents
from vertizo.privacy.ledger.base import digest
from vertizo.protocol.messages import Query, Reply
from vertizo.run.loop.federation import Federation

SWEEPS, CLIENTS = 4, 3
HELD: dict[str, Any] = {**fed.ADDITIVE, "epochs": SWEEPS, **fed.GAUSSIAN}


def built(**changes: Any) -> Federation:
    return fed.build("tangent", None, {**HELD, **changes})


def test_what_is_held_changes_no_reply() -> None:
    """Beside a server that gets every query whole; through repeats, and restarts of everybody."""
    federation, other = built(), built()
    brought: dict[int, Query] = {}
    for turn in range(SWEEPS * CLIENTS):
        client = turn % CLIENTS
        frame = fed.ask(federation, client)
        sent = fed.query(frame)
        assert len(sent.embeddings) == (6 if turn < CLIENTS else 1)
        whole = sent if turn < CLIENTS else with_tangents(sent, brought[client])
        brought[client] = whole
        again = built()
        fed.restore_server(again, fed.server_holds(federation))
        for index in range(CLIENTS):
            fed.restore_client(again, index, fed.client_holds(federation, index))
        federation = again  # its clients make S anew
        ((_, reply),) = federation.server.receive(frame)
        assert federation.server.receive(frame) == [(client, reply)]
        ((_, expected),) = other.server.receive(fed.encoded(whole))
        assert bytes(reply) == bytes(expected)
        federation.clients[client].tell(reply)
    held, full = federation.server.side, other.server.side
    assert fed.differences(held.table.state(), full.table.state()) == []
    assert fed.differences(held.plan.state(), full.plan.state()) == []


@each(
    "changes",
    [
        {"client.model": {"name": "mlp", "hidden": [4], "outputs": 3}},
        {"client.model": {"name": "mlp", "outputs": 3, "final_relu": True}},
        {"method.directions": "orthonormal"},
        {"batch_size": 10},
    ],
)
def test_tangents_that_change_are_sent_anew(changes: dict[str, Any]) -> None:
    _, tape = fed.ran("tangent", None, {**HELD, **changes})
    assert {len(query.embeddings) for query in tape.queries()} == {6}


def test_nobody_leaves_out_what_was_never_sent() -> None:
    federation = built()
    query = fed.query(fed.ask(federation, 1))
    alone = replace(query, embeddings=query.embeddings[:1])
    some = replace(query, ids=query.ids[:9], embeddings=query.embeddings[:, :9])
    after = replace(alone, number=1)
    for before, claim, words in (
        (None, alone, "query 0 of client 1 leaves out tangents that it never sent"),
        (some, after, f"query 1 of client 1 leaves out the tangents of record .*{query.ids[9]}"),
        (None, replace(after, ids=query.ids + 9, number=1), "leaves out the tangents of record"),
    ):
        if before is not None:
            federation.server.receive(fed.encoded(before))
        held = fed.server_holds(federation)
        with pytest.raises(ConflictError, match=words) as error:
            federation.server.receive(fed.encoded(claim))
        assert "\n" not in str(error.value)
        assert fed.differences(held, fed.server_holds(federation)) == []


def test_a_query_that_only_the_ledger_knows_brings_them_again() -> None:
    """The label holder died after its ledger had the first reply, and before it kept the query."""
    federation = built()
    frame = fed.ask(federation, 1)
    reply = fed.encoded(Reply(1, 0, fed.query(frame).embeddings[1:, 0, 0]))
    resumed_after(federation, 0, digest(frame), reply)
    ((_, answer),) = federation.server.receive(frame)
    federation.clients[1].tell(answer)
    held = fed.ask(federation, 1)
    assert len(held) < len(frame) / 4
    assert len(federation.server.receive(held)) == 1
