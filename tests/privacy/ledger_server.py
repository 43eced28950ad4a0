"""A small server on a durable ledger, made to be killed; started by ``test_ledger_kill.py``.

The process imports the package once, and then forks a server for each request that comes in over
its standard input's socket, together with the socket that the server is to talk on. Importing torch
anew for each of hundreds of servers would take longer than all else.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from vertizo.privacy import guarantee
from vertizo.privacy.durable_ledger import DurableLedger
from vertizo.privacy.events import LedgerBudget
from vertizo.privacy.ledger import Entry, digest

RECORDS, CLIENTS, COST = 300, 3, 7
BUDGET = LedgerBudget("records", RECORDS, CLIENTS, share=10**6, epsilon=1.0, delta=1e-5)
HEAD = struct.Struct("<II")
LENGTH = struct.Struct("<I")
guarantee.joined_epsilon(BUDGET.mu, None, 1e-5)  # what making a ledger imports is imported once


def main() -> None:
    control = socket.socket(fileno=0)
    while True:
        message, handles, _, _ = socket.recv_fds(control, 65536, 1)
        if not message:
            return
        request = json.loads(message)
        if request["do"] == "reap":
            _, status = os.waitpid(request["pid"], 0)
            control.send(json.dumps(status).encode())
            continue
        child = os.fork()
        if child == 0:
            control.close()
            work(request, socket.socket(fileno=handles[0]))
            os._exit(0)
        os.close(handles[0])
        control.send(json.dumps(child).encode())


def work(request: dict[str, Any], connection: socket.socket) -> None:
    path, witnesses = Path(request["path"]), Path(request["witnesses"])
    if request["do"] == "create":
        die_at_line(request["die_opening"])
        DurableLedger.create(path, BUDGET, witnesses)
        sys.settrace(None)
        connection.sendall(b"done")
        return
    die_at_line(request["die_opening"])
    with DurableLedger.open(path, "run", witnesses) as ledger:
        sys.settrace(None)
        # Moves pages into the main file every few commits, so that this is hit as well.
        ledger._file._db.execute("PRAGMA wal_autocheckpoint = 30")
        while query := received(connection):
            die_at_line(request["die_answering"])
            reply = answer(ledger, query)
            connection.sendall(LENGTH.pack(len(reply)) + reply)
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


def received(connection: socket.socket) -> bytes:
    """The next frame, nothing at the end."""
    (size,) = LENGTH.unpack(exactly(connection, LENGTH.size) or bytes(LENGTH.size))
    return exactly(connection, size)


def exactly(connection: socket.socket, size: int) -> bytes:
    """That many bytes, or nothing."""
    content = b""
    while len(content) < size:
        more = connection.recv(size - len(content))
        if not more:
            return b""
        content += more
    return content


def die_at_line(count: int) -> None:
    """Have this process killed where the ledger's code comes to its ``count``-th line; 0: never."""
    if not count:
        return
    left = count

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if "ledger" not in Path(frame.f_code.co_filename).name:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)


if __name__ == "__main__":
    main()
