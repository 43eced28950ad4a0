"""The points of private alignments: what the page says, and nothing else is multiplied."""

from __future__ import annotations

import random
from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.deployments import DirectChannel
from tests.network.test_alignment import (
    NAME,
    Tapped,
    agree,
    numbers,
    scripted,
    sending,
    serving,
    take_part,
)
from tests.rows import examples

from vertizo.core.errors import ConfigError, DataError, MalformedError, RunError
from vertizo.network.alignment.blinding import (
    CHUNK,
    POINT,
    PRIME,
    PROBE,
    PROBED,
    Curve,
    _mapped,
    cut,
    require_psi,
)
from vertizo.network.alignment.messages import (
    Begin,
    Failed,
    Fetch,
    Finish,
    Own,
    Piece,
    Raised,
    Taken,
    Welcome,
    encode,
)

sodium = pytest.importorskip("nacl.bindings")
J = 486662
"""Curve25519 is y² = u³ + J u² + u."""


def coded(number: int) -> bytes:
    return number.to_bytes(POINT, "little")


def ladder(scalar: int, u: int) -> int:
    """RFC 7748, section 5, with numbers of Python."""
    a, b, c, d = 1, 0, u, 1
    for bit in reversed(range(255)):
        if swap := scalar >> bit & 1:
            a, b, c, d = c, d, a, b
        plus, minus = (a + b) ** 2 % PRIME, (a - b) ** 2 % PRIME
        one, other = (c - d) * (a + b) % PRIME, (c + d) * (a - b) % PRIME
        c, d = (one + other) ** 2 % PRIME, u * (one - other) ** 2 % PRIME
        e = plus - minus
        a, b = plus * minus % PRIME, e * (plus + (J - 2) // 4 * e) % PRIME
        if swap:
            a, b, c, d = c, d, a, b
    return a * pow(b, -1, PRIME) % PRIME


def is_square(number: int) -> bool:
    return pow(number, (PRIME - 1) // 2, PRIME) in (0, 1)


def mapped(uniform: bytes) -> int:
    """RFC 9380, section 6.7.1 (Elligator 2), times the cofactor."""
    r = int.from_bytes(uniform, "little") % 2**255
    u = -J * pow(1 + 2 * r * r, -1, PRIME) % PRIME
    return ladder(8, u if on_curve(u) else -u - J)


def on_curve(u: int) -> bool:
    """Otherwise it is on the twist."""
    return is_square(u**3 + J * u * u + u)


def secret_of(curve: Curve) -> int:
    """Clamped as in RFC 7748."""
    secret = int.from_bytes(curve._multiply.args[0], "little")
    return secret % 2**254 // 8 * 8 + 2**254


def test_points_are_those_of_the_standards() -> None:
    curve, keys = Curve(NAME), ["", "1", "é", "x" * 999, *numbers(20)]
    points = [mapped(curve._hash(key)) for key in keys]
    assert curve.points(keys) == [coded(u) for u in points]
    assert coded(mapped(PROBE)) == PROBED
    blinded = [ladder(secret_of(curve), u) for u in points]
    assert curve.blind(keys) == [coded(u) for u in blinded]
    assert all(map(on_curve, blinded))  # none tells by lying elsewhere
    assert curve.again(b"".join(map(coded, points))) == [coded(u) for u in blinded]
    assert not {*Curve("other").blind(keys), *Curve(NAME).blind(keys)} & {*curve.blind(keys)}


def test_one_key_written_down_at_every_step() -> None:
    """Releases that differ in any of these find nothing in common: raise VERSION with them."""
    curve = Curve("federation")
    key = "P000000001"
    curve._multiply = partial(sodium.crypto_scalarmult, bytes(range(100, 132)))
    for got, known in (
        (curve._hash(key), "41083070e8ab732601d8e5184527c8a98ae6a3d2e7221ef1f2b4e1edce556bed"),
        (*curve.points([key]), "e875261c287337992b989f0400a1f31dea910136588f6f835c78e24d8e3a5f03"),
        (*curve.blind([key]), "a6ffb47b47bc48527daf08bba240c000c90df2a527c686e6de785b709af4804e"),
    ):
        assert got.hex() == known


def test_a_library_with_another_map_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = sodium.crypto_core_ed25519_from_uniform
    for name, other in (
        ("crypto_core_ed25519_from_uniform", lambda uniform: plain(uniform[::-1])),
        ("has_crypto_core_ed25519", False),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(sodium, name, other)
            with pytest.raises(ConfigError, match="does not map identifiers to the curve as other"):
                Curve(NAME)
    require_psi()


@given(st.sets(st.text(max_size=4), max_size=20), st.randoms())
@settings(max_examples=examples(30), deadline=None)
def test_either_order_gives_the_same_points(keys: set[str], order: random.Random) -> None:
    one, other, mine = Curve(NAME), Curve(NAME), sorted(keys)
    theirs = order.sample(mine, len(mine))
    twice = dict(zip(mine, other.again(b"".join(one.blind(mine))), strict=True))
    back = dict(zip(theirs, one.again(b"".join(other.blind(theirs))), strict=True))
    assert twice == back
    assert len(set(twice.values())) == len(keys)


def test_threads_keep_the_order() -> None:
    curve, keys = Curve(NAME), numbers(3 * CHUNK + 1)
    points = curve.blind(keys)
    assert [curve.blind([key])[0] for key in keys[:: CHUNK // 2]] == points[:: CHUNK // 2]


EIGHTH = 325606250916557431795983626356110631294008115727848805560023387167927233504
EIGHTHS = (EIGHTH, 39382357235489614581723060781553021112529911719440698176882885853963445705823)
SMALL = (0, 1, PRIME - 1, *EIGHTHS)
"""The points of order 1, 2, 4 and 8, of the curve and of its twist, by their coordinate."""


def test_points_of_small_order_and_numbers_written_otherwise_are_refused() -> None:
    curve = Curve(NAME)
    [good] = curve.blind(["x"])
    for u in EIGHTHS:
        assert on_curve(u)
        assert {(u * u - 1) ** 2 % PRIME} == {4 * u * (u * u + J * u + 1) % PRIME}  # twice it is 1
    for u in SMALL:
        with pytest.raises(MalformedError, match="a point of small order"):
            curve.again(good + coded(u))
    number = int.from_bytes(good, "little")
    otherwise = [*range(PRIME, 2**255), *(u + 2**255 for u in (*SMALL, number)), 2**256 - 1]
    for u in otherwise:
        with pytest.raises(MalformedError, match="something that is no point"):
            curve.again(good + coded(u))


@given(st.integers(0, 2**256 - 1))
@example(2)  # of the twist
@example(9)  # X25519's base point
@example(PRIME - 2)
@settings(max_examples=examples(100), deadline=None)
def test_any_bytes_are_refused_or_multiplied_as_x25519_says(number: int) -> None:
    curve = Curve(NAME)
    if number >= PRIME or number in SMALL:
        with pytest.raises(MalformedError):
            curve.again(coded(number))
        return
    [product] = curve.again(coded(number))
    u = int.from_bytes(product, "little")
    assert u == ladder(secret_of(curve), number)
    assert on_curve(u) == on_curve(number)  # so points of keys stay where they all are


def test_a_secret_does_not_show_what_a_point_has_of_small_order() -> None:
    """Eight points that differ by one of order 1, 2, 4 or 8 have one product."""
    point, part = sodium.crypto_core_ed25519_from_uniform(PROBE), coded(1)
    eighth = coded((EIGHTH - 1) * pow(EIGHTH + 1, -1, PRIME) % PRIME)  # as Ed25519 writes it
    guises = set()
    for _ in range(8):
        y = int.from_bytes(sodium.crypto_core_ed25519_add(point, part), "little") % 2**255
        guises.add(coded((1 + y) * pow(1 - y, -1, PRIME) % PRIME))
        part = sodium.crypto_core_ed25519_add(part, eighth)
    assert PROBED in guises
    assert len(guises) == 8
    curve = Curve(NAME)
    assert len({*curve.again(b"".join(guises))}) == 1


SAID = {Begin: encode(Welcome(2, 2, b"")), **dict.fromkeys((Own, Raised), encode(Taken()))}
"""What a label holder answers to asks, whatever is in them."""
NOWHERE = (
    0,
    14120622313557551395864952368738766919491919221024615933057518721691269982991,
    44495073382931032265503668095429935171166074933530784157462047189894136317471,
)
"""With their negatives all that Elligator 2 maps to points of small order."""


def test_hashes_of_no_point_stop_it() -> None:
    """No key has such a hash that anyone could find; it does not become a point all the same."""
    for number in NOWHERE:
        for uniform in (number, PRIME - number, number + 2**255):
            with pytest.raises(ValueError, match="not invertible"):
                _mapped(sodium, [PROBE, coded(uniform)])


def test_points_of_the_twist_match_nothing() -> None:
    """Whoever sends them learns of no record, and sees products that equal no record's."""
    twisted = b"".join([coded(u) for u in range(2, 40) if not on_curve(u)][:2])
    with serving(["x", "y"], "private") as service:
        channel = Tapped(DirectChannel(service, "a"), sending(twisted))
        with pytest.raises(DataError, match="no record is common"):
            take_part(channel, ["x", "y"], "private")
    answers = {**SAID, Fetch: encode(Piece(twisted)), Finish: encode(Failed("enough"))}
    channel = Tapped(scripted(answers))
    with pytest.raises(DataError, match="enough"):
        take_part(channel, ["x", "y"], "private")
    told = [ask.points for ask in channel.asks if isinstance(ask, Own | Raised)]
    sides = [[on_curve(int.from_bytes(u, "little")) for u in cut(part, POINT)] for part in told]
    assert sides == [[True, True], [False, False]]


def test_one_record_in_two_guises_is_refused_by_both() -> None:
    """A point plus one of order 2 is another, but their products with a secret are one."""
    curve = Curve(NAME)
    [good] = curve.blind(["x"])
    guises = b"".join(sorted([good, coded(pow(int.from_bytes(good, "little"), -1, PRIME))]))
    assert len(set(curve.again(guises))) == 1
    with serving(["x", "y"], "private") as service:
        channel = Tapped(DirectChannel(service, "a"), sending(guises))
        with pytest.raises(RunError, match="refused: two of its own elements are one record"):
            take_part(channel, ["x", "y"], "private")
        assert "two of its own" in service.missing()["a"]
    with pytest.raises(RunError, match="sent one record twice, by its piece 0"):
        take_part(scripted({**SAID, Fetch: encode(Piece(guises))}), ["x"], "private")


def test_the_library_that_was_used_before_finds_the_same() -> None:
    psi = pytest.importorskip("private_set_intersection.python")
    draw = random.Random(5)
    for _ in range(3):
        own, theirs = (draw.sample(numbers(300), draw.randint(50, 250)) for _ in range(2))
        client = psi.client.CreateWithNewKey(True)
        server = psi.server.CreateWithNewKey(True)
        setup = server.CreateSetupMessage(0.0, len(own), theirs, psi.DataStructure.RAW)
        response = server.ProcessRequest(client.CreateRequest(own))
        before = {own[place] for place in client.GetIntersection(setup, response)}
        found = agree(own, {"a": theirs}, "private").label_holder
        assert set(found.keys) == before == set(own) & set(theirs)  # type: ignore[union-attr]
