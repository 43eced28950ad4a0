"""How long the frames would be that a round of several runs does without.

A frame's length depends on what is in it by the widths of its numbers alone, so that one frame of
each kind is really encoded and the others are as long.
"""

from __future__ import annotations

from bisect import bisect
from functools import lru_cache

import torch

from vertizo import wire
from vertizo.codecs.none import NoCompression
from vertizo.messages import Batch, Message, Query, Reply

STEPS = (0, 2**7, 2**8, 2**16, 2**32)
"""Numbers at which MessagePack takes more bytes for one."""
WIDTHS = (0, 2**8, 2**16, 2**32)
"""Record IDs at which all of a frame take more bytes."""


def query(client: int, number: int, largest: int, shape: tuple[int, int, int]) -> int:
    """Bytes of a query with float32 embeddings of that shape, the largest record ID known."""
    return _query(_step(client), _step(number), _width(largest), shape)


def reply(client: int, number: int, shape: tuple[int, ...]) -> int:
    """Bytes of a reply with float32 values of that shape."""
    return _reply(_step(client), _step(number), shape)


def announcement(number: int, largest: int, records: int) -> int:
    """Bytes of a synchronous round's announcement."""
    return _announcement(_step(number), _width(largest), records)


def _step(number: int) -> int:
    return STEPS[bisect(STEPS, number) - 1]


def _width(largest: int) -> int:
    return WIDTHS[bisect(WIDTHS, largest) - 1]


def _size(message: Message) -> int:
    return len(wire.encode(message, NoCompression()))


@lru_cache(maxsize=1024)
def _query(client: int, number: int, largest: int, shape: tuple[int, int, int]) -> int:
    return _size(Query(client, number, torch.full((shape[1],), largest), torch.zeros(shape)))


@lru_cache(maxsize=1024)
def _reply(client: int, number: int, shape: tuple[int, ...]) -> int:
    return _size(Reply(client, number, torch.zeros(shape)))


@lru_cache(maxsize=1024)
def _announcement(number: int, largest: int, records: int) -> int:
    return _size(Batch(number, torch.full((records,), largest)))
