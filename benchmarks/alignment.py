"""Alignments of two and three parties, each a process, on loopback with mutual TLS.

All have as many records; the feature holders have the same ones, half of which are the label
holder's. Wall time counts from processes that wait to begin, until all have the result; CPU time is
that of all, which tells the work where others use the cores as well. The median of the repetitions
by wall time counts. Part **threads**: points that a party multiplies a second, in one and two
threads.

Run: ``python benchmarks/alignment.py [--records 100000] [--repeats 3] [--json FILE]``
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from multiprocessing.connection import Connection
from operator import itemgetter
from pathlib import Path
from typing import Any

import report

from vertizo.network.alignment.blinding import CHUNK, POINT, Curve
from vertizo.network.alignment.member import Method, align_with
from vertizo.network.alignment.service import AligningService
from vertizo.network.transport.authority import issue
from vertizo.network.transport.certificates import Credentials
from vertizo.network.transport.grpc import GrpcChannel, GrpcServer

NAME = "benchmark"
SPAWN = multiprocessing.get_context("spawn")  # gRPC does not take well to being forked


def keys(first: int, records: int) -> list[str]:
    return [f"P{number:09d}" for number in range(first, first + records)]


def member(pipe: Connection, folder: Path, records: int, method: Method) -> None:
    own = keys(records // 2, records)
    Curve(NAME).blind(["warm"])
    pipe.send("ready")
    port = pipe.recv()
    started = time.process_time()
    channel = GrpcChannel(f"localhost:{port}", Credentials.load(folder), patience=120.0)
    with closing(channel):
        found = align_with(channel, own, method, federation=NAME)
    pipe.send((time.process_time() - started, found.fingerprint))


def measure(records: int, parties: int, method: Method) -> dict[str, float]:
    """Seconds of parties that align so many records each."""
    own, names = keys(0, records), [f"member-{number}" for number in range(1, parties)]
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        folder = Path(place)
        issue(folder, "bank", names, ["localhost"], 1)
        pipes: list[Connection] = []
        for name in names:
            here, there = SPAWN.Pipe()
            arguments = (there, folder / name, records, method)
            process = SPAWN.Process(target=member, args=arguments, daemon=True)
            process.start()
            stack.callback(process.join)
            pipes.append(here)
        assert [pipe.recv() for pipe in pipes] == ["ready"] * len(names)
        wall, cpu = time.perf_counter(), time.process_time()
        with closing(AligningService(names, own, method, federation=NAME)) as service:
            bank = Credentials.load(folder / "bank")
            with GrpcServer(service, listen="localhost:0", credentials=bank) as net:
                for pipe in pipes:
                    pipe.send(net.port)
                found = service.wait(patience=3600.0)
            told = [pipe.recv() for pipe in pipes]
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    assert {fingerprint for _, fingerprint in told} == {found.fingerprint}
    assert len(found.keys) == records - records // 2
    return {"wall_s": wall, "cpu_s": cpu + sum(spent for spent, _ in told)}


def threads(count: int = 20_000) -> dict[str, float]:
    """Points a second, of wall time, in one and two threads; and of CPU time."""
    curve = Curve(NAME)
    points = b"".join(curve.blind(keys(0, CHUNK)))
    parts = [[points[n : n + POINT] for n in range(0, len(points), POINT)]] * (count // CHUNK)
    found: dict[str, float] = {}
    for workers in (1, 2):
        with ThreadPoolExecutor(workers) as pool:
            wall, cpu = time.perf_counter(), time.process_time()
            list(pool.map(curve._again, parts))
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        found[f"{workers}_wall"] = len(parts) * CHUNK / wall
        found[f"{workers}_cpu"] = len(parts) * CHUNK / cpu
    return found


def main() -> None:
    parser = report.plain_parser(__doc__)
    parser.add_argument("--records", type=int, default=100_000, help="of each party")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    results: dict[str, Any] = {"records": options.records}
    summary = []
    ways: list[tuple[int, Method]] = [(2, "private"), (3, "private"), (2, "hashed")]
    for parties, method in ways:
        runs = [measure(options.records, parties, method) for _ in range(options.repeats)]
        run = sorted(runs, key=itemgetter("wall_s"))[options.repeats // 2]
        used = run["cpu_s"] / run["wall_s"]
        what = f"{options.records:,} records of each of {parties} parties, aligned, {method}"
        figure, beside = f"{run['wall_s']:.1f} s", f"{run['cpu_s']:.1f} s of CPU time"
        print(f"{what}: {figure}; {beside} of all, on {used:.2f} of {os.cpu_count()} cores")
        results[f"{method}_{parties}"] = {"median": run, "runs": runs}
        summary.append(report.line(what, figure, beside))
    many = results["threads"] = threads()
    print(
        f"points a second: {many['1_wall']:,.0f} in one thread, {many['2_wall']:,.0f} in two; "
        f"{many['1_cpu']:,.0f} and {many['2_cpu']:,.0f} by CPU time"
    )
    summary.append(
        report.line(
            "points multiplied a second, two threads",
            f"{many['2_wall']:,.0f}",
            f"{many['1_wall']:,.0f} in one",
        )
    )
    report.write(options, results, summary, ("pynacl", "grpcio"))


if __name__ == "__main__":
    main()
