"""Bytes of one round of each method, as the program itself writes its messages."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from options import table

from vertizo.methods.choice import METHODS
from vertizo.protocol.codecs.none import NoCompression
from vertizo.protocol.messages import Batch, Query, Reply, Upload
from vertizo.protocol.wire import encode

BATCH, DIMENSION, WIDTH = 64, 3, 2
"""The digits that `vertizo train` starts with: B, d_h, and bytes of a record ID."""


@dataclass(frozen=True)
class Traffic:
    """Bytes of one client's exchange about one batch."""

    query: int
    """Client to server."""
    reply: int
    """Server to client."""
    announcement: int
    """Server to client before the query, where rounds are synchronous."""
    embeddings: int
    """Of the query: numbers in embeddings."""
    values: int
    """Of the reply: numbers."""


def exchange(name: str, batch: int = BATCH) -> Traffic:
    """What the first exchange of a method with its defaults takes."""
    method = METHODS[name](name=name)
    if not method.asks:
        piece = torch.zeros(1, batch, DIMENSION)
        size = len(encode(Upload(0, "train", torch.arange(batch), piece), method.up))
        return Traffic(query=size, reply=0, announcement=0, embeddings=piece.numel(), values=0)
    ids = torch.arange(1000, 1000 + batch)  # as wide as most IDs among 1,294 records
    sent = torch.zeros(method.points, batch, DIMENSION)
    told = torch.zeros(method.reply_shape(batch, DIMENSION))
    plain = NoCompression()
    in_step = method.timings[0] == "synchronous"
    return Traffic(
        query=len(encode(Query(0, 0, ids, sent), method.up)),
        reply=len(encode(Reply(0, 0, told), plain)),
        announcement=len(encode(Batch(0, ids), plain)) if in_step else 0,
        embeddings=sent.numel(),
        values=told.numel(),
    )


def method_table(name: str) -> str:
    """The messages of one method's round, each with its size."""
    traffic = exchange(name)
    method = METHODS[name](name=name)
    header = ("message", "content, bytes", "on the wire, bytes")
    if not method.asks:
        row = ("upload, up, once of each record", "4·B·d_h", f"{traffic.query:,}")
        return table(header, [row])
    points, coded = method.points, not isinstance(method.up, NoCompression)
    count = getattr(method, "num_directions", 0)
    directions = "K" if method.additive else "q"
    sent = "(K + 1)" if method.additive and points == count + 1 else str(points)
    up = f"{sent}·B·d_h" if points > 1 else "B·d_h"
    known = {count: directions, count + 1: f"({directions} + 1)"} if count > 1 else {}
    numbers = {BATCH * DIMENSION: "B·d_h", 1: "1", 2: "2", **known}[traffic.values]
    rows = []
    if traffic.announcement:
        rows.append(("announcement, down", "w·B", f"{traffic.announcement:,}"))
    size = f"w·B + {up} + 8" if coded else f"w·B + 4·{up}"
    rows.append(("query, up", size, f"{traffic.query:,}"))
    rows.append(
        (
            "reply, down",
            f"4·{numbers}" if numbers not in ("1", "2") else str(4 * traffic.values),
            f"{traffic.reply:,}",
        )
    )
    return table(header, rows)


def overview() -> str:
    """All methods' exchanges beside each other."""
    rows = []
    for name in METHODS:
        traffic = exchange(name)
        down = traffic.reply + traffic.announcement
        rows.append(
            (
                f"[`{name}`](methods/{name}.md)",
                f"{traffic.embeddings:,}",
                f"{traffic.values:,}",
                f"{traffic.query:,}",
                f"{down:,}",
            )
        )
    header = ("method", "numbers up", "numbers down", "bytes up", "bytes down")
    return table(header, rows)
