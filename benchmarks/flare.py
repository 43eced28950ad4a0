"""Rounds per second of NVIDIA FLARE: its documented call against the cell channel of Vertizo.

FLARE's POC mode on one machine: a server, so many clients, and for each a parent process and a
process of the job, all over mutual TLS. Every client asks in its own loop, 64 KB up and 48 bytes
down, and nothing is computed. Two ways in turn, in the same POC:

* **call**: ``collab.server.ask(frame)``, as FLARE's documentation has it;
* **channel**: `vertizo.ops.flare.cells`, one frame each way.

What is counted are the rounds of all clients while all of them were asking.

Run: ``python benchmarks/flare.py [--clients 4] [--seconds 10] [--schemes http grpc tcp]``
"""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import json
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nvflare
import yaml
from nvflare.collab import CollabRecipe, collab
from nvflare.recipe import PocEnv, ProdEnv

from vertizo.network.transport.base import Answer, Channel
from vertizo.ops.flare import job as flare
from vertizo.ops.flare import sites as flare_sites

UP, DOWN = 65_536, 48
WARM = 50
LONGEST = 300.0
"""Seconds that one job may take."""


class Counting:
    """A service that answers at once."""

    def __init__(self, members: tuple[str, ...]) -> None:
        self.members = members
        self.largest_ask = UP

    def ask(self, member: str, frame: bytes, answer: Answer) -> None:
        answer(bytes(DOWN))

    def gone(self, member: str) -> None:
        pass

    def tick(self) -> None:
        pass


class Label(flare_sites.LabelHolder):
    """The channel of Vertizo, at the server."""

    @contextmanager
    def open(self, config: Path) -> Iterator[Counting]:
        yield Counting(tuple(json.loads(config.read_text())["members"]))


class Features(flare_sites.Member):
    """The channel of Vertizo, at a client."""

    def take_part(self, config: Path, channel: Channel) -> None:
        time_asks(str(config), channel.ask)


def time_asks(config: str, ask: Callable[[bytes], bytes]) -> None:
    seconds = json.loads(Path(config).read_text())["seconds"]
    frame = os.urandom(UP)
    for _ in range(WARM):
        ask(frame)
    answered = [time.perf_counter()]
    while answered[-1] < answered[0] + seconds:
        assert len(ask(frame)) == DOWN
        answered.append(time.perf_counter())
    Path(f"{config}.{os.getpid()}").write_text(json.dumps(answered))


class CallServer:
    """The documented way, at the server."""

    @flare_sites.publish
    def ask(self, frame: bytes) -> bytes:
        return bytes(DOWN)

    @flare_sites.main
    def run(self) -> None:
        failed = collab.clients(timeout=LONGEST).work().failures
        if failed:
            raise RuntimeError(f"failed: {failed}")


class CallClient:
    """The documented way, at a client."""

    def __init__(self, config: str) -> None:
        self.config = config

    @flare_sites.publish
    def work(self) -> None:
        time_asks(self.config, collab.server.ask)


def recipe(way: str, config: str, sites: list[str]) -> Any:
    me: Any = importlib.import_module("flare")  # the sites know this file by its name
    if way == "channel":
        members = dict.fromkeys(sites, config)
        return flare.recipe(config, members, name=way, label_holder=me.Label, member=me.Features)
    return CollabRecipe(
        job_name=way,
        server=me.CallServer(),
        client=me.CallClient(config),
        min_clients=len(sites),
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def project(folder: Path, sites: list[str], scheme: str) -> Path:
    """FLARE's own example of a project, for these sites, on the loopback address."""
    example = Path(nvflare.__file__).parent / "lighter" / "dummy_project.yml"
    made = yaml.safe_load(example.read_text())
    server: dict[str, object] = {
        "name": "localhost",
        "type": "server",
        "fed_learn_port": free_port(),
    }
    admin: dict[str, object] = {
        "name": "admin@nvidia.com",
        "type": "admin",
        "role": "project_admin",
    }
    clients: list[dict[str, object]] = [{"name": site, "type": "client"} for site in sites]
    made["participants"] = [{**who, "org": "nvidia"} for who in (server, *clients, admin)]
    for builder in made["builders"]:
        if builder["path"].endswith("StaticFileBuilder"):
            builder["args"]["scheme"] = scheme
    path = folder / "project.yml"
    path.write_text(yaml.safe_dump(made))
    return path


def measure(scheme: str, clients: int, seconds: float) -> Iterator[dict[str, Any]]:
    """A POC of this scheme, and both ways in it."""
    sites = [f"site-{i + 1}" for i in range(clients)]
    with tempfile.TemporaryDirectory(prefix="vertizo-flare-") as name:
        folder = Path(name)
        os.environ["HOME"] = name  # FLARE keeps a record of its POC there
        os.environ["NVFLARE_POC_WORKSPACE"] = str(folder / "poc")
        plan = project(folder, sites, scheme)
        environment: Any = PocEnv(num_clients=clients, project_conf_path=str(plan))
        kit = folder / "poc" / "example_project" / "prod_00" / "admin@nvidia.com"
        try:
            for way in ("call", "channel"):
                config = folder / f"{way}.json"
                config.write_text(json.dumps({"members": sites, "seconds": seconds}))
                with contextlib.redirect_stdout(io.StringIO()):
                    start = environment if way == "call" else ProdEnv(str(kit))
                    job = recipe(way, str(config), sites).execute(start).get_job_id()
                    there = ProdEnv(str(kit))
                    there.get_job_result(job, timeout=LONGEST)
                    status = there.get_job_status(job)
                answered = [json.loads(p.read_text()) for p in folder.glob(f"{way}.json.*")]
                if len(answered) != clients:
                    raise SystemExit(
                        f"{scheme}, {way}: {status}, {len(answered)} of {clients} done"
                    )
                first, last = max(a[0] for a in answered), min(a[-1] for a in answered)
                within = [[t for t in a if first < t <= last] for a in answered]
                gaps = [b - a for times in within for a, b in itertools.pairwise(times)]
                yield {
                    "scheme": scheme,
                    "way": way,
                    "rounds_per_second": sum(map(len, within)) / (last - first),
                    "milliseconds_median": 1e3 * statistics.median(gaps),
                    "milliseconds_95": 1e3 * statistics.quantiles(gaps, n=20)[-1],
                    "seconds_of_all": last - first,
                }
        finally:
            with contextlib.redirect_stdout(io.StringIO()):
                environment.stop(clean_up=False)


def main() -> None:
    import report  # not needed at the sites, which are given this file alone

    parser = report.plain_parser(__doc__)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0, help="that each client asks")
    parser.add_argument("--schemes", nargs="+", default=["http", "grpc", "tcp"])
    options = parser.parse_args()
    print(f"{options.clients} clients, {UP:,} bytes up, {DOWN} down, {os.cpu_count()} cores")
    print(f"{'scheme':>6} {'way':>8} {'rounds/s':>9} {'ms':>7} {'ms, 95 %':>9}")
    rows = []
    for scheme in options.schemes:
        for row in measure(scheme, options.clients, options.seconds):
            rows.append(row)
            print(
                f"{scheme:>6} {row['way']:>8} {row['rounds_per_second']:>9,.0f}"
                f" {row['milliseconds_median']:>7.1f} {row['milliseconds_95']:>9.1f}",
                flush=True,
            )
    summary = [
        report.line(
            f"FLARE job, {options.clients} clients, {row['scheme']}, {row['way']}",
            f"{row['rounds_per_second']:,.0f} rounds/s",
        )
        for row in rows
    ]
    results = {"bytes_up": UP, "bytes_down": DOWN, "rows": rows}
    report.write(options, results, summary, ("nvflare",))


if __name__ == "__main__":
    main()
