"""Keys made unreadable so that two parties can compare them: by an elliptic curve, or by a hash.

`Curve` is private: each party has a secret number and multiplies points of the curve P-256 by it.
A key's point multiplied by both secrets is the same in either order, and without a secret nobody
can tell which key a point stands for. The points are openmined-psi's, as in its "raw" protocol.

`salted_hashes` is not private: whoever has the salt can hash any key and look for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from vertizo.core.errors import ConfigError, MalformedError
from vertizo.data.alignment import hashed

POINT = 33
"""Bytes of a point: its first coordinate, and the sign of the second."""
HASH = 32
"""Bytes of a salted hash."""
PIECE = 8192
"""Points or hashes in one frame: 0.3 MB, and less than a second's work."""

Sliced = TypeVar("Sliced", bytes, Sequence[str], Sequence[bytes])


class Curve:
    """A secret of one party for one alignment; ConfigError where openmined-psi is not installed.

    The same key of another federation has another point.
    """

    def __init__(self, federation: str) -> None:
        self._psi = require_psi()
        self._federation = federation
        self._hashing = self._psi.client.CreateWithNewKey(True)
        secret = self._hashing.GetPrivateKeyBytes()
        self._multiplying = self._psi.server.CreateFromKey(secret, True)

    def blind(self, keys: Sequence[str]) -> list[bytes]:
        """A point for each key, in the order of the keys."""
        request = self._hashing.CreateRequest([self._text(key) for key in keys])
        return list(request.encrypted_elements)

    def again(self, points: bytes) -> bytes:
        """Another party's points times this party's secret; MalformedError if one is no point."""
        request = self._psi.Request(
            reveal_intersection=True, encrypted_elements=list(cut(points, POINT))
        )
        try:
            response = self._multiplying.ProcessRequest(request)
        except RuntimeError:
            raise MalformedError("there is something that is no point of the curve") from None
        return b"".join(response.encrypted_elements)

    def _text(self, key: str) -> str:
        return hashed((b"vertizo alignment, curve", self._federation.encode(), key.encode())).hex()


def require_psi() -> Any:
    """The module of openmined-psi; ConfigError where it is not installed."""
    try:
        import private_set_intersection.python as psi
    except ImportError:
        raise ConfigError(
            "the method 'private' needs the extra: pip install 'vertizo[psi]'; "
            "or choose --method hashed, which is not private"
        ) from None
    return psi


def salted_hashes(salt: bytes, keys: Sequence[str]) -> list[bytes]:
    """A hash for each key, in the order of the keys."""
    return [hashed((b"vertizo alignment, hashed", salt, key.encode())) for key in keys]


def cut(whole: Sliced, width: int) -> Iterator[Sliced]:
    """Parts of that length each; the last may be shorter."""
    return (whole[start : start + width] for start in range(0, len(whole), width))
