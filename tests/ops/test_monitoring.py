"""What is watched of a job: the figures are the job's own, and health follows what happens."""

from __future__ import annotations

import re
import shutil
import socket
import sys
import time
import urllib.request
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests import deployments as dep
from tests.network.test_grpc import Echo
from tests.processes import SERVER, Job
from tests.refusals import refused
from tests.waiting import until

from vertizo.core.errors import ConfigError, RunError
from vertizo.network.serving.options import load_join, load_serve
from vertizo.network.transport import grpc_channel
from vertizo.network.transport.authority import issue
from vertizo.network.transport.certificates import Credentials
from vertizo.network.transport.grpc import GrpcChannel, GrpcServer
from vertizo.ops import monitoring
from vertizo.ops.figures import Figure
from vertizo.ops.monitoring import SERVICE, figures_at, health_at

grpc = pytest.importorskip("grpc")
pytest.importorskip("prometheus_client")
pytest.importorskip("grpc_health")

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""With which HTTP/2 begins, and settings, after which a handshake is over."""
LINE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def scraped(port: int) -> dict[str, float]:
    """All figures by name and labels, as Prometheus reads them."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as answer:
        text = answer.read().decode()
    lines = [LINE.fullmatch(line) for line in text.splitlines() if not line.startswith("#")]
    return {m[1] + (f"{{{m[2]}}}" if m[2] else ""): float(m[3]) for m in lines if m is not None}


def health(port: int, service: str = SERVICE) -> str:
    """What a probe is told: a status, or gRPC's code."""
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        ask = health_pb2_grpc.HealthStub(channel).Check
        try:
            status = ask(health_pb2.HealthCheckRequest(service=service), timeout=120).status
        except grpc.RpcError as error:
            return str(error.code().name)
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(status))


def test_prometheus_reads_what_is_there() -> None:
    values = {"a": 1.0}

    def figures() -> list[Figure]:
        return [
            Figure("vertizo_x_total", "Some.", values["a"], {"member": 'o"d'}),
            Figure("vertizo_x_total", "Some.", 7, {"member": "b"}),
            Figure("vertizo_y", "Other.", 0.5),
        ]

    with figures_at("127.0.0.1:0", figures) as port:
        assert scraped(port)['vertizo_x_total{member="b"}'] == 7
        values["a"] = 3.0
        assert scraped(port)['vertizo_x_total{member="o\\"d"}'] == 3
        in_use = pytest.raises(RunError, match=f"federation.metrics: .*port {port} is in use")
        with in_use, figures_at(f"127.0.0.1:{port}", figures):
            pass
    with pytest.raises(OSError, match="refused"):
        scraped(port)


@pytest.mark.full
def test_health_follows_what_it_is_of() -> None:
    ready = [False]
    with health_at("127.0.0.1:0", lambda: ready[0]) as port:
        assert (health(port, ""), health(port), health(port, "x")) == (
            "SERVING",
            "NOT_SERVING",
            "NOT_FOUND",
        )
        ready[0] = True
        assert until(lambda: health(port) == "SERVING", 5)
        ready[0] = False
        assert until(lambda: health(port) == "NOT_SERVING", 5)
        in_use = pytest.raises(RunError, match=r"federation.health: .* is in use")
        with in_use, health_at(f"127.0.0.1:{port}", lambda: True):
            pass
    assert health(port) == "UNAVAILABLE"


@pytest.mark.parametrize("sent", [b"", PREFACE], ids=["handshake", "silence"])
def test_connections_left_half_open_make_room_for_a_probe(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert monitoring.IDLE_SECONDS <= 5  # as long as a probe would wait
    monkeypatch.setattr(grpc_channel, "HANDSHAKE_SECONDS", 0.5)
    monkeypatch.setattr(monitoring, "IDLE_SECONDS", 0.5)
    monkeypatch.setattr(grpc_channel, "open_files", lambda: 4 * 3)
    with health_at("127.0.0.1:0", lambda: True) as port, ExitStack() as opened:
        for _ in range(3):
            held = opened.enter_context(socket.create_connection(("127.0.0.1", port), 60))
            if sent:
                held.sendall(sent)
                assert held.recv(1)  # the handshake is over
        assert until(lambda: health(port, "") == "SERVING", 15)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, module, at in (
        ("metrics", "prometheus_client", figures_at),
        ("health", "grpc_health.v1.health", health_at),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        words = rf"federation.{key} needs .*vertizo\[metrics\]"
        with pytest.raises(ConfigError, match=words), at("127.0.0.1:0", list):
            pass


def test_addresses_are_checked(tmp_path: Path) -> None:
    holder, member = tmp_path / "bank.yaml", tmp_path / "lab.yaml"
    holder.write_text("federation: {members: [lab], name: f, certificates: c, folder: f}\n")
    member.write_text("federation: {name: f, server: 'a:1', certificates: c, folder: f}\n")
    for path, load in ((holder, load_serve), (member, load_join)):
        for key in ("metrics", "health"):
            for value, words in (
                ("9100", f"federation.{key} is 9100; it must be a string"),
                ("here", "'here' is no address; write host:port"),
            ):
                refused(value, ConfigError, load, path, [f"federation.{key}={value}"], match=words)


def test_who_is_no_member_is_counted_and_certificates_are_dated(tmp_path: Path) -> None:
    issue(tmp_path, "holder", ["bank", "stranger"], [], 1)
    mine = {name: Credentials.load(tmp_path / name) for name in ("holder", "bank", "stranger")}
    with GrpcServer(Echo(), listen="localhost:0", credentials=mine["holder"]) as server:
        place = f"localhost:{server.port}"
        with closing(GrpcChannel(place, mine["bank"], patience=600.0)) as channel:
            assert not channel.is_connected
            before = time.monotonic()
            channel.ask(b"hello")
            assert channel.is_connected
            assert channel.silence < time.monotonic() - before
        with closing(GrpcChannel(place, mine["stranger"], patience=600.0)) as channel:
            refused("stranger", RunError, channel.ask, b"hello", match="no member")
        assert server.strangers == 1
        assert set(server.seen) == {"bank"}
        ends = datetime.now(UTC) + timedelta(days=1)
        assert abs(server.seen["bank"] - ends) < timedelta(hours=2)


@pytest.mark.full
def test_a_jobs_figures_are_those_of_its_folder(tmp_path: Path) -> None:
    """Read while the job goes on; the last ones are held against what the job says at its end."""
    ports = {name: (free_port(), free_port()) for name in (SERVER, "north")}
    at = {
        name: {"metrics": f"127.0.0.1:{metrics}", "health": f"127.0.0.1:{healthy}"}
        for name, (metrics, healthy) in ports.items()
    }
    keys = {**dep.PRIVATE, "epochs": 12, "batch_size": 8}
    with Job(tmp_path, federation={"trial": False, "rate": 6.0, **at[SERVER]}, **keys) as job:
        job.configure("north", **at["north"])
        job.start(SERVER)
        job.parties[SERVER].says("waiting for")
        assert until(lambda: health(ports[SERVER][1]) == "SERVING", 10)
        seen = scraped(ports[SERVER][0])
        assert seen['vertizo_phase{phase="waiting"}'] == 1
        assert "vertizo_rounds_total" not in seen
        job.start("north", "east")
        wanted = {"vertizo_epsilon_charged": 0.0, "vertizo_rounds_total": 3.0}

        def is_under_way() -> bool:
            seen = scraped(ports[SERVER][0])
            return all(seen.get(name, 0.0) > least for name, least in wanted.items())

        assert until(is_under_way, 60)
        first = scraped(ports[SERVER][0])
        mine = scraped(ports["north"][0])
        assert health(ports["north"][1]) == "SERVING"
        # Both take up new certificates; the member shows its own at its next connection.
        for name, server, members in ((SERVER, SERVER, []), ("north", None, ["north"])):
            shutil.rmtree(tmp_path / "certs" / name)
            issue(tmp_path / "certs", server, members, ["127.0.0.1"] if server else [], 30)

            def days(name: str = name) -> float:
                label = f'vertizo_certificate_days{{kind="own",party="{name}"}}'
                return scraped(ports[name][0])[label]

            assert until(lambda of=days: of() > 29, 10)
            job.parties[name].says("a new certificate is in use")
        job.parties[SERVER].kill()
        assert until(lambda: health(ports["north"][1]) == "NOT_SERVING", 10)
        assert health(ports["north"][1], "") == "SERVING"
        assert scraped(ports["north"][0])["vertizo_connected"] == 0
        rounds = job.config.epochs * 2 * 23  # of 180 training records, 8 at a time, by two
        assert first["vertizo_rounds_planned"] == rounds
        queries = job.charged()
        job.start(SERVER)
        assert until(lambda: health(ports[SERVER][1]) == "SERVING", 60)
        # What the ledger was charged for outlives the process, and so do the figures.
        assert until(lambda: scraped(ports[SERVER][0]).get("vertizo_rounds_total", 0) > 0, 60)
        again = scraped(ports[SERVER][0])
        for party in job.parties.values():
            party.kill()
    assert first["vertizo_rounds_total"] <= len(queries) <= again["vertizo_rounds_total"]
    assert first['vertizo_phase{phase="training"}'] == 1
    # Each frame once; a scrape may come between a query and its round.
    up = first['vertizo_bytes_total{direction="up",kind="training"}']
    sizes = [len(frame) for frame in job.order()[: int(first["vertizo_rounds_total"])]]
    assert len(sizes) == first["vertizo_rounds_total"]
    assert abs(up - sum(sizes)) <= 3 * max(sizes)
    sent = mine['vertizo_bytes_total{direction="up",kind="all"}']
    assert sent >= min(sizes) * mine["vertizo_queries_total"]
    assert first['vertizo_refusals_total{member="north"}'] == 0
    assert 0 <= first['vertizo_silence_seconds{party="east"}'] < 60
    assert 0 < first["vertizo_epsilon_charged"] <= again["vertizo_epsilon_charged"]
    assert again["vertizo_epsilon_charged"] <= again["vertizo_epsilon_stated"] * 1.01
    for kind, holds in (("own", 1), ("authority", 3650), ("member", 1)):
        days = [v for k, v in first.items() if k.startswith("vertizo_cert") and f'"{kind}"' in k]
        assert days == pytest.approx([holds] * (2 if kind == "member" else 1), abs=0.1), kind
    assert mine["vertizo_connected"] == 1
    assert 0 < mine["vertizo_epoch"] < 12
