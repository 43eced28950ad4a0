"""A private alignment of two parties, each a process, on loopback with mutual TLS.

Both have as many records, half of them common. Wall time counts from two processes that wait to
begin, until both have the result; CPU time is that of both, which tells the work where others use
the cores as well. Part **threads**: points that a party multiplies a second, in one and two
threads.

Run: ``python benchmarks/alignment.py [--records 100000] [--json FILE]``
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import report

from vertizo.network.alignment.blinding import CHUNK, POINT, Curve
from vertizo.network.alignment.member import align_with
from vertizo.network.alignment.service import AligningService
from vertizo.network.authority import issue
from vertizo.network.certificates import Credentials
from vertizo.network.grpc import GrpcChannel, GrpcServer

NAME = "benchmark"
SPAWN = multiprocessing.get_context("spawn")  # gRPC does not take well to being forked


def keys(first: int, records: int) -> list[str]:
    return [f"P{number:09d}" for number in range(first, first + records)]


def member(pipe: Connection, folder: Path, records: int) -> None:
    own = keys(records // 2, records)
    Curve(NAME).blind(["warm"])
    pipe.send("ready")
    port = pipe.recv()
    started = time.process_time()
    channel = GrpcChannel(f"localhost:{port}", Credentials.load(folder / "shop"), patience=120.0)
    with closing(channel):
        found = align_with(channel, own, federation=NAME)
    pipe.send((time.process_time() - started, found.fingerprint))


def measure(records: int) -> dict[str, float]:
    """Seconds of two parties that align so many records each."""
    own = keys(0, records)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        issue(folder, "bank", ["shop"], ["localhost"], 1)
        here, there = SPAWN.Pipe()
        process = SPAWN.Process(target=member, args=(there, folder, records), daemon=True)
        process.start()
        assert here.recv() == "ready"
        wall, cpu = time.perf_counter(), time.process_time()
        with closing(AligningService(["shop"], own, federation=NAME)) as service:
            bank = Credentials.load(folder / "bank")
            with GrpcServer(service, listen="localhost:0", credentials=bank) as net:
                here.send(net.port)
                found = service.wait(patience=3600.0)
            spent, fingerprint = here.recv()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        process.join()
    assert found.fingerprint == fingerprint
    assert len(found.keys) == records - records // 2
    return {"records": records, "wall_s": wall, "cpu_s": cpu + spent}


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
    options = parser.parse_args()
    whole, many = measure(options.records), threads()
    print(
        f"{whole['records']:,} records of each: {whole['wall_s']:.1f} s, "
        f"{whole['cpu_s']:.1f} s of CPU time of both parties"
    )
    print(
        f"points a second: {many['1_wall']:,.0f} in one thread, {many['2_wall']:,.0f} in two; "
        f"{many['1_cpu']:,.0f} and {many['2_cpu']:,.0f} by CPU time"
    )
    results: dict[str, Any] = {"alignment": whole, "threads": many}
    summary = [
        report.line(
            f"{options.records:,} records of each of 2 parties, aligned in private",
            f"{whole['wall_s']:.1f} s",
            f"{whole['cpu_s']:.1f} s of CPU time",
        ),
        report.line(
            "points multiplied a second, two threads",
            f"{many['2_wall']:,.0f}",
            f"{many['1_wall']:,.0f} in one",
        ),
    ]
    report.write(options, results, summary, ("pynacl", "grpcio"))


if __name__ == "__main__":
    main()
