"""Online scores over HTTP and gRPC: time of one record, and records a second in batches.

Processes on loopback, as the commands make them: `vertizo score` at a label holder and at members,
each with a Parquet table of made-up records of ten columns, and callers in a process of their own.
Members' embeddings are not kept unless a line says so, so that every score asks all members.

* **one**: one caller asks for one record at a time: median, 95th and 99th percentile of the time
  from the request to the answer;
* **eight**: eight callers do so at once;
* **batches**: four callers ask for 1,000 records at a time;
* **kept**: the same, where embeddings of all records are kept already.

Run: ``python benchmarks/scoring.py [--members 4] [--seconds 5] [--repeats 3] [--json FILE]``
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import report
import yaml

from network import SPAWN, client_name
from vertizo.network.transport.authority import issue
from vertizo.ops.scoring import callers

RECORDS, COLUMNS, BATCH = 100_000, 10, 1000
TRAINED = 5000
"""Records that the job trains on; any others are scored."""
Figures = dict[str, float]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def write_tables(folder: Path, members: int) -> None:
    """Records of all parties, whose label depends a little on each member's columns."""
    chance = np.random.default_rng(0)
    keys = [f"K{number:07}" for number in range(RECORDS)]
    total = np.zeros(RECORDS)
    for k in range(members):
        values = chance.normal(size=(RECORDS, COLUMNS)).astype(np.float32)
        total += values[:, 0]
        columns = {f"x{n}": values[:, n] for n in range(COLUMNS)}
        frame = pl.DataFrame({"key": keys, **columns})
        frame.write_parquet(folder / f"{client_name(k)}.all.parquet")
        frame[:TRAINED].write_parquet(folder / f"{client_name(k)}.parquet")
    label = np.where(total > 0, "yes", "no")
    frame = pl.DataFrame({"key": keys, "label": label})[:TRAINED]
    frame.write_parquet(folder / "holder.parquet")


def write_configurations(folder: Path, members: int, port: int) -> None:
    names = [client_name(k) for k in range(members)]
    data = {"name": "table", "path": "holder.parquet", "id": "key", "label": "label"}
    served = {
        "federation": {
            "name": "bench",
            "members": names,
            "listen": f"127.0.0.1:{port}",
            "certificates": "certs/holder",
            "folder": "runs/holder",
        },
        "data": {**data, "classes": ["no", "yes"]},
        "epochs": 1,
        "client": {"model": {"outputs": 16}},
        "scoring": {
            "http": "127.0.0.1:0",
            "grpc": "127.0.0.1:0",
            "callers": "callers.yaml",
            "most": BATCH,
        },
    }
    (folder / "holder.yaml").write_text(yaml.safe_dump(served))
    for name in names:
        joined = {
            "name": "bench",
            "server": f"localhost:{port}",
            "certificates": f"certs/{name}",
            "folder": f"runs/{name}",
        }
        tree = {"federation": joined, "data": {"path": f"{name}.parquet", "id": "key"}}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(tree))
    issue(folder / "certs", "holder", names, ["localhost"], 1)


def start(folder: Path, log: str, *words: str) -> subprocess.Popen[bytes]:
    with (folder / log).open("wb") as out:
        command = [sys.executable, "-m", "vertizo", *words]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(command, cwd=folder, stdout=out, stderr=out, env=environment)


def train(folder: Path, members: int) -> None:
    joined = [
        start(folder, f"join-{k}.log", "join", f"{client_name(k)}.yaml") for k in range(members)
    ]
    for one in (start(folder, "serve.log", "serve", "holder.yaml"), *joined):
        if one.wait(300):
            raise SystemExit((folder / "serve.log").read_text())


@contextmanager
def scoring(folder: Path, members: int, cache: float) -> Iterator[dict[str, int]]:
    """All parties' processes; the ports of both ways to ask, once all are connected."""
    with ExitStack() as stack:

        def run(log: str, *words: str) -> None:
            process = start(folder, log, "score", *words)
            stack.callback(process.wait)
            stack.callback(process.terminate)

        run("score.log", "holder.yaml", "--set", f"scoring.cache={cache}")
        for k in range(members):
            name = client_name(k)
            run(f"score-{k}.log", f"{name}.yaml", "--data", f"{name}.all.parquet")
        until = time.monotonic() + 120
        while "all members are connected" not in (said := (folder / "score.log").read_text()):
            if time.monotonic() > until:
                raise SystemExit(said)
            time.sleep(0.1)
        yield {
            way: int(said.partition(f"by {way} at 127.0.0.1:")[2].split()[0])
            for way in ("HTTP", "gRPC")
        }


Ask = Callable[[list[str]], int]
"""Asks for records; how many were scored."""


@contextmanager
def by_http(port: int, key: str) -> Iterator[Ask]:
    link = http.client.HTTPConnection("127.0.0.1", port)
    link.connect()
    link.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}

    def ask(ids: list[str]) -> int:
        link.request("POST", "/v1/score", json.dumps({"ids": ids}), headers)
        answer = link.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(content.decode())
        return content.count(b'"prediction"')

    with contextlib.closing(link):
        yield ask


@contextmanager
def by_grpc(port: int, key: str) -> Iterator[Ask]:
    import grpc

    from vertizo.ops.scoring import rpc

    kinds = rpc.messages()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(
            rpc.METHOD,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=kinds["ScoreResponse"].FromString,
        )

        def ask(ids: list[str]) -> int:
            answer = call(
                kinds["ScoreRequest"](ids=ids), metadata=[("authorization", f"Bearer {key}")]
            )
            return len(answer.ids)

        yield ask


WAYS = {"HTTP": by_http, "gRPC": by_grpc}


def load(way: str, port: int, key: str, callers: int, batch: int, seconds: float) -> Figures:
    """What so many callers measure, each with a connection and a thread of its own."""
    times: list[float] = []
    scored = [0] * callers
    begin = threading.Barrier(callers)

    def call(caller: int) -> None:
        chance = random.Random(caller)
        with WAYS[way](port, key) as ask:
            ask(["K0000001"])
            begin.wait()
            end = time.perf_counter() + seconds
            while (before := time.perf_counter()) < end:
                first = chance.randrange(RECORDS - batch)
                count = ask([f"K{number:07}" for number in range(first, first + batch)])
                if count != batch:
                    raise RuntimeError(f"{count} of {batch} records were scored")
                times.append(time.perf_counter() - before)
                scored[caller] += count

    threads = [threading.Thread(target=call, args=(caller,)) for caller in range(callers)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    parts = statistics.quantiles(times, n=100)
    return {
        "median_ms": 1000 * parts[49],
        "p95_ms": 1000 * parts[94],
        "p99_ms": 1000 * parts[98],
        "requests_a_second": len(times) / (time.perf_counter() - started),
        "records_a_second": sum(scored) / (time.perf_counter() - started),
    }


def in_a_process(arguments: tuple[Any, ...], out: Any) -> None:
    out.send(load(*arguments))


def measured(*arguments: Any) -> Figures:
    """As of `load`, in a process of its own."""
    near, far = SPAWN.Pipe()
    process = SPAWN.Process(target=in_a_process, args=(arguments, far))
    process.start()
    far.close()
    found: Figures = near.recv()
    process.join()
    return found


CASES = {"one": (1, 1), "eight": (8, 1), "batches": (4, BATCH)}
"""Callers, and records of a request."""


def main() -> None:
    parser = report.parser(__doc__, seconds=5.0, repeats=3)
    parser.add_argument("--members", type=int, default=4)
    options = parser.parse_args()
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as made:
        folder, port = Path(made), free_port()
        write_tables(folder, options.members)
        write_configurations(folder, options.members, port)
        key = callers.add(folder / "callers.yaml", "load", 10**6, 10**9)
        train(folder, options.members)
        print(f"{'':8}{'':10}{'median':>9}{'p95':>9}{'p99':>9}  ms{'records/s':>12}")

        def measure(case: str, way: str, port: int, callers: int, batch: int) -> None:
            rounds = [
                measured(way, port, key, callers, batch, options.seconds)
                for _ in range(options.repeats)
            ]
            row = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
            rows.append({"case": case, "way": way, **row, "rounds": rounds})
            spans = "".join(f"{row[name]:>9.1f}" for name in ("median_ms", "p95_ms", "p99_ms"))
            print(f"{way:8}{case:10}{spans}{'':4}{row['records_a_second']:>12,.0f}", flush=True)

        with scoring(folder, options.members, 0.0) as ports:
            for way, there in ports.items():
                for case, (count, batch) in CASES.items():
                    measure(case, way, there, count, batch)
        with scoring(folder, options.members, 3600.0) as ports:
            with by_http(ports["HTTP"], key) as ask:
                for first in range(0, RECORDS, BATCH):
                    ask([f"K{number:07}" for number in range(first, first + BATCH)])
            for way, there in ports.items():
                measure("kept", way, there, *CASES["batches"])
    summary = [
        report.line(
            f"scores over {row['way']}, {row['case']}, {options.members} members",
            f"{row['records_a_second']:,.0f} records/s",
            f"median {row['median_ms']:.1f}, p95 {row['p95_ms']:.1f} ms",
        )
        for row in rows
    ]
    found = {"members": options.members, "rows": rows}
    report.write(options, found, summary, ("torch", "grpcio", "fastapi", "uvicorn", "polars"))


if __name__ == "__main__":
    main()
