"""A DPZV job over gRPC with mutual TLS, against bare streams with the same payload.

Each client asks with 64 KB (two points of 128 records and 64 numbers) and is answered with one
scalar; server and clients are processes, as `vertizo serve` and `vertizo join` run them, with
journals and checkpoints. Three jobs are measured, each in turn with bare streams:

* **job**: everything;
* **aside**: the server's own arithmetic is left out: its half answers with a constant, while
  frames are still decoded, checked, journaled and answered, and clients still embed and step;
* **network**: the clients' arithmetic and bookkeeping are left out as well: they send queries that
  were made before, and the server does with them what it does in **aside**. On a machine that all
  parties share, this is what the label holder's process can take; elsewhere clients have cores of
  their own.

On a machine that all parties share, more clients are more processes on the same cores, whose caches
they take from each other. So the CPU time of a round is told apart: the label holder's process, and
those of all clients together (Linux only). Rounds per CPU second of the label holder are what its
machine is sized by; ``/bare_cpu`` is the ratio of rates where other work takes no core away;
``over_4`` has the rates over those with 4 clients.

Run: ``python benchmarks/network_job.py [--seconds 1] [--repeats 5] [--json FILE]``
"""

from __future__ import annotations

import math
import multiprocessing
import os
import statistics
import struct
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import report
import torch

from network import ANSWER, ASK, bare, client_name, serve_bare
from vertizo.core.memory import keep_freed_memory
from vertizo.network.serving import frames
from vertizo.network.serving.joining import Member
from vertizo.network.serving.options import JoinConfig, ServeConfig
from vertizo.network.serving.serving import FederationService
from vertizo.network.transport.authority import issue
from vertizo.network.transport.base import Answer
from vertizo.network.transport.certificates import Credentials
from vertizo.network.transport.grpc import GrpcServer
from vertizo.network.transport.grpc_channel import GrpcChannel
from vertizo.protocol import wire
from vertizo.protocol.codecs.none import NoCompression
from vertizo.protocol.messages import Query, Reply, Upload
from vertizo.run.experiment import Experiment

CLIENTS = (1, 4, 16, 32)
BATCH, DIM = 128, 64
WAYS = ("bare", "job", "aside", "network")
SIDES = ("holder", "members")
FORKS = multiprocessing.get_context("forkserver")
"""Of a process that has imported all but gRPC: 130 processes begin in seconds, each on its own."""
FORKS.set_forkserver_preload(["network_job"])


def constant(queries: Sequence[Query], round_: int) -> list[Reply]:
    """Answers without arithmetic."""
    return [Reply(query.client, query.number, torch.zeros(1)) for query in queries]


class Gate:
    """A service that holds asks back until it is told to go, and then for so many seconds."""

    def __init__(self, service: FederationService) -> None:
        self._service = service
        self._held: dict[str, tuple[bytes, Answer]] = {}
        self._lock = threading.RLock()
        self._open = True
        self.members = service.members
        self.largest_ask = service.largest_ask

    def ask(self, member: str, frame: bytes, answer: Answer) -> None:
        with self._lock:
            if not self._open:
                self._held[member] = frame, answer
                return
            self._service.ask(member, frame, answer)

    def gone(self, member: str) -> None:
        self._held.pop(member, None)
        self._service.gone(member)

    def shut(self) -> None:
        with self._lock:
            self._open = False

    def run(self, seconds: float) -> float:
        """Rounds per second."""
        state = self._service.state
        assert state is not None
        with self._lock:
            self._open = True
            before, started = state.job.party.round, time.perf_counter()
            for member, (frame, answer) in list(self._held.items()):
                self._service.ask(member, frame, answer)
            self._held.clear()
        time.sleep(seconds)
        with self._lock:
            self._open = False
            return (state.job.party.round - before) / (time.perf_counter() - started)


def serve_config(folder: Path, clients: int, way: str) -> ServeConfig:
    tree: dict[str, Any] = {
        "federation": {
            "name": "bench",
            "members": [client_name(k) for k in range(clients)],
            "certificates": folder / "holder",
            "folder": folder / f"{way}-{clients}",
            "patience": 1000.0,
        },
        "data": {"name": "digits", "validation": 0.05},
        "method": {"name": "dpzv", "directions": "rademacher"},
        "batch_size": BATCH,
        "epochs": 1_000_000,
        "evaluate_every": 1_000_000_000,
        "client": {"model": {"hidden": [], "outputs": DIM}},
        "server": {"model": {"hidden": [128]}},
    }
    if clients > 8:
        tree["data"]["split"] = "patches"
    return ServeConfig.model_validate(tree)


def serve_job(folder: Path, clients: int, way: str, conductor: Connection) -> None:
    """A process that serves a job while it is told to, set up as the command does it."""
    torch.set_num_threads(1)
    keep_freed_memory()
    mine = Credentials.load(folder / "holder")
    with FederationService(serve_config(folder, clients, way)) as service:
        gate = Gate(service)
        with GrpcServer(gate, listen="localhost:0", credentials=mine) as server:
            conductor.send(server.port)
            while service.state is None or service.state.job.party.round < 20 * clients:
                time.sleep(0.05)
            gate.shut()
            if way != "job":
                vars(service.state.job.party.side)["answer"] = constant
            conductor.send("ready")
            while (seconds := conductor.recv()) is not None:
                conductor.send(gate.run(seconds))
            os._exit(0)  # a job without an end


def join_job(
    folder: Path, k: int, way: str, clients: int, port: int, conductor: Connection
) -> None:
    """A process that takes part in a job until it is ended, set up as the command does it."""
    keep_freed_memory()
    config = JoinConfig.model_validate(
        {
            "federation": {
                "name": "bench",
                "server": f"localhost:{port}",
                "certificates": folder / client_name(k),
                "folder": folder / f"{way}-{clients}-{k}",
            }
        }
    )
    channel = GrpcChannel(
        config.federation.server, Credentials.load(config.federation.certificates)
    )
    with Member(config, channel) as member:
        member.run()


def replay_job(
    folder: Path, k: int, way: str, clients: int, port: int, conductor: Connection
) -> None:
    """A process that takes part with queries that cost nothing to make."""
    channel = GrpcChannel(f"localhost:{port}", Credentials.load(folder / client_name(k)))
    hello = frames.encode(frames.Hello(frames.PROTOCOL, "bench"))
    terms = frames.decode(channel.ask(hello))
    assert isinstance(terms, frames.Terms)
    data = Experiment(serve_config(folder, clients, way).experiment()).data()
    counts = (data.records, len(data.labels["validation"]), len(data.labels["test"]))
    ready = frames.Ready(terms.job, DIM, counts, b"", False, False)
    channel.ask(frames.encode(ready))
    ids = torch.arange(BATCH) * 2
    frame = wire.encode(Query(k, 2**31, ids, torch.zeros(2, BATCH, DIM)), NoCompression())
    before, after = frame.split(struct.pack(">BI", 0xCE, 2**31))
    number = 0
    while True:
        answer = channel.ask(b"".join((before, struct.pack(">BI", 0xCE, number), after)))
        first = next(frames.split(answer))
        if frames.is_party_frame(first):
            number += 1
            continue
        todo = frames.decode(first)
        assert isinstance(todo, frames.Send), todo
        count = len(data.labels[todo.purpose.own])
        upload = Upload(k, todo.purpose.own, torch.arange(count), torch.zeros(1, count, DIM))
        channel.ask(wire.encode(upload, NoCompression()))
        channel.ask(frames.encode(frames.Sent(terms.job, todo.purpose, todo.number)))


def ask_bare(folder: Path, k: int, port: int, conductor: Connection) -> None:
    """A process that asks a bare stream for so many seconds as often as it is told to."""
    mine = Credentials.load(folder / client_name(k))
    with bare(port, mine) as ask:
        frame = bytes(ASK)
        assert ask(frame) == bytes(ANSWER)
        conductor.send("ready")
        while (seconds := conductor.recv()) is not None:
            count, started = 0, time.perf_counter()
            while time.perf_counter() - started < seconds:
                ask(frame)
                count += 1
            conductor.send(count / (time.perf_counter() - started))


def cpu_seconds(processes: Sequence[Any]) -> float:
    """Of all threads of these processes, so far; NaN where the system does not say."""
    try:
        files = [f for p in processes for f in Path(f"/proc/{p.pid}/task").glob("*/schedstat")]
        return sum(int(file.read_text().split()[0]) for file in files) / 1e9 if files else math.nan
    except OSError:
        return math.nan


@dataclass(frozen=True)
class Ways:
    """Processes that wait to be told what to do."""

    told: dict[str, list[Connection]]
    """Whom to tell to begin: servers, and the clients of bare streams."""
    holders: dict[str, Any]
    members: dict[str, list[Any]]
    """Processes of each way."""
    cpu: dict[str, list[tuple[float, float]]]
    """Microseconds of a round at the label holder, and at all members, of each measurement."""

    def measure(self, way: str, seconds: float) -> float:
        """Round trips per second of all clients together."""
        sides = [self.holders[way]], self.members[way]
        before = [cpu_seconds(side) for side in sides]
        for conductor in self.told[way]:
            conductor.send(seconds)
        rate = float(sum(conductor.recv() for conductor in self.told[way]))
        spent = [cpu_seconds(side) - first for side, first in zip(sides, before, strict=True)]
        holder, members = (1e6 * each / (rate * seconds) for each in spent)
        self.cpu[way].append((holder, members))
        return rate

    def measure_in_turn(self, seconds: float, repeats: int) -> list[report.Figures]:
        """The rates of each way, after half as long to warm up."""
        for way in self.told:
            self.measure(way, seconds / 2)
            self.cpu[way].clear()
        asks = {way: partial(self.measure, way, seconds) for way in self.told}
        return report.in_turn(asks, repeats)


@contextmanager
def beside_bare(folder: Path, clients: int, way: str) -> Iterator[Ways]:
    """A job and the bare streams, with so many clients each.

    One job at a time: 132 processes of 0.2 GB, of all ways with 32 clients, are more than 24 GB.
    """
    processes = []

    def start(target: Any, *arguments: Any) -> tuple[Connection, Any]:
        near, far = FORKS.Pipe()
        process = FORKS.Process(target=target, args=(folder, *arguments, far), daemon=True)
        process.start()
        processes.append(process)
        return near, process

    ways = Ways({}, {}, {way: []}, {"bare": [], way: []})
    try:
        plain, ways.holders["bare"] = start(serve_bare)
        port = plain.recv()
        server, ways.holders[way] = start(serve_job, clients, way)
        there = server.recv()
        member = replay_job if way == "network" else join_job
        for k in range(clients):
            ways.members[way].append(start(member, k, way, clients, there)[1])
        ways.told[way] = [server]
        asking = [start(ask_bare, k, port) for k in range(clients)]
        ways.told["bare"], ways.members["bare"] = map(list, zip(*asking, strict=True))
        for conductors in ways.told.values():
            for one in conductors:
                assert one.recv() == "ready"
        yield ways
    finally:
        for process in processes:
            process.kill()
            process.join()


def main() -> None:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # of all processes
    parser = report.parser(__doc__, seconds=1.0, repeats=5)
    parser.add_argument("--clients", type=int, nargs="+", default=list(CLIENTS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"Rounds of DPZV with queries of {ASK:,} bytes and more, medians of {options.repeats}")
    print(f"{'clients':>7}" + "".join(f"{way + ' /s':>12}" for way in WAYS), end="")
    print("".join(f"{way + '/bare':>14}" for way in WAYS[1:]))
    rows = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        issue(folder, "holder", [client_name(k) for k in range(max(options.clients))], [], 1)
        for clients in options.clients:
            row: dict[str, float] = {"clients": clients}
            rates: dict[str, list[float]] = {way: [] for way in WAYS}
            cpu: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
            for way in WAYS[1:]:
                with beside_bare(folder, clients, way) as ways:
                    measured = ways.measure_in_turn(options.seconds, options.repeats)
                row[f"{way}/bare"] = report.median_ratio(measured, way, "bare")
                for name, spent in ways.cpu.items():
                    rates[name] += [figures[name] for figures in measured]
                    cpu[name] += spent
            for way in WAYS:
                row[way] = statistics.median(rates[way])
                for side, times in zip(SIDES, zip(*cpu[way], strict=True), strict=True):
                    row[f"{way}_{side}_us"] = statistics.median(times)
            sums = {way: sum(row[f"{way}_{side}_us"] for side in SIDES) for way in WAYS}
            for way in WAYS[1:]:
                row[f"{way}/bare_cpu"] = sums["bare"] / sums[way]
            rows.append(row)
            shown = "".join(f"{row[way]:>12,.0f}" for way in WAYS)
            ratios = "".join(f"{row[f'{way}/bare']:>14.2f}" for way in WAYS[1:])
            print(f"{clients:>7}{shown}{ratios}", flush=True)
            for side in SIDES:
                listed = "".join(f"{row[f'{way}_{side}_us']:>12,.0f}" for way in WAYS)
                print(f"{'':>7}{listed} µs of CPU a round, {side}", flush=True)
            shares = "".join(f"{row[f'{way}/bare_cpu']:>12.2f}" for way in WAYS[1:])
            print(f"{'':>19}{shares} of bare, by CPU time", flush=True)
    four = next((row for row in rows if row["clients"] == 4), None)
    grown = [
        {"clients": row["clients"]} | {way: row[way] / four[way] for way in WAYS}
        for row in rows
        if four is not None and row["clients"] > 4
    ]
    for growth in grown:
        shown = ", ".join(f"{way} {growth[way]:.2f}" for way in WAYS)
        print(f"{growth['clients']} clients over 4: {shown}")
    summary = [
        report.line(
            f"DPZV job, {row['clients']} clients",
            f"{row['job']:,.0f} rounds/s",
            f"{row['job/bare']:.2f} of bare streams",
        )
        for row in rows
    ]
    report.write(options, {"rows": rows, "over_4": grown}, summary, ("torch", "grpcio"))


if __name__ == "__main__":
    main()
