"""All parties find the records that every one of them has, and show no more than was said."""

from __future__ import annotations

import hashlib
import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests import deployments as dep
from tests.deployments import DirectChannel
from tests.network.by_hand import over_grpc
from tests.rows import examples
from tests.waiting import until

from vertizo.core.errors import ConfigError, DataError, RunError, VertizoError
from vertizo.data.alignment import fingerprint, in_order
from vertizo.network.alignment.blinding import PIECE, POINT, Curve, cut, salted_hashes
from vertizo.network.alignment.member import Alignment, Method, align_with
from vertizo.network.alignment.messages import (
    LARGEST_ASK,
    Agreed,
    Begin,
    Confirm,
    Failed,
    Fetch,
    Finish,
    MemberSet,
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

HAS_PSI = find_spec("nacl") is not None
METHODS: tuple[Method, ...] = ("private", "hashed") if HAS_PSI else ("hashed",)
needs_psi = pytest.mark.skipif(not HAS_PSI, reason="PyNaCl is not installed")
NAME = "federation"
START = bytes(16)


@dataclass
class Tapped:
    """A channel that keeps what goes over it, and may change it."""

    inner: DirectChannel
    change: Callable[[Any], Any] = lambda ask: ask
    times: int = 1
    asks: list[Any] = field(default_factory=list)
    sent: list[bytes] = field(default_factory=list)
    received: list[bytes] = field(default_factory=list)

    def ask(self, frame: bytes) -> bytes:
        self.asks.append(self.change(decode_ask(frame)))
        frame = encode(self.asks[-1])
        answers = {self.inner.ask(frame) for _ in range(self.times)}
        self.sent.append(frame)
        self.received += answers
        [answer] = answers
        return answer

    def close(self) -> None:
        self.inner.close()

    def answers(self, kind: type) -> list[Any]:
        return [answer for answer in map(decode_answer, self.received) if isinstance(answer, kind)]

    def own_points(self, width: int = POINT) -> list[bytes]:
        return [
            point for ask in self.asks if isinstance(ask, Own) for point in cut(ask.points, width)
        ]


class Ended(NamedTuple):
    """How an alignment ended at each party: a result or an error."""

    label_holder: Alignment | VertizoError
    members: dict[str, Alignment | VertizoError]
    channels: dict[str, Tapped]


def ending(call: Callable[[], Alignment]) -> Alignment | VertizoError:
    try:
        return call()
    except VertizoError as error:
        return error


@contextmanager
def serving(
    own: Sequence[str], method: Method = "hashed", members: Sequence[str] = ("a",)
) -> Iterator[AligningService]:
    with closing(AligningService(members, own, method, federation=NAME)) as service:
        yield service


def take_part(channel: Any, keys: Sequence[str], method: Method = "hashed") -> Alignment:
    return align_with(channel, keys, method, federation=NAME)


def run(
    own: Sequence[str],
    members: Mapping[str, Sequence[str]],
    method: Method,
    liar: Callable[[Any], Any] = lambda ask: ask,
    times: int = 1,
) -> Ended:
    """All parties at once, each member in a thread; one called liar changes what it says."""
    with serving(own, method, list(members)) as service:
        channels = {name: Tapped(DirectChannel(service, name), times=times) for name in members}
        if "liar" in channels:
            channels["liar"].change = liar

        def work(name: str) -> Alignment | VertizoError:
            with closing(channels[name]):
                return ending(lambda: take_part(channels[name], members[name], method))

        everyone = [lambda: ending(lambda: service.wait(patience=30.0))]
        everyone += [partial(work, name) for name in members]
        label_holder, *found = dep.together(everyone)
    return Ended(label_holder, dict(zip(members, found, strict=True)), channels)


def agree(
    own: Iterable[str], members: Mapping[str, Iterable[str]], method: Method, times: int = 1
) -> Ended:
    """As `run`, with the plain intersection as the result of all."""
    sets = {name: list(keys) for name, keys in members.items()}
    ended = run(list(own), sets, method, times=times)
    expected = in_order(set(own).intersection(*sets.values()))
    everyone = [ended.label_holder, *ended.members.values()]
    for found in everyone:
        assert isinstance(found, Alignment), found
        assert (found.keys, found.parties, found.method) == (expected, len(sets) + 1, method)
    assert len({found.fingerprint for found in everyone if isinstance(found, Alignment)}) == 1
    return ended


def numbers(*bounds: int) -> list[str]:
    return [str(number) for number in range(*bounds)]


# ---- what is found


def test_all_find_the_intersection() -> None:
    for method in METHODS:
        for parties in (2, 3, 4):
            own = numbers(40)
            members = {f"m{i}": numbers(5 * i, 50 + i) for i in range(1, parties)}
            for keys in (own, *members.values()):
                random.Random(parties).shuffle(keys)
            ended = agree(own, members, method)
            whole = ended.label_holder
            assert isinstance(whole, Alignment)
            assert whole.own == 40
            assert whole.others == {name: len(keys) for name, keys in members.items()}
            shared = {name: len(set(own) & set(keys)) for name, keys in members.items()}
            assert whole.pairwise == shared
            for name, found in ended.members.items():
                assert isinstance(found, Alignment)
                assert (found.own, found.pairwise) == (len(members[name]), {})
                assert dict(found.others) == {"the label holder": 40}


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=3)
ODD = {"é", "e\u0301", " ", "\x00", "\x00\x00", "日本", "🙂", "a\nb", "x" * 5000}


@given(st.lists(st.sets(texts, max_size=12), min_size=2, max_size=4), st.sampled_from(METHODS))
@example([ODD | {"mine"}, ODD | {"its"}], METHODS[0])
@example([ODD | {"mine"}, ODD | {"its"}], METHODS[-1])
@settings(max_examples=examples(80), deadline=None)
def test_any_text_is_a_key(drawn: list[set[str]], method: Method) -> None:
    own, *others = [{*keys, "shared"} for keys in drawn]
    agree(own, {f"m{i}": keys for i, keys in enumerate(others)}, method)


@pytest.mark.full
def test_large_sets_travel_in_pieces() -> None:
    bounds = {"hashed": (2 * PIECE + 100, PIECE, 3 * PIECE + 1), "private": (PIECE + 5, 7, PIECE)}
    for method in METHODS:
        mine, first, last = bounds[method]
        channel = agree(numbers(mine), {"shop": numbers(first, last + 9)}, method).channels["shop"]
        taken = [ask.piece for ask in channel.asks if isinstance(ask, Own)]
        assert taken == list(range(-(-(last + 9 - first) // PIECE)))
        fetched = [ask.piece for ask in channel.asks if isinstance(ask, Fetch)]
        assert fetched == ([0, 1] if method == "private" else [])
        assert max(map(len, channel.sent)) <= LARGEST_ASK


def test_nothing_in_common_ends_in_one_line_at_all() -> None:
    for method in METHODS:
        ended = run(["a", "b"], {"shop": ["b", "c"], "post": ["c", "d", "e"]}, method)
        lines = {
            "shop 2 of which 1 are here, post 3 of which 0 are here": ended.label_holder,
            "this party 2": ended.members["shop"],
            "this party 3": ended.members["post"],
        }
        for words, error in lines.items():
            assert isinstance(error, DataError)
            assert str(error) == (
                f"no record is common to all 3 parties: the label holder has 2, {words}; "
                "do the columns of identifiers hold the same kind of key?"
            )


# ---- what is seen on the way


@needs_psi
def test_a_feature_holder_sends_no_key_and_no_hash_of_one() -> None:
    own, keys = [f"person-{i:04}" for i in range(60)], [f"person-{i:04}" for i in range(30, 90)]
    channels = agree(own, {"shop": keys, "post": keys}, "private").channels
    stranger = Curve(NAME)
    for channel in channels.values():
        assert [welcome.salt for welcome in channel.answers(Welcome)] == [b""]
        stream = b"".join(channel.sent)
        for key in keys:
            inner = stranger._hash(key)  # what is mapped to the curve, before any secret
            [mapped] = stranger.points([key])
            shown = [key.encode(), inner.hex().encode(), inner, mapped, *salted_hashes(b"", [key])]
            for name in ("md5", "sha1", "sha256", "sha512", "blake2b", "sha3_256"):
                digest = hashlib.new(name, key.encode()).digest()
                shown += [digest, digest.hex().encode()]
            assert not any(part in stream for part in shown)
        assert not any(point in stream for point in stranger.blind(keys))
    # Two parties with the same keys have not one point in common.
    shop, post = (set(channel.own_points()) for channel in channels.values())
    assert (len(shop), len(post), len(shop & post)) == (60, 60, 0)


@needs_psi
def test_a_feature_holder_cannot_try_keys_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all it has, its secret included, nothing it received matches a key it thinks of."""
    made: list[Curve] = []
    plain_init = Curve.__init__

    def watched(self: Curve, federation: str) -> None:
        plain_init(self, federation)
        made.append(self)

    monkeypatch.setattr(Curve, "__init__", watched)
    own = numbers(50)
    channel = agree(own, {"shop": numbers(40, 90)}, "private").channels["shop"]
    label_holder, shop = made
    points = b"".join(piece.points for piece in channel.answers(Piece))
    seen = {*cut(points, POINT), *shop.again(points)}
    assert len(seen) == 100
    stream = b"".join(channel.received)

    def recognised(curve: Curve, guesses: Sequence[str]) -> set[str]:
        blinded = curve.blind(guesses)
        again = curve.again(b"".join(blinded))
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
        assert shop._hash(key) not in stream
    [outcome] = channel.answers(Outcome)
    assert (outcome.common, len(outcome.bits)) == (10, 7)


def test_the_hashed_method_shows_a_set_to_whoever_tries_keys_out() -> None:
    """Why it is called not private; the same look at the private method finds nothing."""
    keys, guesses = numbers(40, 90), numbers(1000)
    channel = agree(numbers(50), {"shop": keys}, "hashed").channels["shop"]
    [welcome] = channel.answers(Welcome)
    known = dict(zip(salted_hashes(welcome.salt, guesses), guesses, strict=True))
    assert {known.get(found) for found in channel.own_points(32)} == set(keys)


def test_the_order_of_what_is_sent_is_that_of_the_points() -> None:
    for method in METHODS:
        channel = agree(numbers(50), {"shop": numbers(10, 40)}, method).channels["shop"]
        points = channel.own_points(POINT if method == "private" else 32)
        assert points == sorted(points)
        for piece in channel.answers(Piece):
            fetched = list(cut(piece.points, POINT))
            assert fetched == sorted(fetched)


# ---- what members may do


def test_every_ask_may_be_made_again() -> None:
    for method in METHODS:
        agree(numbers(30), {"a": numbers(20), "b": numbers(10, 30)}, method, times=3)


def started(service: AligningService, member: str, keys: Sequence[str]) -> Callable[..., Any]:
    """A member in the middle of a hashed alignment: everything sent, not finished."""
    channel = DirectChannel(service, member)

    def say(ask: Message) -> Any:
        return decode_answer(channel.ask(encode(ask)))

    welcome = say(Begin(2, NAME, "hashed", START, len(keys)))
    hashes = sorted(salted_hashes(welcome.salt, keys))
    assert say(Own(START, 0, b"".join(hashes))) == Taken()
    return say


def test_an_outcome_is_for_one_set_and_asks_that_come_late_change_nothing() -> None:
    with serving(["x", "y"]) as service:
        channel = Tapped(DirectChannel(service, "a"))
        found = take_part(channel, ["y", "z"])
        assert found.keys == ("y",)
        for frame, answer in zip(channel.sent, list(channel.received), strict=True):
            assert channel.inner.ask(frame) == answer
        with pytest.raises(RunError, match="found for one set of each party, and this is another"):
            take_part(channel, ["x", "z"])
        channel.close()
        assert service.wait(patience=20.0).fingerprint == found.fingerprint


@pytest.mark.full
def test_a_member_may_begin_again_before_there_is_an_outcome() -> None:
    with serving(["x", "y"], members=["a", "b"]) as service, ThreadPoolExecutor(2) as pool:
        say = started(service, "a", ["x"])  # and is cut off
        again = pool.submit(take_part, DirectChannel(service, "a"), ["y"])
        assert until(lambda: "a" not in service.missing())
        refused = say(Finish(START))
        assert isinstance(refused, Refused)
        assert "begin again" in refused.reason
        service.gone("a")
        other = pool.submit(take_part, DirectChannel(service, "b"), ["x", "y"])
        assert other.result(120.0).keys == again.result(120.0).keys == ("y",)


def test_pieces_are_taken_in_turn_sorted_and_only_once() -> None:
    unsorted = "not sorted, or has an element twice"
    with serving(["x"], members=["a", "b"]) as service:
        say = started(service, "a", ["x", "y"])
        fresh = DirectChannel(service, "b")
        fresh.ask(encode(Begin(2, NAME, "hashed", START, 2)))

        def say_fresh(ask: Message) -> Any:
            return decode_answer(fresh.ask(encode(ask)))

        for says, ask, words in (
            (say, Own(START, 0, bytes(64)), "piece 0 of its own keys is not what it was"),
            (say, Own(START, 2, bytes(64)), "piece 2 of its own keys came where 1 is next"),
            (say, Own(START, 1, bytes(64)), "piece 1 has 64 bytes, not 0"),
            (say, Fetch(START, 0), "there is none"),
            (say, Raised(START, 0, bytes(32)), "piece 0 has 32 bytes"),
            (say, Confirm(START, bytes(32)), "no outcome yet"),
            (say, Begin(2, NAME, "hashed", START, 3), "another number of keys"),
            (say, Finish(b"1" * 16), "begin again"),
            (say_fresh, Own(START, 0, b"b" * 32 + b"a" * 32), unsorted),
            (say_fresh, Own(START, 0, b"a" * 64), unsorted),
            (say_fresh, Finish(START), "0 and 0 pieces were sent of 1 and 0"),
        ):
            answer = says(ask)
            assert isinstance(answer, Refused), ask
            assert words in answer.reason
    with serving(["x"]) as service:
        say = started(service, "a", ["x", "y"])
        assert isinstance(say(Finish(START)), Outcome)
        assert isinstance(say(Confirm(START, bytes(32))), Failed)


def sending(points: bytes) -> Callable[[Any], Any]:
    """What makes of a member's own keys other ones."""
    return lambda ask: Own(ask.start, ask.piece, points) if isinstance(ask, Own) else ask


@needs_psi
def test_points_off_the_curve_and_one_for_two_are_refused() -> None:
    def all_alike(ask: Any) -> Any:
        if isinstance(ask, Raised):
            return Raised(ask.start, ask.piece, ask.points[:POINT] * (len(ask.points) // POINT))
        return ask

    with serving(["x", "y"], "private") as service:
        for change, words in (
            (sending(b"\xff" * POINT), "refused: there is something that is no point of"),
            (sending(bytes(POINT)), "refused: there is a point of small order"),
            (all_alike, "came back as one"),
        ):
            channel = Tapped(DirectChannel(service, "a"), change)
            with pytest.raises(RunError, match=words):
                take_part(channel, ["x"], "private")
        channel.change = lambda ask: ask
        assert take_part(channel, ["x"], "private").keys == ("x",)


def test_over_grpc_with_certificates(tmp_path: Path) -> None:
    method = METHODS[0]
    members = {"shop": numbers(5, 25), "post": numbers(10, 30)}
    with (
        serving(numbers(20), method, list(members)) as service,
        over_grpc(tmp_path, service) as channel,
    ):

        def work(name: str) -> Alignment:
            with closing(channel(name)) as mine:
                return take_part(mine, members[name], method)

        works = [partial(service.wait, patience=60.0), *(partial(work, m) for m in members)]
        found, *theirs = dep.together(works)
    assert found.keys == in_order(numbers(10, 20))
    assert {result.fingerprint for result in theirs} == {found.fingerprint}


# ---- garbage


@pytest.fixture(scope="module")
def thrown_at() -> Iterator[AligningService]:
    """One service that gets everything."""
    with serving(["x", "y"]) as service:
        yield service


ASKS = (
    Begin(2, NAME, "hashed", START, 2),
    Own(START, 0, bytes(64)),
    Fetch(START, 0),
    Raised(START, 0, bytes(64)),
)


@given(
    garbage=st.binary(max_size=80),
    frame=st.sampled_from([encode(ask) for ask in ASKS]),
    place=st.integers(0, 200),
    byte=st.integers(0, 255),
)
@settings(max_examples=examples(150), deadline=None)
def test_garbage_is_refused_in_a_line_and_a_byte_off_does_no_harm(
    thrown_at: AligningService, garbage: bytes, frame: bytes, place: int, byte: int
) -> None:
    channel = DirectChannel(thrown_at, "a")
    answer = decode_answer(channel.ask(garbage))
    assert isinstance(answer, Refused)
    assert answer.reason.isprintable()
    altered = bytearray(frame)
    altered[place % len(frame)] = byte
    decode_answer(channel.ask(bytes(altered)))


def test_it_still_works_afterwards(thrown_at: AligningService) -> None:
    too_long = decode_answer(DirectChannel(thrown_at, "a").ask(bytes(LARGEST_ASK + 1)))
    assert isinstance(too_long, Refused)
    assert f"an ask has at most {LARGEST_ASK}" in too_long.reason
    stranger = DirectChannel(thrown_at, "nobody")
    with pytest.raises(RunError, match="refused: 'nobody' is no member"):
        take_part(stranger, ["x"])
    stranger.close()
    channel = DirectChannel(thrown_at, "a")
    assert take_part(channel, ["x"]).keys == ("x",)
    channel.close()
    assert thrown_at.wait(patience=20.0).keys == ("x",)


# ---- what goes wrong between parties


def test_parties_that_are_set_up_otherwise() -> None:
    with serving(["x"]) as service:
        channel = Tapped(DirectChannel(service, "a"))
        for change, words in (
            ({"federation": "oth\x1ber"}, "federation of the alignment is 'oth\\x1ber' there and"),
            ({"method": "private"}, "method of the alignment is 'private' there and 'hashed' at"),
            ({"version": 1}, "version of the alignment is 1 there and 2 at the label holder"),
        ):
            other = msgspec.structs.replace(Begin(2, NAME, "hashed", START, 1), **change)
            channel.change = lambda _, other=other: other
            with pytest.raises(RunError) as caught:
                take_part(channel, ["x"])
            assert words in str(caught.value)
            assert str(caught.value).isprintable()
            assert words in service.missing()["a"]
        channel.change = lambda ask: ask
        take_part(channel, ["x"])
        assert service.missing() == {}


def test_a_party_without_the_keys_that_it_sent_fails_for_all() -> None:
    def other(ask: Any) -> Any:
        return Confirm(ask.start, bytes(32)) if isinstance(ask, Confirm) else ask

    ended = run(["x", "y"], {"honest": ["x", "y"], "liar": ["x", "y"]}, "hashed", other)
    assert isinstance(ended.label_holder, RunError)
    assert "liar did not arrive at the same records" in str(ended.label_holder)
    for error in ended.members.values():
        assert isinstance(error, DataError)
        assert "the parties did not arrive at the same records" in str(error)


@pytest.mark.full
def test_who_does_not_come_is_named() -> None:
    seen: list[dict[str, str]] = []
    with serving(["x"], members=["a", "b", "c"]) as service, ThreadPoolExecutor(1) as pool:
        started(service, "b", ["x", "y"])
        ready = pool.submit(take_part, DirectChannel(service, "c"), ["x"])
        assert until(lambda: "c" not in service.missing())
        with pytest.raises(RunError) as caught:
            service.wait(
                lambda names: seen.append(dict(names)), every=0.02, patience=0.5, grace=0.5
            )
        assert seen[0] == {"a": "has not come", "b": "has sent 100 %"}
        assert str(caught.value) == (
            "no alignment in 0.5 s; waited for a (has not come), b (has sent 100 %)"
        )
        with pytest.raises(DataError, match="not all parties came in time"):
            ready.result(120.0)


def test_a_mistake_of_ours_ends_it_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(MemberSet, "matches", broken)
    with serving(["x"]) as service, ThreadPoolExecutor(1) as pool:
        channel = DirectChannel(service, "a")
        member = pool.submit(take_part, channel, ["x"])
        with pytest.raises(ZeroDivisionError):
            service.wait(patience=20.0)
        for late in (member.result, lambda _: take_part(channel, ["x"])):
            with pytest.raises(DataError, match="the label holder's program failed"):
                late(20.0)


def scripted(answers: dict[type, bytes]) -> Any:
    """A label holder that answers each kind of ask with what is given."""
    return SimpleNamespace(ask=lambda frame: answers[type(decode_ask(frame))])


def test_a_label_holder_that_answers_nonsense() -> None:
    usual: dict[type, bytes] = {
        Begin: encode(Welcome(3, 2, b"salt")),
        Own: encode(Taken()),
        Finish: encode(Outcome(1, b"\x01")),
    }
    for ask, answer, words in (
        (Begin, b"\xff\x00", "answered with no message of an alignment"),
        (Begin, encode(Taken()), "answered Begin with Taken, not Welcome"),
        (Begin, encode(Refused("no\x1b[2J\nway")), r"refused: no\?\[2J\?way"),
        (Finish, encode(Outcome(1, b"\x00")), "0 bits set in 1 bytes, for 1 common"),
        (Finish, encode(Outcome(0, b"\x00")), "0 bits set in 1 bytes, for 0 common"),
        (Finish, encode(Outcome(1, b"\x80")), "1 bits set in 1 bytes, for 1 common records of 2"),
        (Finish, encode(Outcome(1, b"\x01\x00")), "1 bits set in 2 bytes"),
        (Confirm, encode(Agreed(bytes(32))), "did not arrive at the same records as this"),
    ):
        with pytest.raises(RunError, match=words):
            take_part(scripted({**usual, ask: answer}), ["x", "y"])


@needs_psi
def test_a_label_holder_that_sends_no_points() -> None:
    usual = {Begin: encode(Welcome(1, 2, b"")), Own: encode(Taken())}
    for points, words in (
        (b"\xff" * POINT, "piece 0 is wrong: there is something that is no"),
        (bytes(POINT), "piece 0 is wrong: there is a point of small order"),
        (bytes(66), "sent 66 bytes"),
    ):
        with pytest.raises(RunError, match=words):
            take_part(scripted({**usual, Fetch: encode(Piece(points))}), ["x"], "private")


# ---- what is wrong at once


def test_without_the_extra_the_alternative_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nacl.bindings", None)
    words = r"pip install 'vertizo\[psi\]'; or choose --method hashed, which is not private"
    with pytest.raises(ConfigError, match=words):
        AligningService(["a"], ["x"], federation=NAME)
    with pytest.raises(ConfigError, match=words):
        take_part(scripted({}), ["x"], "private")
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
        take_part(scripted({}), ["x", "y", "x"])


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
    assert until(lambda: threading.active_count() <= before)
