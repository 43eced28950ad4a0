"""A small server on a durable ledger, made to be killed; started by ``test_ledger_kill.py``."""

from __future__ import annotations

import os
import signal
import struct
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from vertizo.privacy.accounting.events import LedgerBudget
from vertizo.privacy.ledger.base import Entry, digest
from vertizo.privacy.ledger.durable import DurableLedger

RECORDS, CLIENTS, COST = 300, 3, 7
BUDGET = LedgerBudget("records", RECORDS, CLIENTS, share=10**6, epsilon=1.0, delta=1e-5)
HEAD = struct.Struct("<II")


def create(path: Path, witnesses: Path, opening: int) -> None:
    """Make the ledger; killed at that line of doing so, 0 for none."""
    die_at_line(opening)
    DurableLedger.create(path, BUDGET, witnesses)
    sys.settrace(None)


def serve(
    path: Path, witnesses: Path, opening: int, answering: int, connection: Connection[Any, Any]
) -> None:
    """Answer until the line is closed; killed at that line of opening, or of answering a query."""
    die_at_line(opening)
    with DurableLedger.open(path, "run", witnesses) as ledger, suppress(EOFError):
        sys.settrace(None)
        # Moves pages into the main file every few commits, so that this is hit as well.
        ledger._file._db.execute("PRAGMA wal_autocheckpoint = 30")
        while True:
            query = connection.recv_bytes()
            die_at_line(answering)
            reply = answer(ledger, query)
            connection.send_bytes(reply)
            sys.settrace(None)


def answer(ledger: DurableLedger, query: bytes) -> bytes:
    """The stored reply, or a new one: this server's process ID and noise."""
    client, number = HEAD.unpack_from(query)
    kept = ledger.answered(client)
    if kept is not None and kept.number == number:
        assert kept.digest == digest(query)
        return kept.reply
    assert number == (0 if kept is None else kept.number + 1)
    ids = torch.frombuffer(bytearray(query[HEAD.size :]), dtype=torch.int64)
    ledger.admit(client, ids, COST)
    reply = struct.pack("<Q", os.getpid()) + os.urandom(50)
    ledger.commit([Entry(client, number, query, ids, COST, reply)])
    return reply


def die_at_line(count: int) -> None:
    """Have this process killed where the ledger's code comes to its ``count``-th line; 0: never."""
    if not count:
        return
    left = count

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if not any("ledger" in part for part in Path(frame.f_code.co_filename).parts[-2:]):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
