"""Blinding: makes keys unreadable but comparable, by an elliptic curve or by a salted hash.

`Curve` is private: each party has a secret number and multiplies points of Curve25519 by it.
A key's point multiplied by both secrets is the same in either order, and without a secret nobody
can tell which key a point stands for (Meadows 1986; Huberman, Franklin and Hogg 1999). The curve
is libsodium's, by PyNaCl.

`salted_hashes` is not private: whoever has the salt can hash any key and look for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate, chain
from typing import Any, TypeVar

from vertizo.core.errors import ConfigError, MalformedError
from vertizo.data.alignment import hashed

POINT = 32
"""Bytes of a point: its coordinate u (RFC 7748)."""
HASH = 32
"""Bytes of a salted hash."""
PIECE = 8192
"""Points or hashes in one frame: 0.3 MB, and less than a second's work."""
PRIME = 2**255 - 19
"""The field's prime; coordinates are numbers below it."""
PROBE = bytes(range(32))
PROBED = bytes.fromhex("8bf0cd9505b0759033b751b0b27f3e8407f3d8f351bbc3efcd43bc9de3c4f602")
"""A hash and its point, to test libsodium: with another map, nothing would be in common."""
CHUNK = 512
"""Points that a thread works on at a time; libsodium runs without Python's lock."""

Sliced = TypeVar("Sliced", bytes, Sequence[str], Sequence[bytes])


class Curve:
    """One party's secret for one alignment, and what it blinds; errors as of `require_psi`.

    The same key has another point in another federation.
    """

    def __init__(self, federation: str) -> None:
        self._sodium = require_psi()
        self._federation = federation.encode()
        self._multiply = partial(self._sodium.crypto_scalarmult, os.urandom(32))

    def blind(self, keys: Sequence[str]) -> list[bytes]:
        """A point for each key, in the order of the keys."""
        return _in_threads(lambda part: [*map(self._multiply, self.points(part))], keys)

    def again(self, points: bytes) -> list[bytes]:
        """Another party's points times this party's secret, in their order.

        MalformedError if one is not in a point's canonical form, or has a small order.
        """
        return _in_threads(self._again, list(cut(points, POINT)))

    def _again(self, points: Sequence[bytes]) -> list[bytes]:
        if any(int.from_bytes(point, "little") >= PRIME for point in points):
            raise MalformedError("there is something that is no point of the curve")
        try:
            return [self._multiply(point) for point in points]
        except RuntimeError:  # libsodium's answer where the product would not depend on the secret
            raise MalformedError("there is a point of small order") from None

    def points(self, keys: Sequence[str]) -> list[bytes]:
        """The points of keys, before any secret; never sent, since anyone can map a key."""
        return _mapped(self._sodium, [self._hash(key) for key in keys])

    def _hash(self, key: str) -> bytes:
        return hashed((b"vertizo alignment, curve25519", self._federation, key.encode()))


def require_psi() -> Any:
    """PyNaCl's bindings of libsodium; ConfigError if not installed, or of another libsodium."""
    try:
        import nacl.bindings as sodium
    except ImportError:
        raise ConfigError(
            "the method 'private' needs the extra: pip install 'vertizo[psi]'; "
            "or choose --method hashed, which is not private"
        ) from None
    if not sodium.has_crypto_core_ed25519 or _mapped(sodium, [PROBE]) != [PROBED]:
        raise ConfigError(
            "PyNaCl was built with a libsodium that does not map identifiers to the curve as other "
            "parties do; install its wheel: pip install --force-reinstall --only-binary pynacl "
            "pynacl"
        )
    return sodium


def salted_hashes(salt: bytes, keys: Sequence[str]) -> list[bytes]:
    """A hash for each key, in the order of the keys."""
    return [hashed((b"vertizo alignment, hashed", salt, key.encode())) for key in keys]


def cut(whole: Sliced, width: int) -> Iterator[Sliced]:
    """Cut into parts of ``width`` elements; the last may be shorter."""
    return (whole[start : start + width] for start in range(0, len(whole), width))


def _mapped(sodium: Any, hashes: Sequence[bytes]) -> list[bytes]:
    """Map hashes to points of the prime-order group: Elligator 2 (RFC 9380, 6.7.1) times 8."""
    points = [sodium.crypto_core_ed25519_from_uniform(uniform) for uniform in hashes]
    heights = [int.from_bytes(point, "little") % 2**255 for point in points]  # without the sign
    return [
        ((1 + y) * inverse % PRIME).to_bytes(POINT, "little")  # RFC 7748, section 4.1
        for y, inverse in zip(heights, _inverses([1 - y for y in heights]), strict=True)
    ]


def _in_threads(work: Callable[[Any], list[bytes]], whole: Sequence[Any]) -> list[bytes]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [*chain.from_iterable(pool.map(work, cut(whole, CHUNK)))]


def _inverses(numbers: Sequence[int]) -> list[int]:
    """1 / n modulo the prime, for each; one inversion for all (Montgomery 1987)."""
    products = [*accumulate(numbers, lambda a, b: a * b % PRIME, initial=1)]
    inverse, inverses = pow(products[-1], -1, PRIME), []
    for number, before in zip(reversed(numbers), reversed(products[:-1]), strict=True):
        inverses.append(inverse * before % PRIME)
        inverse = inverse * number % PRIME
    return inverses[::-1]
