"""What a member asks with, and what it makes of an answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vertizo.core.errors import MalformedError, RefusedError, RunError, WireError
from vertizo.network import frames
from vertizo.network.frames import Refusal
from vertizo.network.transport import Channel
from vertizo.protocol.messages import Purpose
from vertizo.run.build_parties import MadeClient
from vertizo.run.traffic import rows_at_once

Expected = type[frames.Frame] | tuple[type[frames.Frame], ...]


def pieces(made: MadeClient, purpose: Purpose, rows: int) -> Iterator[tuple[int, bytes]]:
    """A partition's embeddings as uploads, and how many rows are then sent."""
    at_once = rows_at_once(made.embedding_dim)
    for start in range(0, rows, at_once):
        stop = min(start + at_once, rows)
        yield stop, made.party.upload(purpose, start, stop)


def one(channel: Channel, ask: frames.Ask | bytes, expected: Expected) -> Any:
    """The answer to an ask, which is a single frame of that kind.

    Raises:
        RunError: the label holder refuses.
        WireError: it answers with something else.
    """
    return expect(channel.ask(ask if isinstance(ask, bytes) else frames.encode(ask)), expected)


def expect(answer: bytes, expected: Expected) -> Any:
    """An answer that is a single frame of that kind.

    Raises:
        RunError: it is a refusal.
        WireError: it is something else.
    """
    found = frames.decode(answer)
    if isinstance(found, Refusal):
        raise RunError(f"the label holder refused: {found.words}")
    if not isinstance(found, expected):
        raise MalformedError(f"a {type(found).__name__}, which was not asked for")
    return found


@contextmanager
def understood() -> Iterator[None]:
    """What the label holder sent and this party cannot use ends the job here, in one line."""
    try:
        yield
    except (WireError, RefusedError) as error:
        raise RunError(f"the label holder sent what this party cannot use: {error}") from None
