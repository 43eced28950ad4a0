"""All parties find the records that every one of them has, and show no more than was said."""

from __future__ import annotations

import hashlib
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vertizo.core.errors import ConfigError, DataError, RunError, VertizoError
from vertizo.data.alignment import fingerprint, in_order
from vertizo.network.alignment.member import Alignment, Method, align_with
from vertizo.network.alignment.messages import (
    LARGEST_ASK,
    Agreed,
    Begin,
    Confirm,
    Failed,
    Fetch,
    Finish,
    Message,
    Outcome,
    Own,
    Piece,
    Raised,
    Refused,
    Taken,
    Welcome,
    decode_answer,
    decode_ask,
    encode,
)
from vertizo.network.alignment.service import AligningService
from vertizo.network.authority import issue
from vertizo.network.alignment.blinding import PIECE, POINT, Curve, cut, salted_hashes
from vertizo.network.certificates import Credentials
from vertizo.network.grpc import GrpcChannel, GrpcServer, Limits
from vertizo.network.transport import DirectChannel

HAS_PSI = find_spec("private_set_intersection") is not None
needs_psi = pytest.mark.skipif(not HAS_PSI, reason="openmined-psi is not installed")
both_methods = pytest.mark.parametrize(
    "method", [pytest.param("private", marks=needs_psi), "hashed"]
)
NAME = "federation"


@dataclass
class Tapped:
    """A channel that keeps what goes over it, and may change it."""

    inner: DirectChannel
    sent: list[bytes] = field(default_factory=list)
    received: list[bytes] = field(default_factory=list)
    change_ask: Callable[[Any], Any] = lambda ask: ask
    times: int = 1

    def ask(self, frame: bytes) -> bytes:
        frame = encode(self.change_ask(decode_ask(frame)))
        answers = set()
        for _ in range(self.times):
            self.sent.append(frame)
            answer = self.inner.ask(frame)
            self.received.append(answer)
            answers.add(answer)
        assert len(answers) == 1
        return answer

    def close(self) -> None:
        self.inner.close()


@dataclass
class Ended:
    """How an alignment ended at each party: a result or an error."""

    label_holder: Alignment | VertizoError
    members: dict[str, Alignment | VertizoError]
    channels: dict[str, Tapped]

    @property
    def all(self) -> list[Alignment | VertizoError]:
        return [self.label_holder, *self.members.values()]


def run(
    own: Sequence[str],
    members: Mapping[str, Sequence[str]],
    method: Method,
    change_asks: Mapping[str, Callable[[Any], Any]] | None = None,
    times: int = 1,
) -> Ended:
    """All parties at once, each member in a thread."""
    with (
        closing(AligningService(list(members), own, method, federation=NAME)) as service,
        ThreadPoolExecutor(len(members)) as pool,
    ):
        channels = {
            name: Tapped(DirectChannel(service, name, 20.0), times=times) for name in members
        }
        for name, change in (change_asks or {}).items():
            channels[name].change_ask = change

        def take_part(name: str) -> Alignment:
            with closing(channels[name]):
                return align_with(channels[name], members[name], method, federation=NAME)

        futures = {name: pool.submit(take_part, name) for name in members}
        label_holder = ending(lambda: service.wait(patience=30.0))
        found = {name: ending(future_result(future)) for name, future in futures.items()}
        if isinstance(label_holder, Alignment):
            assert service.result == label_holder
        else:
            assert service.result is None
    return Ended(label_holder, found, channels)


def future_result(future: Future[Alignment]) -> Callable[[], Alignment]:
    return lambda: future.result(60.0)


def ending(call: Callable[[], Alignment]) -> Alignment | VertizoError:
    try:
        return call()
    except VertizoError as error:
        return error


def until(reached: Callable[[], bool]) -> None:
    """Wait for that, but not forever."""
    end = time.monotonic() + 20.0
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.01)


def agree(own: Iterable[str], members: Mapping[str, Iterable[str]], method: Method) -> Ended:
    """As `run`, with the plain intersection as the result of all."""
    sets = {name: list(keys) for name, keys in members.items()}
    ended = run(list(own), sets, method)
    expected = in_order(set(own).intersection(*sets.values()))
    for found in ended.all:
        assert isinstance(found, Alignment), found
        assert found.keys == expected
        assert found.parties == len(sets) + 1
        assert found.method == method
    assert len({found.fingerprint for found in ended.all if isinstance(found, Alignment)}) == 1
    return ended


def numbers(*ranges: range) -> list[str]:
    return [str(number) for part in ranges for number in part]


# ---- what is found


@both_methods
@pytest.mark.parametrize("parties", [2, 3, 4])
def test_all_find_the_intersection(method: Method, parties: int) -> None:
    own = numbers(range(40))
    members = {f"m{i}": numbers(range(5 * i, 50 + i)) for i in range(1, parties)}
    random.Random(parties).shuffle(own)
    for keys in members.values():
        random.Random(parties).shuffle(keys)
    ended = agree(own, members, method)
    assert isinstance(ended.label_holder, Alignment)
    assert ended.label_holder.own == 40
    assert ended.label_holder.others == {name: len(keys) for name, keys in members.items()}
    assert ended.label_holder.pairwise == {
        name: len(set(own) & set(keys)) for name, keys in members.items()
    }
    for name, found in ended.members.items():
        assert isinstance(found, Alignment)
        assert found.own == len(members[name])
        assert dict(found.others) == {"the label holder": 40}
        assert found.pairwise == {}


@both_methods
def test_any_text_is_a_key(method: Method) -> None:
    odd = ["é", "e\u0301", " ", "\x00", "\x00\x00", "日本", "🙂", "a\nb", "x" * 5000]
    agree([*odd, "mine"], {"shop": ["its", *odd]}, method)


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=3)
sets_of_keys = st.lists(st.sets(texts, max_size=12), min_size=2, max_size=4)


def check_any_sets(drawn: list[set[str]], method: Method) -> None:
    own, *others = [{*keys, "shared"} for keys in drawn]
    agree(own, {f"m{i}": keys for i, keys in enumerate(others)}, method)


@given(sets_of_keys)
@settings(max_examples=60, deadline=None)
def test_any_sets_hashed(drawn: list[set[str]]) -> None:
    check_any_sets(drawn, "hashed")


@needs_psi
@given(sets_of_keys)
@settings(max_examples=30, deadline=None)
def test_any_sets_private(drawn: list[set[str]]) -> None:
    check_any_sets(drawn, "private")


def test_many_pieces_hashed() -> None:
    own = numbers(range(2 * PIECE + 100))
    ended = agree(own, {"shop": numbers(range(PIECE, 3 * PIECE + 1))}, "hashed")
    sent = [decode_ask(frame) for frame in ended.channels["shop"].sent]
    assert [ask.piece for ask in sent if isinstance(ask, Own)] == [0, 1, 2]
    assert max(map(len, ended.channels["shop"].sent)) <= LARGEST_ASK


@needs_psi
def test_many_pieces_private() -> None:
    ended = agree(
        numbers(range(PIECE + 5)), {"shop": numbers(range(PIECE - 5, 2 * PIECE + 7))}, "private"
    )
    sent = [decode_ask(frame) for frame in ended.channels["shop"].sent]
    assert [ask.piece for ask in sent if isinstance(ask, Own)] == [0, 1]
    assert [ask.piece for ask in sent if isinstance(ask, Fetch)] == [0, 1]
    assert max(map(len, ended.channels["shop"].sent)) <= LARGEST_ASK


@both_methods
def test_nothing_in_common_ends_in_one_line_at_all(method: Method) -> None:
    ended = run(["a", "b"], {"shop": ["b", "c"], "post": ["c", "d", "e"]}, method)
    assert isinstance(ended.label_holder, DataError)
    assert str(ended.label_holder).startswith(
        "no record is common to all 3 parties: the label holder has 2, "
        "shop 2 of which 1 are here, post 3 of which 0 are here; do the columns"
    )
    for name, count in (("shop", 2), ("post", 3)):
        error = ended.members[name]
        assert isinstance(error, DataError)
        assert str(error) == (
            "no record is common to all 3 parties: the label holder has 2, "
            f"this party {count}; do the columns of identifiers hold the same kind of key?"
        )


# ---- what is seen on the way


@needs_psi
def test_a_feature_holder_sends_no_key_and_no_hash_of_one() -> None:
    own, keys = [f"person-{i:04}" for i in range(60)], [f"person-{i:04}" for i in range(30, 90)]
    ended = agree(own, {"shop": keys, "post": keys}, "private")
    streams = {name: b"".join(channel.sent) for name, channel in ended.channels.items()}
    salts = {
        answer.salt
        for channel in ended.channels.values()
        for answer in map(decode_answer, channel.received)
        if isinstance(answer, Welcome)
    }
    assert salts == {b""}
    stranger = Curve(NAME)
    for stream in streams.values():
        for key in keys:
            for name in ("md5", "sha1", "sha256", "sha512", "blake2b", "sha3_256"):
                digest = hashlib.new(name, key.encode()).digest()
                assert digest not in stream
                assert digest.hex().encode() not in stream
            inner = stranger._text(key)  # what is mapped to the curve, before any secret
            assert key.encode() not in stream
            assert inner.encode() not in stream
            assert bytes.fromhex(inner) not in stream
            assert salted_hashes(b"", [key])[0] not in stream
        for point in stranger.blind(keys):
            assert point[1:] not in stream
    # Two parties with the same keys have not one point in common.
    points = {name: set(own_points(channel.sent)) for name, channel in ended.channels.items()}
    assert [len(found) for found in points.values()] == [60, 60]
    assert not points["shop"] & points["post"]


def own_points(sent: Iterable[bytes], width: int = POINT) -> list[bytes]:
    asks = map(decode_ask, sent)
    return [point for ask in asks if isinstance(ask, Own) for point in cut(ask.points, width)]


@needs_psi
def test_a_feature_holder_cannot_try_keys_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all it has, its secret included, nothing it received matches a key it thinks of."""
    made: list[Curve] = []
    plain_init = Curve.__init__

    def watched(self: Curve, federation: str) -> None:
        plain_init(self, federation)
        made.append(self)

    monkeypatch.setattr(Curve, "__init__", watched)
    own, keys = numbers(range(50)), numbers(range(40, 90))
    ended = agree(own, {"shop": keys}, "private")
    label_holder, shop = made
    received = [decode_answer(frame) for frame in ended.channels["shop"].received]
    points = b"".join(answer.points for answer in received if isinstance(answer, Piece))
    seen = {*cut(points, POINT), *cut(shop.again(points), POINT)}
    assert len(seen) == 100
    stream = b"".join(ended.channels["shop"].received)

    def recognised(curve: Curve, guesses: Sequence[str]) -> set[str]:
        blinded = curve.blind(guesses)
        again = cut(curve.again(b"".join(blinded)), POINT)
        return {
            guess
            for guess, once, twice in zip(guesses, blinded, again, strict=True)
            if once in seen or twice in seen
        }

    assert recognised(shop, own) == set()
    # The same attack with the label holder's secret finds everything, so it looks where it must.
    assert recognised(label_holder, own) == set(own)
    # No key is told at all, common or not, in plain or by a hash that anyone can take.
    for key in own:
        assert hashlib.sha256(key.encode()).digest() not in stream
        assert bytes.fromhex(shop._text(key)) not in stream
    (outcome,) = [answer for answer in received if isinstance(answer, Outcome)]
    assert (outcome.common, len(outcome.bits)) == (10, 7)


def test_the_hashed_method_shows_a_set_to_whoever_tries_keys_out() -> None:
    """Why it is called not private; the same look at the private method finds nothing."""
    keys = numbers(range(40, 90))
    ended = agree(numbers(range(50)), {"shop": keys}, "hashed")
    channel = ended.channels["shop"]
    (salt,) = {
        answer.salt
        for answer in map(decode_answer, channel.received)
        if isinstance(answer, Welcome)
    }
    guesses = numbers(range(1000))
    table = dict(zip(salted_hashes(salt, guesses), guesses, strict=True))
    assert {table.get(found) for found in own_points(channel.sent, 32)} == set(keys)


@both_methods
def test_the_order_of_what_is_sent_is_that_of_the_points(method: Method) -> None:
    ended = agree(numbers(range(50)), {"shop": numbers(range(10, 40))}, method)
    channel = ended.channels["shop"]
    points = own_points(channel.sent, POINT if method == "private" else 32)
    assert points == sorted(points)
    for answer in map(decode_answer, channel.received):
        if isinstance(answer, Piece):
            fetched = list(cut(answer.points, POINT))
            assert fetched == sorted(fetched)


# ---- what members may do


@both_methods
def test_every_ask_may_be_made_again(method: Method) -> None:
    own, members = numbers(range(30)), {"a": numbers(range(20)), "b": numbers(range(10, 30))}
    ended = run(own, members, method, times=3)
    for found in ended.all:
        assert isinstance(found, Alignment)
        assert found.keys == in_order(numbers(range(10, 20)))


def started(service: AligningService, member: str, keys: Sequence[str]) -> Callable[..., Any]:
    """A member in the middle of a hashed alignment: everything sent, not finished."""
    channel = DirectChannel(service, member, 20.0)

    def say(ask: Message) -> Any:
        return decode_answer(channel.ask(encode(ask)))

    start = bytes(16)
    welcome = say(Begin(1, NAME, "hashed", start, len(keys)))
    assert isinstance(welcome, Welcome)
    hashes = sorted(salted_hashes(welcome.salt, keys))
    assert say(Own(start, 0, b"".join(hashes))) == Taken()
    return say


def test_an_ask_that_comes_late_changes_nothing() -> None:
    with closing(AligningService(["a"], ["x", "y"], "hashed", federation=NAME)) as service:
        channel = Tapped(DirectChannel(service, "a", 20.0))
        found = align_with(channel, ["y", "z"], "hashed", federation=NAME)
        for frame, answer in zip(channel.sent, list(channel.received), strict=True):
            assert channel.inner.ask(frame) == answer
        channel.close()
        assert service.wait(patience=20.0).fingerprint == found.fingerprint


def test_one_set_of_a_member_is_answered() -> None:
    with closing(AligningService(["a"], ["x", "y"], "hashed", federation=NAME)) as service:
        channel = DirectChannel(service, "a", 20.0)
        assert align_with(channel, ["y", "z"], "hashed", federation=NAME).keys == ("y",)
        with pytest.raises(RunError, match="found for one set of each party, and this is another"):
            align_with(channel, ["x", "z"], "hashed", federation=NAME)
        channel.close()
        assert service.wait(patience=20.0).keys == ("y",)


def test_a_member_may_begin_again_before_there_is_an_outcome() -> None:
    with (
        closing(AligningService(["a", "b"], ["x", "y"], "hashed", federation=NAME)) as service,
        ThreadPoolExecutor(2) as pool,
    ):
        say = started(service, "a", ["x"])  # and is cut off
        again = pool.submit(
            align_with, DirectChannel(service, "a"), ["y"], federation=NAME, method="hashed"
        )
        until(lambda: "a" not in service.missing())
        refused = say(Finish(bytes(16)))
        assert isinstance(refused, Refused)
        assert "begin again" in refused.reason
        service.gone("a")
        again_b = pool.submit(
            align_with, DirectChannel(service, "b"), ["x", "y"], federation=NAME, method="hashed"
        )
        assert again_b.result(20.0).keys == ("y",)
        assert again.result(20.0).keys == ("y",)


def test_pieces_are_taken_in_turn_and_only_once() -> None:
    with closing(AligningService(["a"], ["x"], "hashed", federation=NAME)) as service:
        say = started(service, "a", ["x", "y"])
        start = bytes(16)
        for ask, words in (
            (Own(start, 0, bytes(64)), "piece 0 of its own keys is not what it was"),
            (Own(start, 2, bytes(64)), "piece 2 of its own keys came where 1 is next"),
            (Own(start, 1, bytes(64)), "piece 1 has 64 bytes, not 0"),
            (Fetch(start, 0), "there is none"),
            (Raised(start, 0, bytes(33)), "piece 0 has 33 bytes"),
            (Confirm(start, bytes(32)), "no outcome yet"),
            (Begin(1, NAME, "hashed", start, 3), "another number of keys"),
            (Finish(b"1" * 16), "begin again"),
        ):
            answer = say(ask)
            assert isinstance(answer, Refused), ask
            assert words in answer.reason
        assert isinstance(say(Finish(start)), Outcome)
        wrong = say(Confirm(start, bytes(32)))
        assert isinstance(wrong, Failed)


def test_a_set_is_sorted_without_repeats() -> None:
    with closing(AligningService(["a"], ["x"], "hashed", federation=NAME)) as service:
        channel, start = DirectChannel(service, "a", 20.0), bytes(16)
        channel.ask(encode(Begin(1, NAME, "hashed", start, 2)))
        for points in (b"b" * 32 + b"a" * 32, b"a" * 64):
            answer = decode_answer(channel.ask(encode(Own(start, 0, points))))
            assert isinstance(answer, Refused)
            assert "not sorted, or has an element twice" in answer.reason
        answer = decode_answer(channel.ask(encode(Finish(start))))
        assert isinstance(answer, Refused)
        assert "0 and 0 pieces were sent of 1 and 0" in answer.reason


@needs_psi
def test_points_off_the_curve_are_refused() -> None:
    def no_points(ask: Any) -> Any:
        return Own(ask.start, ask.piece, b"\x02" + b"\xff" * 32) if isinstance(ask, Own) else ask

    with closing(AligningService(["a"], ["x"], "private", federation=NAME)) as service:
        channel = Tapped(DirectChannel(service, "a", 20.0), change_ask=no_points)
        with pytest.raises(RunError, match="refused: there is something that is no point of"):
            align_with(channel, ["x"], federation=NAME)
        channel.change_ask = lambda ask: ask
        assert align_with(channel, ["x"], federation=NAME).keys == ("x",)


@needs_psi
def test_one_element_for_two_is_refused() -> None:
    def all_alike(ask: Any) -> Any:
        if isinstance(ask, Raised):
            return Raised(ask.start, ask.piece, ask.points[:POINT] * (len(ask.points) // POINT))
        return ask

    ended_early = AligningService(["a"], ["x", "y"], "private", federation=NAME)
    with closing(ended_early) as service:
        channel = Tapped(DirectChannel(service, "a", 20.0), change_ask=all_alike)
        with pytest.raises(RunError, match="came back as one"):
            align_with(channel, ["x"], federation=NAME)


@both_methods
def test_over_grpc_with_certificates(method: Method, tmp_path: Path) -> None:
    members = {"shop": numbers(range(5, 25)), "post": numbers(range(10, 30))}
    issue(tmp_path / "made", "bank", list(members), [], 30)

    def credentials(name: str) -> Credentials:
        return Credentials.load(tmp_path / "made" / name)

    service = AligningService(list(members), numbers(range(20)), method, federation=NAME)
    server = GrpcServer(
        service, listen="127.0.0.1:0", credentials=credentials("bank"), limits=Limits()
    )
    with closing(service), server, ThreadPoolExecutor(2) as pool:

        def take_part(name: str) -> Alignment:
            address = f"localhost:{server.port}"
            with closing(GrpcChannel(address, credentials(name), patience=20.0)) as channel:
                return align_with(channel, members[name], method, federation=NAME)

        results = [pool.submit(take_part, name) for name in members]
        found = service.wait(patience=60.0)
        assert found.keys == in_order(numbers(range(10, 20)))
        assert {result.result(20.0).fingerprint for result in results} == {found.fingerprint}


# ---- garbage


@pytest.fixture(scope="module")
def thrown_at() -> Iterator[AligningService]:
    """One service that gets everything."""
    with closing(AligningService(["a"], ["x", "y"], "hashed", federation=NAME)) as service:
        yield service


@given(garbage=st.binary(max_size=80))
@settings(max_examples=150, deadline=None)
def test_garbage_is_refused_in_a_line(thrown_at: AligningService, garbage: bytes) -> None:
    answer = decode_answer(DirectChannel(thrown_at, "a", 20.0).ask(garbage))
    assert isinstance(answer, Refused)
    assert answer.reason.isprintable()


@given(which=st.integers(0, 3), place=st.integers(0, 200), byte=st.integers(0, 255))
@settings(max_examples=150, deadline=None)
def test_a_byte_off_does_no_harm(
    thrown_at: AligningService, which: int, place: int, byte: int
) -> None:
    start = b"s" * 16
    frames = [
        Begin(1, NAME, "hashed", start, 2),
        Own(start, 0, bytes(64)),
        Fetch(start, 0),
        Raised(start, 0, bytes(66)),
    ]
    frame = bytearray(encode(frames[which]))
    frame[place % len(frame)] = byte
    decode_answer(DirectChannel(thrown_at, "a", 20.0).ask(bytes(frame)))


def test_it_still_works_afterwards(thrown_at: AligningService) -> None:
    too_long = decode_answer(DirectChannel(thrown_at, "a", 20.0).ask(bytes(LARGEST_ASK + 1)))
    assert isinstance(too_long, Refused)
    assert f"an ask has at most {LARGEST_ASK}" in too_long.reason
    stranger = DirectChannel(thrown_at, "nobody", 20.0)
    with pytest.raises(RunError, match="refused: 'nobody' is no member"):
        align_with(stranger, ["x"], "hashed", federation=NAME)
    stranger.close()
    channel = DirectChannel(thrown_at, "a", 20.0)
    assert align_with(channel, ["x"], "hashed", federation=NAME).keys == ("x",)
    channel.close()
    assert thrown_at.wait(patience=20.0).keys == ("x",)


# ---- what goes wrong between parties


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"federation": "oth\x1ber"},
            "federation of the alignment is 'oth\\x1ber' there and 'federation'",
        ),
        ({"method": "private"}, "method of the alignment is 'private' there and 'hashed' at the"),
        ({"version": 2}, "version of the alignment is 2 there and 1 at the label holder"),
    ],
)
def test_parties_that_are_set_up_otherwise(change: dict[str, Any], words: str) -> None:
    def altered(ask: Any) -> Any:
        values = {name: getattr(ask, name) for name in ask.__struct_fields__}
        return type(ask)(**{**values, **change}) if isinstance(ask, Begin) else ask

    with closing(AligningService(["a"], ["x"], "hashed", federation=NAME)) as service:
        channel = Tapped(DirectChannel(service, "a", 20.0), change_ask=altered)
        with pytest.raises(RunError) as caught:
            align_with(channel, ["x"], "hashed", federation=NAME)
        assert words in str(caught.value)
        assert str(caught.value).isprintable()
        assert words in service.missing()["a"]
        channel.change_ask = lambda ask: ask
        align_with(channel, ["x"], "hashed", federation=NAME)
        assert service.missing() == {}


def test_a_party_without_the_keys_that_it_sent_fails_for_all() -> None:
    def other(ask: Any) -> Any:
        return Confirm(ask.start, bytes(32)) if isinstance(ask, Confirm) else ask

    members = {"honest": ["x", "y"], "liar": ["x", "y"]}
    ended = run(["x", "y"], members, "hashed", {"liar": other})
    assert isinstance(ended.label_holder, RunError)
    assert "liar did not arrive at the same records" in str(ended.label_holder)
    for error in ended.members.values():
        assert isinstance(error, DataError)
        assert "the parties did not arrive at the same records" in str(error)


def test_who_does_not_come_is_named() -> None:
    seen: list[dict[str, str]] = []
    with (
        closing(AligningService(["a", "b", "c"], ["x"], "hashed", federation=NAME)) as service,
        ThreadPoolExecutor(1) as pool,
    ):
        started(service, "b", ["x", "y"])
        ready = pool.submit(
            align_with, DirectChannel(service, "c"), ["x"], federation=NAME, method="hashed"
        )
        until(lambda: "c" not in service.missing())
        with pytest.raises(RunError) as caught:
            service.wait(
                lambda names: seen.append(dict(names)), every=0.02, patience=1.0, grace=0.5
            )
        assert seen[0] == {"a": "has not come", "b": "has sent 100 %"}
        assert str(caught.value) == (
            "no alignment in 1 s; waited for a (has not come), b (has sent 100 %)"
        )
        with pytest.raises(DataError, match="not all parties came in time"):
            ready.result(20.0)


def test_a_mistake_of_ours_ends_it_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr("vertizo.network.alignment.messages.MemberSet.matches", broken)
    with (
        closing(AligningService(["a"], ["x"], "hashed", federation=NAME)) as service,
        ThreadPoolExecutor(1) as pool,
    ):
        channel = DirectChannel(service, "a", 60.0)
        member = pool.submit(align_with, channel, ["x"], "hashed", federation=NAME)
        with pytest.raises(ZeroDivisionError):
            service.wait(patience=20.0)
        with pytest.raises(DataError, match="the label holder's program failed"):
            member.result(20.0)
        with pytest.raises(DataError, match="the label holder's program failed"):
            align_with(channel, ["x"], "hashed", federation=NAME)


@dataclass
class Scripted:
    """A label holder that answers each kind of ask with what is given."""

    answers: dict[type, bytes]

    def ask(self, frame: bytes) -> bytes:
        return self.answers[type(decode_ask(frame))]

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({Begin: b"\xff\x00"}, "answered with no message of an alignment"),
        ({Begin: encode(Taken())}, "answered Begin with Taken, not Welcome"),
        ({Begin: encode(Refused("no\x1b[2J\nway"))}, r"refused: no\?\[2J\?way"),
        ({Finish: encode(Outcome(1, b"\x00"))}, "0 bits set in 1 bytes, for 1 common"),
        ({Finish: encode(Outcome(0, b"\x00"))}, "0 bits set in 1 bytes, for 0 common"),
        ({Finish: encode(Outcome(1, b"\x80"))}, "1 bits set in 1 bytes, for 1 common records of 2"),
        ({Finish: encode(Outcome(1, b"\x01\x00"))}, "1 bits set in 2 bytes"),
        ({Confirm: encode(Agreed(bytes(32)))}, "did not arrive at the same records as this"),
    ],
)
def test_a_label_holder_that_answers_nonsense(answers: dict[type, bytes], words: str) -> None:
    usual: dict[type, bytes] = {
        Begin: encode(Welcome(3, 2, b"salt")),
        Own: encode(Taken()),
        Finish: encode(Outcome(1, b"\x01")),
    }
    with pytest.raises(RunError, match=words):
        align_with(Scripted({**usual, **answers}), ["x", "y"], "hashed", federation=NAME)


@needs_psi
@pytest.mark.parametrize(
    ("points", "words"),
    [(bytes(33), "piece 0 is wrong: there is something that is no"), (bytes(66), "sent 66 bytes")],
)
def test_a_label_holder_that_sends_no_points(points: bytes, words: str) -> None:
    answers: dict[type, bytes] = {
        Begin: encode(Welcome(1, 2, b"")),
        Own: encode(Taken()),
        Fetch: encode(Piece(points)),
    }
    with pytest.raises(RunError, match=words):
        align_with(Scripted(answers), ["x"], federation=NAME)


# ---- what is wrong at once


def test_without_the_extra_the_alternative_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "private_set_intersection.python", None)
    words = r"pip install 'vertizo\[psi\]'; or choose --method hashed, which is not private"
    with pytest.raises(ConfigError, match=words):
        AligningService(["a"], ["x"], federation=NAME)
    with pytest.raises(ConfigError, match=words):
        align_with(Scripted({}), ["x"], federation=NAME)
    agree(["x"], {"a": ["x"]}, "hashed")


def test_arguments_are_checked() -> None:
    for members in ([], ["a", "a"]):
        with pytest.raises(ConfigError, match="name one or more, each once"):
            AligningService(members, ["x"], "hashed", federation=NAME)
    with pytest.raises(ConfigError, match="'open'; it must be private or hashed"):
        AligningService(["a"], ["x"], "open", federation=NAME)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="no keys to align"):
        AligningService(["a"], [], "hashed", federation=NAME)
    with pytest.raises(DataError, match="1 of 3 keys occur more than once"):
        align_with(Scripted({}), ["x", "y", "x"], "hashed", federation=NAME)


def test_a_fingerprint_is_of_the_keys_their_order_and_the_federation() -> None:
    made = {
        fingerprint(name, keys)
        for name in ("f", "g")
        for keys in (["a", "b"], ["b", "a"], ["ab"], ["a", "b", ""], [])
    }
    assert len(made) == 10


def test_no_thread_is_left() -> None:
    before = threading.active_count()
    agree(["x"], {"a": ["x"]}, "hashed")
    assert threading.active_count() <= before
