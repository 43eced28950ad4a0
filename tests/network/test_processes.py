"""Real processes, killed at random: a job goes on as if nothing had been.

Everything here is on loopback. `tests.test_real_processes` has the one such job of the gate.
"""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import deployments as dep
from tests.cutter import Cutter
from tests.processes import MEMBERS, SERVER, Job, Party, held_port
from tests.rows import each
from tests.waiting import PATIENT, until

from vertizo.core.errors import RunError
from vertizo.network.serving import frames
from vertizo.network.transport import grpc_channel
from vertizo.network.transport.authority import issue
from vertizo.network.transport.certificates import Credentials
from vertizo.network.transport.grpc_channel import GrpcChannel
from vertizo.protocol import wire
from vertizo.protocol.codecs.none import NoCompression
from vertizo.protocol.messages import Query

pytestmark = pytest.mark.full

PEM = ("authority", "certificate", "key")
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")


def assert_charged_once(job: Job) -> None:
    """Every query of every member, and every secret step, is in the ledger once."""
    each = job.queries
    assert job.charged() == [(c, n) for c in range(len(job.members)) for n in range(each)]
    secret = job.config.server.secret
    assert job.steps == secret.warm_up + job.summary["rounds"] // secret.every


def test_a_server_listens_before_it_imports_what_takes_long(tmp_path: Path) -> None:
    """All but PyTorch, which every party is made of."""
    told = {"PYTHONPROFILEIMPORTTIME": "1"}
    with Job(tmp_path, federation={"trial": False}, environment=told, **dep.PRIVATE) as job:
        job.start(SERVER, cold=True)
        job.parties[SERVER].says("serves test")
        lines = job.parties[SERVER].words.splitlines()
    imported = {line.rpartition("|")[2].strip() for line in lines if "import time:" in line}
    assert "torch" in imported
    assert not imported & {"sklearn", "scipy", "pandas", "polars", "dp_accounting", "transformers"}


def test_killed_processes_charge_every_query_once(tmp_path: Path) -> None:
    """The server twice, each client once."""
    chance = random.Random(1)
    with Job(tmp_path, federation={"trial": False}, epochs=8, batch_size=8, **dep.PRIVATE) as job:
        job.start()
        for member in MEMBERS:  # two at a time, since starting takes long
            job.goes_on(member, chance.randint(1, 6))
            job.kill_and_start(member)
            job.kill_and_start(SERVER)
        job.finish()
        assert_charged_once(job)


@pytest.mark.long
@each(
    "deaths, timing",
    [
        ([(SERVER,)] * 20, "asynchronous"),
        ([("north",), ("east",)] * 6, "synchronous"),  # nobody goes on while somebody is away
    ],
)
def test_who_is_killed_again_and_again_is_charged_once(
    deaths: list[tuple[str, ...]], timing: str, tmp_path: Path
) -> None:
    keys = {**dep.PRIVATE, "simulation": {"timing": timing}}
    with Job(tmp_path, federation={"trial": False}, epochs=60, batch_size=8, **keys) as job:
        job.start()
        job.torment(deaths, seed=2)
        job.finish()
        assert_charged_once(job)


@pytest.mark.long
@each("timing", ["asynchronous", "synchronous"])
def test_after_twenty_deaths_all_parameters_are_as_if_nobody_had_died(
    timing: str, tmp_path: Path
) -> None:
    in_step = timing == "synchronous"
    keys: dict[str, Any] = {"simulation": {"timing": timing, "table": "upload"}}
    with Job(tmp_path, epochs=150, batch_size=8, **keys) as job:
        job.start()
        others = [(member,) if in_step else (member, SERVER) for member in MEMBERS]
        job.torment([*[(SERVER,)] * (20 if in_step else 12), *others * 4], seed=4)
        job.finish()
        job.assert_ended_as(job.replayed())
        if in_step:  # whose order follows from the configuration alone
            simulated = dep.simulated(job.config)
            simulated.simulator.start()
            while simulated.server.round < simulated.total_rounds:
                assert simulated.simulator.step()
            job.assert_ended_as(simulated)


@pytest.mark.long
def test_connections_cut_in_the_middle_of_messages_change_nothing(tmp_path: Path) -> None:
    chance = random.Random(5)
    client = {"model": {"hidden": [8], "outputs": 512}}
    simulation = {"timing": "synchronous", "table": "upload"}
    # a handshake takes about 5 kB, the table 370 kB and a query 64 kB
    budgets = [chance.choice([6_000, 60_000, 300_000]) + chance.randrange(3_000) for _ in range(15)]
    with (
        Job(tmp_path, epochs=5, client=client, simulation=simulation) as job,
        Cutter(job.port, budgets) as cutter,
    ):
        job.configure("north", server=f"127.0.0.1:{cutter.port}")
        job.start()
        job.finish()
        assert cutter.cuts == len(budgets)
        job.assert_ended_as(job.replayed())


def test_a_tunnel_with_nobody_behind_it_is_no_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay takes a connection and closes it, as long as the label holder is away."""
    monkeypatch.setattr(grpc_channel, "REFUSALS", 2)
    issue(tmp_path, None, ["north"], [], 1)
    mine = Credentials.load(tmp_path / "north")
    with held_port() as nobody, Cutter(nobody.getsockname()[1], []) as relay:
        channel = GrpcChannel(f"127.0.0.1:{relay.port}", mine, patience=2.0)
        with closing(channel), pytest.raises(RunError, match="not be reached for 2 seconds"):
            channel.ask(b"")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Job]:
    """A job that goes on for half a minute."""
    past = datetime.now(UTC) - timedelta(days=3)
    issue(tmp_path / "certs", None, ["late"], [], 1, now=past)
    with Job(tmp_path, federation={"rate": 4.0}, epochs=15, **dep.IN_STEP) as job:
        job.start()
        job.goes_on(SERVER)
        yield job


def stranger(job: Job, name: str, certificates: Path) -> Party:
    """``vertizo join`` with other certificates."""
    log = job.folder / f"{name}.log"
    settings = [f"federation.certificates={certificates}", f"federation.folder={job.folder / name}"]
    command = ["join", str(job.folder / "north.yaml")]
    command += [word for setting in settings for word in ("--set", setting)]
    return Party(command, log, job.environment)


@pytest.mark.long
def test_strangers_are_turned_away_in_a_line_and_disturb_nobody(running: Job) -> None:
    folder, server = running.folder, f"127.0.0.1:{running.port}"
    issue(folder / "certs", None, ["mallory"], [], 1)
    issue(folder / "others", None, ["north"], [], 1)
    shutil.copytree(folder / "others" / "north", folder / "both")
    with (folder / "both" / "authority.pem").open("ab") as file:
        file.write((folder / "certs" / "north" / "authority.pem").read_bytes())
    cases = {
        "mallory": (folder / "certs" / "mallory", ["'mallory' is no member"]),
        "foreign": (folder / "others" / "north", ["not signed by the authority"]),
        "sly": (folder / "both", ["does not accept the certificate of 'north'"]),
        "late": (folder / "certs" / "late", ["expired on", "renew it"]),
    }
    parties = {name: stranger(running, name, where) for name, (where, _) in cases.items()}
    try:
        for name, (_, words) in cases.items():
            parties[name].fails(*words)
    finally:
        for party in parties.values():
            party.kill()

    files = {name: (folder / "certs" / "late" / f"{name}.pem").read_bytes() for name in PEM}
    late = Credentials(**files, name="late", expires=datetime.now(UTC))  # nobody looked at it here
    with closing(GrpcChannel(server, late, patience=PATIENT)) as channel:
        hello = frames.encode(frames.Hello(frames.PROTOCOL, "test"))
        with pytest.raises(RunError, match="does not accept the certificate of 'late'"):
            channel.ask(hello)

    assert not any(party.ended for party in running.parties.values())
    running.finish()
    for member in MEMBERS:
        told = running.parties[member].words
        assert told.count("no connection") <= 1, told  # before the server was there
    running.assert_ended_as(running.replayed())


@pytest.mark.long
def test_nobody_can_speak_for_another_member(running: Job) -> None:
    for member in MEMBERS:
        running.goes_on(member, 3)
    for member in MEMBERS:
        running.parties[member].kill()
    shutil.copytree(running.folder / "east", running.folder / "forged")
    running.configure("north", folder="forged")  # what east has, with the certificate of north
    running.start("north")
    running.parties["north"].fails("another member's")
    assert not running.parties[SERVER].ended

    mine = Credentials.load(running.folder / "certs" / "north")
    with closing(GrpcChannel(f"127.0.0.1:{running.port}", mine, patience=PATIENT)) as channel:
        numbers = torch.zeros(1, 2, 4)
        query = wire.encode(Query(1, 10_000, torch.arange(2), numbers), NoCompression())
        answer = frames.decode(channel.ask(bytes(query)))
    assert isinstance(answer, frames.Refusal)
    assert "speaks for client" in answer.words

    running.configure("north")
    running.start(*MEMBERS)
    running.parties[SERVER].says("privacy:")
    assert running.parties[SERVER].end() == 0
    assert [running.parties[member].end() for member in MEMBERS] == [0, 0]
    running.assert_ended_as(running.replayed())


@pytest.mark.long
@pytest.mark.skipif(not FAKETIME.is_file(), reason="libfaketime is not installed")
def test_the_time_of_day_means_nothing_to_a_job(tmp_path: Path) -> None:
    """The label holder's clock jumps by hours and days, and beyond what certificates hold."""
    now = tmp_path / "now"
    now.write_text("+0h")
    environment = {
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME_TIMESTAMP_FILE": str(now),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    with Job(tmp_path, federation={"rate": 8.0, "patience": 30.0}, epochs=25, **dep.IN_STEP) as job:
        job.start(SERVER, environment=environment, cold=True)
        job.start(*MEMBERS)
        job.goes_on(SERVER, 2)
        for hours in (7, -30, 500, 0, -9000, 20):
            now.write_text(f"{hours:+d}h")
            job.goes_on(SERVER, 6)
            time.sleep(0.3)
            if hours == 500:
                mine = Credentials.load(tmp_path / "certs" / "north")
                channel = GrpcChannel(f"127.0.0.1:{job.port}", mine, patience=PATIENT)
                with closing(channel), pytest.raises(RunError, match="expired by its clock"):
                    channel.ask(b"")  # a new connection is judged, and those that are there not
        job.finish()
        log = job.parties[SERVER].words
        assert "silent" not in log, log
        assert "refused" not in log, log
        for member in MEMBERS:
            assert job.parties[member].words.count("no connection") <= 1
        job.assert_ended_as(job.replayed())


@pytest.mark.long
def test_whoever_is_asked_to_stop_says_how_to_go_on_and_goes_on(tmp_path: Path) -> None:
    with Job(tmp_path, federation={"rate": 4.0}, epochs=60, **dep.IN_STEP) as job:
        job.start()
        for name in (SERVER, "north"):
            for number in (signal.SIGTERM, signal.SIGINT):
                job.goes_on(name)
                party, other = job.parties[name], job.parties["east"]
                other.process.send_signal(signal.SIGSTOP)  # so that the job cannot be over before
                party.ask_to_stop(number)
                try:
                    assert party.end(300) == 130, party.words
                finally:
                    other.process.send_signal(signal.SIGCONT)
                line = party.words.splitlines()[-1]
                assert line == "vertizo: stopped; the same command continues the job"
                assert "Traceback" not in party.words
                job.start(name)
        for party in job.parties.values():
            assert party.end() == 0, party.words
        job.assert_ended_as(job.replayed())


@pytest.mark.long
def test_members_that_lost_patience_go_on_another_day(tmp_path: Path) -> None:
    with Job(tmp_path, join={"patience": 3.0}, epochs=100, batch_size=8, **dep.IN_STEP) as job:
        job.start(SERVER)
        job.parties[SERVER].says("serves")
        job.start(*MEMBERS)
        job.goes_on(SERVER, 5)
        job.parties[SERVER].kill()
        for member in MEMBERS:
            words = f"127.0.0.1:{job.port} could not be reached for 3 seconds: nobody listens there"
            job.parties[member].fails(words, seconds=30)
        job.start(SERVER)
        job.parties[SERVER].says("serves")
        job.start(*MEMBERS)
        for party in job.parties.values():
            assert party.end() == 0, party.words
        job.assert_ended_as(job.replayed())


@pytest.mark.long
def test_a_server_that_comes_back_is_asked_soon(tmp_path: Path) -> None:
    """Prints how soon; a machine that has much else to do has no figures worth a test."""
    with Job(tmp_path, epochs=200, batch_size=8, **dep.IN_STEP) as job:
        job.start()
        for _ in range(5):
            job.goes_on(SERVER, 5)
            job.kill_and_start(SERVER)
            party = job.parties[SERVER]
            assert until(lambda party=party: "serves" in party.words, PATIENT, 0.005)  # type: ignore[misc]
            listening = time.monotonic()
            job.goes_on(SERVER)
            asked = time.monotonic()
            print(f"asked {asked - party.started:.2f} s after the start of the process", end=", ")
            print(f"{asked - listening:.2f} s after it listened")
            assert asked - listening < 30
