"""The network between parties, on loopback with mutual TLS, against the least that could do it.

Part **transport**: asks of 64 KB, answers of 48 bytes, one server process and 1, 4 or 16 client
processes. Two ways, measured in turn within one run, so that their ratio means something on a
shared machine:

* **bare**: a bidirectional gRPC stream as one would write it by hand: an asyncio server that reads
  and answers, a client that puts in a queue and takes the next, no more;
* **ours**: `GrpcServer` and `GrpcChannel` with everything they see to.

Bytes on the wire are those that a proxy counts between the two, TLS and HTTP/2 included.

Run: ``python benchmarks/network.py [--seconds 1] [--repeats 5] [--json FILE]``
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import queue
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import report

from vertizo.network.transport.authority import issue
from vertizo.network.transport.base import Answer
from vertizo.network.transport.certificates import Credentials
from vertizo.network.transport.grpc import GrpcChannel, GrpcServer

CLIENTS = (1, 4, 16)
ASK, ANSWER = 65_536, 48
COUNTED = 500
WAYS = ("bare", "ours")
Ask = Callable[[bytes], bytes]
SPAWN = multiprocessing.get_context("spawn")  # gRPC does not take well to being forked


class Short:
    """Answers every ask at once, with as many bytes as a reply has."""

    def __init__(self, members: tuple[str, ...]) -> None:
        self.members = members
        self.largest_ask = 1 << 20

    def ask(self, member: str, frame: bytes, answer: Answer) -> None:
        answer(frame[:ANSWER])

    def gone(self, member: str) -> None:
        pass


def client_name(k: int) -> str:
    return f"client-{k}"


def serve_ours(folder: Path, conductor: Connection) -> None:
    """A process with our server, until it is told to end."""
    service = Short(tuple(client_name(k) for k in range(max(CLIENTS))))
    mine = Credentials.load(folder / "holder")
    with GrpcServer(service, listen="localhost:0", credentials=mine) as server:
        conductor.send(server.port)
        conductor.recv()


def serve_bare(folder: Path, conductor: Connection) -> None:
    """A process with a server of a dozen lines, until it is told to end."""
    import grpc
    import grpc.aio

    mine = Credentials.load(folder / "holder")

    async def answers(asks: Any, _: Any) -> Any:
        async for frame in asks:
            yield frame[:ANSWER]

    async def main() -> None:
        server = grpc.aio.server()
        handler = {"Ask": grpc.stream_stream_rpc_method_handler(answers)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Bare", handler),))
        shown = grpc.ssl_server_credentials([(mine.key, mine.certificate)], mine.authority, True)
        port = server.add_secure_port("localhost:0", shown)
        await server.start()
        conductor.send(port)
        await asyncio.get_running_loop().run_in_executor(None, conductor.recv)
        await server.stop(0)

    asyncio.run(main())


@contextmanager
def ours(port: int, mine: Credentials) -> Iterator[Ask]:
    channel = GrpcChannel(f"localhost:{port}", mine)
    try:
        yield channel.ask
    finally:
        channel.close()


@contextmanager
def bare(port: int, mine: Credentials) -> Iterator[Ask]:
    import grpc

    shown = grpc.ssl_channel_credentials(mine.authority, mine.key, mine.certificate)
    with grpc.secure_channel(f"localhost:{port}", shown) as channel:
        frames: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        call = channel.stream_stream("/Bare/Ask")(iter(frames.get, None))

        def ask(frame: bytes) -> bytes:
            frames.put(frame)
            answer: bytes = next(call)
            return answer

        yield ask
        frames.put(None)
        call.cancel()


def client(folder: Path, k: int, ports: dict[str, int], conductor: Connection) -> None:
    """A process that asks for so many seconds as often as it is told to."""
    mine = Credentials.load(folder / client_name(k))
    frame = bytes(ASK)
    with ours(ports["ours"], mine) as ask_ours, bare(ports["bare"], mine) as ask_bare:
        ways = {"ours": ask_ours, "bare": ask_bare}
        for ask in ways.values():
            assert ask(frame) == bytes(ANSWER)
        conductor.send("ready")
        while (told := conductor.recv()) is not None:
            way, begin, seconds = told
            ask, times = ways[way], []
            time.sleep(max(0.0, begin - time.time()))
            then = started = time.perf_counter()
            while then - started < seconds:
                ask(frame)
                now = time.perf_counter()
                times.append(now - then)
                then = now
            conductor.send((len(times) / (then - started), statistics.median(times)))


@dataclass(frozen=True)
class Parties:
    """Processes that wait to be told what to do."""

    clients: list[Connection]
    ports: dict[str, int]

    def measure(self, way: str, count: int, seconds: float) -> tuple[float, float]:
        """Round trips per second of all clients together; the median seconds of one."""
        begin = time.time() + 0.1
        for conductor in self.clients[:count]:
            conductor.send((way, begin, seconds))
        results = [conductor.recv() for conductor in self.clients[:count]]
        return sum(r[0] for r in results), statistics.median(r[1] for r in results)


@contextmanager
def parties(folder: Path) -> Iterator[Parties]:
    """Both servers, and as many clients as are ever needed."""
    processes, conductors = [], []

    def start(target: Any, *arguments: Any) -> Connection:
        near, far = SPAWN.Pipe()
        process = SPAWN.Process(target=target, args=(folder, *arguments, far), daemon=True)
        process.start()
        processes.append(process)
        conductors.append(near)
        return near

    try:
        servers = {"ours": start(serve_ours), "bare": start(serve_bare)}
        ports = {way: server.recv() for way, server in servers.items()}
        clients = [start(client, k, ports) for k in range(max(CLIENTS))]
        for one in clients:
            assert one.recv() == "ready"
        yield Parties(clients, ports)
    finally:
        for conductor in reversed(conductors):
            conductor.send(None)
        for process in processes:
            process.join(10)


class Counter:
    """A proxy that counts what passes."""

    def __init__(self, port: int) -> None:
        self.bytes = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._target = port
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        far = socket.create_connection(("localhost", self._target))
        for pair in ((near, far), (far, near)):
            threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, near: socket.socket, far: socket.socket) -> None:
        try:
            while data := near.recv(1 << 18):
                self.bytes += len(data)
                far.sendall(data)
            far.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the other side went first


def on_the_wire(folder: Path, ports: dict[str, int]) -> dict[str, dict[str, float]]:
    """Bytes of making a connection, and of an ask and its answer over those of their content."""
    mine = Credentials.load(folder / client_name(0))
    figures = {}
    for way, connect in (("bare", bare), ("ours", ours)):
        counter = Counter(ports[way])
        with connect(counter.port, mine) as ask:
            ask(b"")
            made = counter.bytes
            for _ in range(COUNTED):
                ask(bytes(ASK))
            sent = counter.bytes - made
        figures[way] = {"connection": made, "over_content": sent / (COUNTED * (ASK + ANSWER))}
    return figures


def transport(seconds: float, repeats: int) -> dict[str, Any]:
    """Round trips of our transport over those of bare streams."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        issue(folder, "holder", [client_name(k) for k in range(max(CLIENTS))], [], 1)
        with parties(folder) as all_:
            print(
                f"Round trips of {ASK:,} bytes up and {ANSWER} down over loopback, mutual TLS; "
                f"medians of {repeats}"
            )
            print(f"{'clients':>7} {'bare /s':>9} {'ours /s':>9} {'ours/bare':>10}", end="")
            print(f" {'bare ms':>8} {'ours ms':>8}")
            rows = []
            for count in CLIENTS:
                for way in WAYS:
                    all_.measure(way, count, seconds / 2)
                rows.append({"clients": count, **_compare(all_, count, seconds, repeats)})
                row = rows[-1]
                print(
                    f"{count:>7} {row['bare']:>9,.0f} {row['ours']:>9,.0f}"
                    f" {row['ours/bare']:>10.2f} {row['bare_ms']:>8.3f} {row['ours_ms']:>8.3f}"
                )
            wire = on_the_wire(folder, all_.ports)
    for way in WAYS:
        print(
            f"{way}: {wire[way]['over_content']:.4f} bytes on the wire for each of content, "
            f"and {wire[way]['connection']:,} to connect"
        )
    return {"rows": rows, "wire": wire}


def _compare(all_: Parties, count: int, seconds: float, repeats: int) -> dict[str, float]:
    """Medians over repetitions; the ratio is the median of ratios within a repetition."""
    measured = [
        {way: all_.measure(way, count, seconds) for way in (WAYS if k % 2 else WAYS[::-1])}
        for k in range(repeats)
    ]
    trips = [{way: each[way][0] for way in WAYS} for each in measured]
    figures = {way: report.median(trips, way) for way in WAYS}
    figures["ours/bare"] = report.median_ratio(trips, "ours", "bare")
    for way in WAYS:
        figures[f"{way}_ms"] = 1000 * statistics.median(m[way][1] for m in measured)
    return figures


PARTS: dict[str, Callable[[float, int], dict[str, Any]]] = {"transport": transport}


def main() -> None:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # of all processes, in both ways
    parser = report.parser(__doc__, seconds=1.0, repeats=5)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    figures = {part: PARTS[part](options.seconds, options.repeats) for part in options.parts}
    summary = [
        report.line(
            f"round trips, {row['clients']} clients",
            f"{row['ours']:,.0f} /s",
            f"{row['ours/bare']:.2f} of bare streams",
        )
        for row in figures.get("transport", {}).get("rows", [])
    ]
    report.write(options, figures, summary, ("grpcio",))


if __name__ == "__main__":
    main()
