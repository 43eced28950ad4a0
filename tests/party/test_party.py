from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests import federations as fed
from tests.rows import each, examples
from torch import Tensor

from vertizo.core.errors import (
    BudgetError,
    ConflictError,
    MalformedError,
    NonFiniteError,
    OversizedError,
    RefusedError,
    RepeatedRecordError,
    ShapeError,
    TruncatedError,
    UnknownPartyError,
    UnknownRecordError,
    VertizoError,
    WireError,
)
from vertizo.party.checks import is_bounded, mended
from vertizo.party.client import REPLY_BOUND
from vertizo.privacy.ledger.base import Answered, digest
from vertizo.protocol import wire
from vertizo.protocol.messages import Batch, Message, Query, Reply, Upload
from vertizo.run.loop.federation import Federation

RECORDS, BATCH, BOUND = 29, 8, 1000.0
INF, NAN = float("inf"), float("nan")


@dataclass(frozen=True)
class Kind:
    """One combination of method, timing and plan."""

    method: str
    timing: str
    plan: str

    def build(self, **changes: Any) -> Federation:
        """A federation of this kind that has not started."""
        dotted = {key.replace("__", "."): value for key, value in changes.items()}
        momentum = {"server.optimizer.momentum": 0.9, "client.optimizer.momentum": 0.9}
        if "zoo-vfl" in self.method:  # a server by forward differences takes smaller steps
            momentum["server.optimizer.learning_rate"] = 0.003
        return fed.build(self.method, self.timing, {**momentum, **fed.PLANS[self.plan], **dotted})

    def under_way(self, **changes: Any) -> Federation:
        """A federation that has made some rounds; in synchronous ones client 0's query waits."""
        federation = self.build(**changes)
        fed.converse(federation, [0, 1, 2, 1, 0, 2] if self.is_synchronous else [0, 1, 2, 1, 0])
        if self.is_synchronous:
            assert federation.server.receive(fed.ask(federation, 0)) == []
        return federation

    @property
    def is_tolerant(self) -> bool:
        """Whether embeddings that are not finite are mended, so that no label may tell by it."""
        return self.plan == "gaussian"

    @property
    def is_synchronous(self) -> bool:
        return self.timing == "synchronous"

    def complete(self, federation: Federation, frame: bytes) -> dict[int, bytes]:
        """All replies once client 1's query is there, and in synchronous rounds client 2's."""
        answers = federation.server.receive(frame)
        if self.is_synchronous:
            assert answers == []
            answers = federation.server.receive(fed.ask(federation, 2))
        return {client: bytes(answer) for client, answer in answers}


KINDS = [
    *(
        Kind(method, timing, plan)
        for method in ("dpzv", "cascaded", "vafl")
        for timing in ("asynchronous", "synchronous")
        for plan in ("none", "gaussian")
    ),
    Kind("czofo", "asynchronous", "gaussian"),
    Kind("czofo", "synchronous", "none"),
    Kind("syn-zoo-vfl", "synchronous", "gaussian"),
    Kind("vafl", "asynchronous", "embedding-noise"),
    Kind("flex-vfl", "synchronous", "embedding-noise"),
]
every_kind = each("kind", KINDS)


@contextmanager
def refused(
    federation: Federation, *kinds: type[VertizoError], client: int | None = None, case: str = ""
) -> Iterator[None]:
    """A refusal of one of these kinds, by the server or a client, which is then as it was."""

    def holds() -> Any:
        if client is None:
            return fed.server_holds(federation)
        return fed.client_holds(federation, client)

    before = holds()
    try:
        with pytest.raises(kinds or (WireError, RefusedError)):
            yield
        assert fed.differences(before, holds()) == []
    except BaseException as failure:
        failure.add_note(f"the message: {case}")
        raise


def with_value(embeddings: Tensor, value: float, *where: int) -> Tensor:
    changed = embeddings.clone()
    changed[where or (-1, 0, 0)] = value
    return changed


def framed(body: bytes) -> bytes:
    return wire.HEADER.pack(wire.MAGIC, wire.VERSION, 0, len(body)) + body


def bad_embeddings(h: Tensor) -> dict[str, Tensor]:
    """What no honest client means to send, but may by accident."""
    return {
        "NaN": with_value(h, NAN),
        "NaN first": with_value(h, NAN, 0, 0, 0),
        "infinity": with_value(h, INF),
        "minus infinity": with_value(h, -INF),
        "NaN and infinity": with_value(with_value(h, INF), NAN, 0, 1, 1),
        "all NaN": torch.full_like(h, NAN),
        "beyond the bound": with_value(h, 1.001 * BOUND),
        "below the bound": with_value(h, -1.001 * BOUND),
        "nearly the largest float": with_value(h, 3e38),
    }


Bad = dict[str, tuple[bytes, type[VertizoError]]]
"""Frames that must be refused, and the errors."""


def broken(frame: bytes) -> Bad:
    """Of any honest one."""
    return {
        "nothing": (b"", TruncatedError),
        "half a header": (frame[:5], TruncatedError),
        "cut short": (frame[:-1], TruncatedError),
        "one byte more": (frame + b"\0", MalformedError),
        "two frames": (frame + frame, MalformedError),
        "garbage": (b"garbage, garbage", MalformedError),
        "ones": (b"\xff" * 100, MalformedError),
        "no MessagePack": (framed(b"\xc1" * 40), MalformedError),
        "text": (b"GET / HTTP/1.1\r\n\r\n", MalformedError),
        "announced too large": (wire.HEADER.pack(b"VZ", 1, 0, 2**32 - 1), OversizedError),
    }


def bad_queries(query: Query, earlier: Query, kind: Kind) -> Bad:
    """Where ``query`` is the next of its client."""
    frame, h = fed.encoded(query), query.embeddings
    points, rows, dim = h.shape

    def ids(*values: int) -> Tensor:
        return torch.tensor([*values, *query.ids.tolist()[len(values) :]])

    many = torch.arange(BATCH + 1)
    wider = torch.zeros(points, BATCH + 1, dim)
    changed: dict[str, tuple[dict[str, Any], type[VertizoError]]] = {
        "client that is none": ({"client": 3}, UnknownPartyError),
        "client far from any": ({"client": 2**31 - 1}, UnknownPartyError),
        "number skipped": ({"number": query.number + 1}, ConflictError),
        "number far away": ({"number": 2**63 - 1}, ConflictError),
        "number of before, other content": ({"number": query.number - 1}, ConflictError),
        "unknown ID": ({"ids": ids(RECORDS)}, UnknownRecordError),
        "ID of four bytes": ({"ids": ids(2**31)}, UnknownRecordError),
        "ID of eight bytes": ({"ids": ids(2**63 - 1)}, UnknownRecordError),
        "repeated ID": ({"ids": ids(int(query.ids[1]))}, RepeatedRecordError),
        "all IDs one": ({"ids": query.ids[:1].repeat(rows)}, RepeatedRecordError),
        "an unused point more": ({"embeddings": torch.cat([h, h[:1]])}, ShapeError),
        "no points": ({"embeddings": h[:0]}, ShapeError),
        "a column more": ({"embeddings": torch.cat([h, h[..., :1]], 2)}, ShapeError),
        "a column less": ({"embeddings": h[..., 1:]}, ShapeError),
        "no columns": ({"embeddings": h[..., :0]}, ShapeError),
        "no records": ({"ids": query.ids[:0], "embeddings": h[:, :0]}, ShapeError),
        "too many records": ({"ids": many, "embeddings": wider}, ShapeError),
        "a row less than IDs": ({"embeddings": h[:, 1:]}, MalformedError),
        "a row more than IDs": ({"ids": query.ids[1:]}, MalformedError),
        "an array too large": (
            {"ids": torch.zeros(500, dtype=torch.int64), "embeddings": torch.zeros(points, 500, 9)},
            OversizedError,
        ),
        "two numbers back": ({"number": max(query.number - 2, 0)}, ConflictError),
    }
    if not kind.is_tolerant:
        for name, embeddings in bad_embeddings(h).items():
            changed[name] = ({"embeddings": embeddings}, NonFiniteError)
    if kind.is_synchronous:
        free = next(i for i in range(RECORDS) if i not in query.ids)
        changed["records of another round"] = ({"ids": ids(free)}, UnknownRecordError)
        changed["another order"] = ({"ids": query.ids.flip(0)}, UnknownRecordError)
        fewer = {"ids": query.ids[1:], "embeddings": h[:, 1:]}
        changed["fewer records"] = (fewer, UnknownRecordError)
    frames = {
        name: (fed.encoded(replace(query, **fields)), error)
        for name, (fields, error) in changed.items()
    }
    flipped = bytearray(frame)
    flipped[8] ^= 0x80
    ids_alone = torch.arange(4)
    return {
        **frames,
        **broken(frame),
        "another kind of body": (bytes(flipped), MalformedError),
        "a pickle": (pickle.dumps(query.ids.tolist()), MalformedError),
        "a framed pickle": (framed(pickle.dumps(query.ids.tolist())), MalformedError),
        "larger than any query": (framed(bytes(2**20)), OversizedError),
        "announced larger": (wire.HEADER.pack(b"VZ", 1, 0, 2**31), OversizedError),
        "a reply": (fed.encoded(Reply(1, query.number, torch.zeros(1))), MalformedError),
        "a batch": (fed.encoded(Batch(query.number, ids_alone)), MalformedError),
        "an upload": (
            fed.encoded(Upload(1, "train", ids_alone, torch.zeros(1, 4, dim))),
            MalformedError,
        ),
        "an earlier query, changed": (
            fed.encoded(replace(earlier, embeddings=earlier.embeddings + 1)),
            ConflictError,
        ),
    }


@every_kind
def test_bad_queries_are_refused_and_change_nothing(kind: Kind) -> None:
    """Afterwards the honest query gets the answer that it gets where no bad one ever came."""
    federation, quiet = kind.under_way(), kind.under_way()
    earlier = fed.query(bytes(federation.server.state()["peers"][1]["query"]))
    honest = fed.ask(federation, 1)
    assert honest == fed.ask(quiet, 1)
    query = fed.query(honest)
    assert query.number == 2
    for name, (frame, error) in bad_queries(query, earlier, kind).items():
        with refused(federation, error, case=name):
            federation.server.receive(frame)
    assert kind.complete(federation, honest) == kind.complete(quiet, honest)
    assert fed.differences(fed.server_holds(quiet), fed.server_holds(federation)) == []


@each("kind", [kind for kind in KINDS if kind.is_tolerant])
def test_under_noise_embeddings_are_mended_and_answered(kind: Kind) -> None:
    """As if 0 had been sent for what is not finite, and the bound for what is beyond it."""
    federation, other = kind.under_way(), kind.under_way()
    query = fed.query(fed.ask(federation, 1))
    fed.ask(other, 1)
    for mine in (federation, other):
        if kind.is_synchronous:
            fed.ask(mine, 2)
    before = fed.server_holds(federation)
    for name, embeddings in bad_embeddings(query.embeddings).items():
        mended = embeddings.nan_to_num(0.0, 0.0, 0.0).clamp(-BOUND, BOUND)
        answers = []
        for server, values in ((federation, embeddings), (other, mended)):
            frame = fed.encoded(replace(query, embeddings=values))
            answers.append(kind.complete(server, frame))
            assert all(fed.reply(a).values.isfinite().all() for a in answers[-1].values())
            held = fed.server_holds(server)
            assert held["parameters"].isfinite().all()
            again = dict(server.server.receive(frame))
            assert bytes(again[1]) == answers[-1][1]
            assert fed.differences(held, fed.server_holds(server)) == [], name
        assert answers[0] == answers[1], name
        for server in (federation, other):
            fed.restore_server(server, before)


@every_kind
def test_the_first_query_of_all_may_be_bad_as_well(kind: Kind) -> None:
    federation, quiet = kind.build(), kind.build()
    honest = fed.ask(federation, 0)
    for change in ({"number": 1}, {"client": 3}, {"embeddings": torch.zeros(9, 8, 3)}):
        with refused(federation):
            federation.server.receive(fed.encoded(replace(fed.query(honest), **change)))
    federation.server.receive(honest)
    quiet.server.receive(honest)
    assert fed.differences(fed.server_holds(quiet), fed.server_holds(federation)) == []


@every_kind
def test_the_same_query_again_gets_the_stored_reply_uncharged(kind: Kind) -> None:
    """And its number stands for no other content."""
    federation = kind.under_way()
    frame = fed.ask(federation, 1)
    query, replies = fed.query(frame), kind.complete(federation, frame)
    after = fed.server_holds(federation)
    for _ in range(3):
        ((client, again),) = federation.server.receive(frame)
        assert (client, bytes(again)) == (1, replies[1])
    assert fed.differences(after, fed.server_holds(federation)) == []
    nudged = with_value(query.embeddings, float(query.embeddings[-1, 0, 0]) + 1e-3)
    for other in (
        replace(query, embeddings=nudged),
        replace(query, embeddings=with_value(query.embeddings, INF)),
        replace(query, ids=query.ids.flip(0)),
    ):
        with refused(federation, ConflictError):
            federation.server.receive(fed.encoded(other))
    federation.clients[1].tell(again)
    assert federation.clients[1].answered == 3


@every_kind
def test_a_reply_is_kept_until_the_clients_next_query(kind: Kind) -> None:
    """Others' rounds in between make no difference; once the next query came, it is history."""
    federation = kind.build()
    frame = fed.ask(federation, 0)
    answers = dict(federation.server.receive(frame))
    for client in (1, 2):
        answers |= dict(federation.server.receive(fed.ask(federation, client)))
    for client in (1, 2):
        federation.clients[client].tell(answers[client])
    if kind.is_synchronous:
        assert federation.server.receive(fed.ask(federation, 1)) == []
    else:
        fed.converse(federation, [1, 2])
    ((_, again),) = federation.server.receive(frame)
    assert bytes(again) == bytes(answers[0])
    federation.clients[0].tell(again)
    fed.converse(federation, [0])
    with refused(federation, ConflictError):
        federation.server.receive(frame)


@each("plan", ["none", "gaussian"])
@each("method", ["dpzv", "cascaded", "vafl", "czofo", "fedbcd"])
def test_a_query_that_waits_is_taken_once(method: str, plan: str) -> None:
    """In a synchronous round: sent again it waits on, charged once; changed it is refused."""
    kind = Kind(method, "synchronous", plan)
    federation = kind.under_way()
    frame = fed.ask(federation, 0)
    before = fed.server_holds(federation)
    assert federation.server.receive(frame) == []
    assert fed.differences(before, fed.server_holds(federation)) == []
    query = fed.query(frame)
    with refused(federation, ConflictError):
        changed = replace(query, embeddings=query.embeddings * 2)
        federation.server.receive(fed.encoded(changed))
    with refused(federation, ConflictError):
        federation.server.receive(fed.encoded(replace(query, number=query.number + 1)))
    assert sorted(kind.complete(federation, fed.ask(federation, 1))) == [0, 1, 2]


def test_a_waiting_query_survives_a_restart() -> None:
    kind = Kind("dpzv", "synchronous", "gaussian")
    federation, fresh = kind.under_way(), kind.build()
    fed.restore_server(fresh, fed.server_holds(federation))
    for client in range(3):
        fed.restore_client(fresh, client, fed.client_holds(federation, client))
    frame = fed.ask(federation, 1)
    assert fresh.server.receive(fed.ask(fresh, 0)) == []
    assert kind.complete(federation, frame) == kind.complete(fresh, frame)
    assert fed.differences(fed.server_holds(federation), fed.server_holds(fresh)) == []


@each("timing", ["asynchronous", "synchronous"])
def test_each_accepted_query_charges_its_records_once(timing: str) -> None:
    federation = Kind("dpzv", timing, "gaussian").build()
    order = [0, 1, 2] if timing == "synchronous" else [1, 1, 0]
    expected = fed.charged(federation)
    assert int(expected.abs().sum()) == 0
    for client in order:
        frame = fed.ask(federation, client)
        expected[client, fed.query(frame).ids] += 1
        for _ in range(2):
            answers = federation.server.receive(frame)
        waits = timing == "synchronous" and client != order[-1]
        charged = torch.zeros_like(expected) if waits else expected
        assert torch.equal(fed.charged(federation), charged)
        if timing == "asynchronous":
            federation.clients[client].tell(answers[0][1])


@each("method", ["dpzv", "czofo", "cascaded", "zoo-vfl", "vafl"])
@each("timing", ["asynchronous", "synchronous"])
def test_a_record_is_not_charged_past_its_budget(method: str, timing: str) -> None:
    """One epoch's worth: the first query of a second epoch is refused, whatever it holds."""
    federation = Kind(method, timing, "gaussian").build(epochs=1)
    clients = [0, 1, 2] if timing == "synchronous" else [1]
    for _ in range(4):
        fed.converse(federation, clients)
    assert fed.charged(federation)[clients].tolist() == [[1] * RECORDS] * len(clients)
    frame = fed.ask(federation, 1)
    for query in (frame, fed.encoded(replace(q := fed.query(frame), embeddings=q.embeddings * 0))):
        with refused(federation, BudgetError):
            federation.server.receive(query)
    if timing == "asynchronous":  # each client has a share of its own
        first = fed.query(fed.ask(federation, 0))
        fed.converse(federation, [0])
        left = [i for i in range(RECORDS) if i not in first.ids][: BATCH - 1]
        ids = torch.tensor([*left, int(first.ids[0])])  # one at its limit refuses the whole batch
        with refused(federation, BudgetError):
            federation.server.receive(fed.encoded(replace(first, number=1, ids=ids)))
        fewer = replace(first, number=1, ids=ids[:-1], embeddings=first.embeddings[:, :-1])
        assert len(federation.server.receive(fed.encoded(fewer))) == 1


def test_values_at_the_bound_are_accepted() -> None:
    """Many as well, though their norm is beyond it."""
    for fill in (None, -0.99 * BOUND):
        federation = Kind("vafl", "asynchronous", "none").build()
        query = fed.query(fed.ask(federation, 0))
        h = with_value(with_value(query.embeddings, BOUND), -BOUND, 0, 3, 1)
        h = h if fill is None else torch.full_like(h, fill)
        ((_, answer),) = federation.server.receive(fed.encoded(replace(query, embeddings=h)))
        assert fed.reply(answer).values.isfinite().all()


A_SCALE_EACH = {"name": "uniform", "scale": "record"}


WIDE: dict[str, dict[str, Any]] = {
    "dpzv": {
        "method.num_directions": 100,
        "client.model": {"name": "mlp", "outputs": 1},
        "codecs.up": {
            "name": "paired",
            "scale": "record",
            "midpoint": A_SCALE_EACH,
            "difference": A_SCALE_EACH,
        },
    },
    "vafl": {
        "client.model": {"name": "mlp", "outputs": 900},
        "codecs.up": {"name": "top-k", "fraction": 0.999},
    },
}


@each("method, more", WIDE.items())
def test_a_codec_may_take_more_than_the_numbers_themselves(
    method: str, more: dict[str, Any]
) -> None:
    """Scales of single numbers, places of nearly all: an honest query is taken all the same."""
    codec = fed.config(method, changes=more).codecs.up
    federation = fed.build(method, changes={**more, "batch_size": 64}, of=fed.data(100))
    frame = fed.ask(federation, 0)
    assert len(frame) > 4 * fed.query(frame, codec).embeddings.numel() + 5000
    fed.converse(federation, [0, 1])
    fat = Query(0, 1, torch.arange(64), torch.zeros(40_000, 64, 3))
    with refused(federation, OversizedError):
        federation.server.receive(fed.encoded(fat))


@each(
    "method, more",
    [
        ("dpzv", {}),
        ("dpzv", {"method.num_directions": 3}),
        ("dpzv", {"method.num_directions": 3, "method.clipping": "jointly"}),
        ("czofo", {}),
        ("czofo", {"method.scalars": "record"}),
        ("cascaded", {}),
        ("zoo-vfl", {"method.reply": "difference"}),
        ("vafl", {}),
    ],
)
@each("label", [0, 1, 2])
@each("points", ["last", "all"])
def test_once_accepted_no_label_keeps_a_query_from_a_finite_reply(
    method: str, more: dict[str, Any], label: int, points: str
) -> None:
    """Embeddings that overflow the logits for some labels only: the reply must not tell which."""
    data = fed.data()
    data.labels["train"].fill_(label)
    changes = {**fed.GAUSSIAN, "server.embedding_bound": 3e38, "server.update": "none"}
    federation = fed.build(method, changes={**changes, **more}, of=data)
    query = fed.query(fed.ask(federation, 0))
    h = query.embeddings.clone()
    signs = torch.sign(torch.linspace(-1, 1, h[0].numel())).view_as(h[0])
    signs[::2] *= -1
    h[-1 if points == "last" else slice(None)] = 3e38 * signs
    ((_, answer),) = federation.server.receive(fed.encoded(replace(query, embeddings=h)))
    assert fed.reply(answer).values.isfinite().all()
    fed.converse(federation, [1])


@st.composite
def guesses(draw: st.DrawFn, query: Query, clients: int) -> Query:
    """Queries near a valid one: each part is right or nearly so; of one in three all are."""
    if draw(st.integers(0, 2)) == 0:
        value = draw(st.floats(-BOUND, BOUND, width=32))
        return replace(query, embeddings=torch.full_like(query.embeddings, value))
    rows = draw(st.sampled_from([query.ids.numel()] * 4 + [0, 1, BATCH, BATCH + 1]))
    pool = [*range(RECORDS)] if draw(st.booleans()) else [*range(RECORDS - 6, RECORDS + 2)]
    if draw(st.booleans()) and rows <= RECORDS:
        ids = draw(st.permutations(range(RECORDS)))[:rows]
    else:
        ids = draw(st.lists(st.sampled_from(pool), min_size=rows, max_size=rows))
    if draw(st.booleans()) and rows == query.ids.numel():
        ids = query.ids.tolist()
    points, _, dim = query.embeddings.shape
    shape = (
        draw(st.sampled_from([points] * 6 + [points + 1, 0])),
        rows,
        draw(st.sampled_from([dim] * 6 + [dim + 1, 0])),
    )
    special = [0.0, BOUND, -BOUND, 1e4, -1e38, INF, NAN]
    embeddings = torch.full(shape, draw(st.floats(-BOUND, BOUND, width=32)))
    if embeddings.numel() and draw(st.booleans()):
        at = draw(st.integers(0, embeddings.numel() - 1))
        embeddings.view(-1)[at] = draw(st.sampled_from(special))
    return Query(
        draw(st.sampled_from([query.client] * 6 + [clients, clients + 5])),
        draw(st.sampled_from([query.number] * 6 + [query.number + 1, query.number - 1])),
        torch.tensor(ids, dtype=torch.int64),
        embeddings,
    )


def is_valid(guess: Query, query: Query, is_synchronous: bool, is_tolerant: bool) -> bool:
    """What a server must accept, said once more."""
    ids, h = guess.ids.tolist(), guess.embeddings
    return (
        guess.client == query.client
        and guess.number == query.number
        and 1 <= len(ids) <= BATCH
        and len(set(ids)) == len(ids)
        and all(0 <= record < RECORDS for record in ids)
        and h.shape == (query.embeddings.shape[0], len(ids), query.embeddings.shape[2])
        and (is_tolerant or bool((h.abs() <= BOUND).all()))
        and (not is_synchronous or ids == query.ids.tolist())
    )


@every_kind
def test_a_query_is_accepted_exactly_if_it_is_valid(kind: Kind) -> None:
    federation = kind.under_way()
    query = fed.query(fed.ask(federation, 1))
    before = fed.server_holds(federation)
    outcomes = set()

    @given(guess=guesses(query, 3))
    @settings(deadline=None, max_examples=examples(60))
    def check(guess: Query) -> None:
        valid = is_valid(guess, query, kind.is_synchronous, kind.is_tolerant)
        outcomes.add(valid)
        if not valid:
            with refused(federation):
                federation.server.receive(fed.encoded(guess))
            return
        answers = federation.server.receive(fed.encoded(guess))
        assert len(answers) == (0 if kind.is_synchronous else 1)
        state = federation.server.state()
        assert state["round"] == before["party"]["round"] + len(answers)
        fed.restore_server(federation, before)

    check()
    assert outcomes == {False, True}


@st.composite
def mutations(draw: st.DrawFn, frame: bytes) -> bytes:
    """A frame with some bits flipped, bytes replaced, cut out or put in; its length often fits."""
    changed = bytearray(frame)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(changed) - 1))
        if draw(st.booleans()):
            changed[at] ^= 1 << draw(st.integers(0, 7))
        else:
            until = draw(st.integers(at, min(at + 5, len(changed))))
            changed[at:until] = draw(st.binary(max_size=5))
        if not changed:
            break
    if draw(st.integers(0, 3)) and len(changed) > wire.HEADER.size:
        return framed(bytes(changed[wire.HEADER.size :]))
    return bytes(changed)


def survives_mutations(
    frame: bytes,
    take: Callable[[bytes], Any],
    taken: Callable[[bytes, Any], None],
    holds: Callable[[], Any],
    restore: Callable[[Any], None],
    examples: int = 100,
) -> None:
    """A mutated frame is refused and changes nothing, or taken, and then ``taken`` looks at it."""
    before = holds()

    @given(mutated=mutations(frame))
    @settings(deadline=None, max_examples=examples)
    def check(mutated: bytes) -> None:
        try:
            found = take(mutated)
        except (WireError, RefusedError):
            assert fed.differences(before, holds()) == []
            return
        taken(mutated, found)
        restore(before)

    check()


@pytest.mark.full
@every_kind
def test_mutated_queries_are_refused_or_queries_of_their_own(kind: Kind) -> None:
    federation = kind.under_way()
    server, before = federation.server, federation.server.state()

    def taken(mutated: bytes, answers: Any) -> None:
        query = fed.query(mutated)
        for client, answer in answers:
            assert fed.reply(answer).client == client
        known = before["peers"][query.client]
        if known["query"] != mutated:  # else a query that came before, its answer sent again
            expected = replace(query, number=known["next_number"])
            assert is_valid(query, expected, is_synchronous=False, is_tolerant=kind.is_tolerant)
            assert server.round == before["round"] + len(answers)

    holds, restore = partial(fed.server_holds, federation), partial(fed.restore_server, federation)
    survives_mutations(fed.ask(federation, 1), server.receive, taken, holds, restore)


@pytest.mark.full
@every_kind
def test_mutated_replies_are_refused_or_applied(kind: Kind) -> None:
    federation = kind.under_way()
    client = federation.clients[1]
    reply = kind.complete(federation, fed.ask(federation, 1))[1]
    expected = fed.reply(reply)

    def taken(mutated: bytes, _: None) -> None:
        told = fed.reply(mutated)
        assert (told.client, told.number) == (1, expected.number)
        assert told.values.shape == expected.values.shape
        assert (told.values.abs() <= REPLY_BOUND).all()
        assert federation.models[1].parameters.isfinite().all()
        assert client.answered == expected.number + 1

    holds = partial(fed.client_holds, federation, 1)
    restore = partial(fed.restore_client, federation, 1)
    survives_mutations(reply, client.tell, taken, holds, restore)


def test_mutated_uploads_are_refused_or_uploads_of_their_own() -> None:
    federation = Kind("dpzv", "asynchronous", "none").under_way()
    frame = bytes(federation.clients[1].upload("train", 2, 9))

    def taken(mutated: bytes, _: bool) -> None:
        assert isinstance(wire.decode(mutated, fed.CODEC), Upload)

    holds, restore = partial(fed.server_holds, federation), partial(fed.restore_server, federation)
    receive = federation.server.receive_upload
    survives_mutations(frame, receive, taken, holds, restore, examples=300)


def bad_replies(reply: Reply) -> Bad:
    values = reply.values
    more = torch.cat([values, values[:1]])
    messages: dict[str, tuple[Message, type[VertizoError]]] = {
        "another client's": (replace(reply, client=0), UnknownPartyError),
        "a client's that is none": (replace(reply, client=77), UnknownPartyError),
        "an earlier one": (replace(reply, number=reply.number - 1), ConflictError),
        "a later one": (replace(reply, number=reply.number + 1), ConflictError),
        "NaN": (replace(reply, values=values * NAN), NonFiniteError),
        "one NaN": (replace(reply, values=with_value(values, NAN, -1)), NonFiniteError),
        "infinite": (replace(reply, values=torch.full_like(values, INF)), NonFiniteError),
        "minus infinite": (replace(reply, values=torch.full_like(values, -INF)), NonFiniteError),
        "beyond any honest one": (
            replace(reply, values=torch.full_like(values, 2 * REPLY_BOUND)),
            NonFiniteError,
        ),
        "one value more": (replace(reply, values=more), ShapeError),
        "no values": (replace(reply, values=values[:0]), ShapeError),
        "a number without a shape": (replace(reply, values=torch.tensor(1.0)), ShapeError),
        "a dimension more": (replace(reply, values=values.unsqueeze(0)), ShapeError),
        "a query": (Query(1, reply.number, torch.tensor([0]), torch.ones(1, 1, 1)), MalformedError),
        "a batch": (Batch(reply.number, torch.tensor([0])), MalformedError),
        "an upload": (Upload(1, "test", torch.tensor([0]), torch.ones(1, 1, 1)), MalformedError),
    }
    frames = {name: (fed.encoded(message), error) for name, (message, error) in messages.items()}
    return {**frames, **broken(fed.encoded(reply))}


@every_kind
def test_bad_replies_are_refused_and_change_nothing(kind: Kind) -> None:
    """So is one to no open query; an answer is applied once."""
    federation, quiet = kind.under_way(), kind.under_way()
    party = federation.clients[1]
    early = fed.encoded(Reply(1, party.answered, torch.zeros(1)))
    with refused(federation, ConflictError, client=1, case="early"):
        party.tell(early)
    frame = fed.ask(federation, 1)
    reply = kind.complete(federation, frame)[1]
    fed.ask(quiet, 1)
    for name, (bad, error) in bad_replies(fed.reply(reply)).items():
        with refused(federation, error, client=1, case=name):
            party.tell(bad)
        assert bytes(party.ask()) == frame
    party.tell(reply)
    quiet.clients[1].tell(reply)
    expected = fed.client_holds(quiet, 1)
    assert fed.differences(expected, fed.client_holds(federation, 1)) == []
    with refused(federation, ConflictError, client=1, case="late"):
        party.tell(reply)


@every_kind
def test_a_client_asks_the_same_until_it_is_answered(kind: Kind) -> None:
    """And moves by nothing but the answer."""
    federation = kind.build()
    before = federation.models[0].parameters.clone()
    frame = fed.ask(federation, 0)
    held = fed.client_holds(federation, 0)
    for _ in range(3):
        assert fed.ask(federation, 0) == frame
    assert fed.differences(held, fed.client_holds(federation, 0)) == []
    assert torch.equal(federation.models[0].parameters, before)
    fed.converse(federation, [0, 1, 2])
    assert fed.query(fed.ask(federation, 0)).number == 1
    assert fed.ask(federation, 0) != frame


def test_bad_announcements_are_refused() -> None:
    """Also one of another round, as a network may deliver twice: it would ask in vain for ever."""
    federation = fed.build(timing="synchronous")
    bad: list[tuple[list[int], type[VertizoError]]] = [
        ([0, RECORDS], UnknownRecordError),
        ([2**40], UnknownRecordError),
        ([], ShapeError),
        (list(range(BATCH + 1)), ShapeError),
    ]
    rows = [(fed.encoded(Batch(0, torch.tensor(x, dtype=torch.int64))), error) for x, error in bad]
    old = federation.server.announce(0)
    others = (fed.encoded(Reply(0, 0, torch.zeros(1))), bytes(old)[:-1], b"")
    for frame, error in [*rows, *((other, WireError) for other in others)]:
        with refused(federation, error, client=0):
            federation.clients[0].ask(frame)
    assert fed.query(fed.ask(federation, 0)).number == 0
    fed.converse(federation, [0, 1, 2])
    with refused(federation, ConflictError, client=0):
        federation.clients[0].ask(old)
    with pytest.raises(ConflictError):
        fed.build().server.announce(0)  # asynchronous


def test_an_announcement_names_the_records_that_clients_answer_for() -> None:
    federation = fed.build(timing="synchronous")
    for round_ in range(5):
        message = wire.decode(federation.server.announce(0), fed.CODEC)
        assert isinstance(message, Batch)
        assert message.number == round_
        asked = [fed.query(fed.ask(federation, client)) for client in range(3)]
        assert all(torch.equal(query.ids, message.ids) for query in asked)
        fed.converse(federation, [2, 0, 1])
    assert federation.server.round == 5


def test_synchronous_rounds_do_not_depend_on_who_comes_first() -> None:
    for method in ("dpzv", "cascaded", "vafl"):
        replies = []
        for order in ([0, 1, 2], [2, 0, 1]):
            federation = fed.build(method, "synchronous", fed.GAUSSIAN)
            frames = [fed.ask(federation, client) for client in order]
            answers = [a for frame in frames for a in federation.server.receive(frame)]
            replies.append(({m: bytes(a) for m, a in answers}, fed.server_holds(federation)))
        assert replies[0][0] == replies[1][0]
        assert fed.differences(replies[0][1]["parameters"], replies[1][1]["parameters"]) == []


def test_bad_uploads_are_refused_and_change_nothing() -> None:
    federation = Kind("dpzv", "asynchronous", "gaussian").under_way()
    upload = wire.decode(federation.clients[1].upload("train", 2, 9), fed.CODEC)
    assert isinstance(upload, Upload)
    h, ids = upload.embeddings, upload.ids
    assert ids.tolist() == list(range(2, 9))
    changed: list[tuple[dict[str, Any], type[VertizoError]]] = [
        ({"client": 3}, UnknownPartyError),
        ({"ids": ids + 21}, UnknownRecordError),
        ({"ids": ids * 2**33}, UnknownRecordError),
        ({"ids": ids.flip(0)}, RepeatedRecordError),
        ({"ids": ids.clamp(max=5)}, RepeatedRecordError),
        ({"ids": ids[:0], "embeddings": h[:, :0]}, ShapeError),
        ({"embeddings": h[..., 1:]}, ShapeError),
        ({"embeddings": torch.cat([h, h])}, ShapeError),
        ({"embeddings": h[:, 1:]}, MalformedError),
        ({"embeddings": with_value(h, NAN)}, NonFiniteError),
        ({"embeddings": with_value(h, INF)}, NonFiniteError),
        ({"embeddings": with_value(h, 1.01 * BOUND)}, NonFiniteError),
        ({"purpose": "test", "ids": ids + 5}, UnknownRecordError),
    ]
    for fields, error in changed:
        with refused(federation, error):
            federation.server.receive_upload(fed.encoded(replace(upload, **fields)))
    others = {**broken(fed.encoded(upload)), "query": (fed.ask(federation, 1), MalformedError)}
    for name, (bad, error) in others.items():
        with refused(federation, error, case=name):
            federation.server.receive_upload(bad)
    for purpose in ("train", "validation", "test"):
        with refused(federation, RefusedError):
            federation.server.logits(purpose)


def test_scores_are_those_of_the_joint_model() -> None:
    """Once every client uploaded every row; for training, an upload fills the table."""
    federation = fed.build("vafl", "synchronous")
    server, clients = federation.server, federation.clients
    server.receive_upload(clients[1].upload("train", 2, 9))
    filled = torch.zeros(RECORDS, 9)
    filled[2:9, 3:6] = federation.models[1](federation.data.features[1]["train"][2:9])
    assert torch.allclose(server.side.table.values, filled)
    fed.converse(federation, [0, 1, 2])
    table = server.side.table.values.clone()
    for client, start, stop in [(0, 0, 11), (1, 0, 11), (2, 0, 10), (2, 10, 11)]:
        with pytest.raises(RefusedError):
            server.score("test")
        server.receive_upload(clients[client].upload("test", start, stop))
    parts = [
        model(own["test"])
        for model, own in zip(federation.models, federation.data.features, strict=True)
    ]
    logits = server.side.model.logits(torch.cat(parts, 1))
    labels, found = federation.data.labels["test"], server.score("test")
    expected = torch.nn.functional.cross_entropy(logits, labels)
    assert found["loss"] == pytest.approx(float(expected), rel=1e-5)
    assert found["accuracy"] == float((logits.argmax(1) == labels).double().mean())
    assert torch.equal(server.side.table.values, table)
    with pytest.raises(RefusedError):
        server.score("test")


class Refusing:
    """A ledger behind a plan, which fails when it is to write something down."""

    fails = True

    def __init__(self, ledger: Any) -> None:
        self._ledger = ledger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def commit(self, entries: Any) -> None:
        if self.fails:
            raise OSError("the disk is full")
        self._ledger.commit(entries)


@each("timing", ["asynchronous", "synchronous"])
def test_no_reply_leaves_before_it_is_on_record(timing: str) -> None:
    kind = Kind("dpzv", timing, "gaussian")
    federation = kind.build()
    plan: Any = federation.server.side.plan
    plan._ledger = Refusing(plan._ledger)
    for client in range(2) if kind.is_synchronous else ():
        assert federation.server.receive(fed.ask(federation, client)) == []
    frame = fed.ask(federation, 2)
    with pytest.raises(OSError, match="the disk is full"):
        federation.server.receive(frame)
    assert int(fed.charged(federation).sum()) == 0
    peers = federation.server.state()["peers"]
    assert all(peer["reply"] is None for peer in peers)
    plan._ledger.fails = False


class Remembering(Refusing):
    """A ledger that outlived its process and knows of one more answer to client 1."""

    fails, known = False, None

    def answered(self, client: int) -> Answered | None:
        return self.known if client == 1 else None


def resumed_after(federation: Federation, *answered: Any) -> None:
    """The process died after its ledger had the reply, and before anything else had it."""
    plan: Any = federation.server.side.plan
    plan._ledger = Remembering(plan._ledger)
    plan._ledger.known = Answered(*answered)
    federation.server.resume_answered()


def test_what_a_ledger_knows_was_answered_is_sent_again() -> None:
    federation = Kind("dpzv", "asynchronous", "gaussian").under_way()
    query = fed.query(fed.ask(federation, 1))
    frame = fed.encoded(query)
    stored = fed.encoded(Reply(1, query.number, torch.tensor([0.25])))
    resumed_after(federation, query.number, digest(frame), stored)
    before = fed.server_holds(federation)
    ((client, answer),) = federation.server.receive(frame)
    assert (client, bytes(answer)) == (1, stored)
    changed = fed.differences(before, fed.server_holds(federation))  # nothing is charged again
    assert [each.split(":")[0] for each in changed] == ["/party/peers/1/query"]  # what was asked
    with refused(federation, ConflictError):
        federation.server.receive(fed.encoded(replace(query, ids=query.ids.flip(0))))
    federation.clients[1].tell(answer)
    fed.converse(federation, [1, 0])


def test_a_ledger_that_knows_less_changes_nothing() -> None:
    federation = Kind("dpzv", "asynchronous", "gaussian").under_way()
    before = fed.server_holds(federation)
    resumed_after(federation, 0, digest(b"old"), b"old")
    assert fed.differences(before, fed.server_holds(federation)) == []


@settings(max_examples=examples(300), deadline=None, derandomize=True, database=None)
@given(
    values=st.lists(st.floats(width=32), max_size=9),
    bound=st.sampled_from([0.5, 1.0, 1000.0, 1e30]),
)
@example(values=[1e30, -1e30], bound=1e30)
@example(values=[3e38, 1.0], bound=1.0)
@example(values=[INF], bound=1e30)
@example(values=[-INF, NAN], bound=1e30)
def test_exactly_what_is_within_is_bounded(values: list[float], bound: float) -> None:
    array = torch.tensor(values, dtype=torch.float32)
    within = all(abs(value) <= torch.tensor(bound).item() for value in array.tolist())
    assert is_bounded(array, bound) == within
    fit = mended(array, bound)
    assert is_bounded(fit, bound)
    assert not within or torch.equal(fit, array)


def test_a_bound_beyond_float32_still_refuses_infinity() -> None:
    """A norm may be far beyond the bound where values are not."""
    assert is_bounded(torch.full((64, 32), 9.9), 10.0)
    assert is_bounded(torch.tensor([3e38]), 1e300)
    assert not is_bounded(torch.tensor([INF]), 1e300)
    assert mended(torch.tensor([NAN, -9.0]), 5.0).tolist() == [0.0, -5.0]
