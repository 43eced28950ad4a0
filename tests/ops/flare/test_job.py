"""Asks over NVIDIA FLARE: identity, repeats, late answers; whole jobs in its simulator and POC."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vertizo.core.errors import ConfigError, RunError
from vertizo.network.transport.base import Answer, Channel
from vertizo.ops import flare
from vertizo.ops.flare import cells as flare_cells
from vertizo.ops.flare import sites
from vertizo.ops.flare.cells import CHANNEL, NOT_YET, TOPIC, CellChannel, CellService
from vertizo.ops.flare.sites import LabelHolder, Member, own_file

pytestmark = [pytest.mark.full, pytest.mark.needs("nvflare")]

SITES = ("site-1", "site-2")
ROUNDS = 40
BREAKS_AT = 7
LOGIN: dict[str, Any] = {"login_timeout": 60.0}
"""Seconds; a loaded machine takes longer than FLARE's ten."""


def reply_to(member: str, frame: bytes) -> bytes:
    return member.encode() + frame[::-1]


# What runs at the sites of a job, which brings this file.


class Counting:
    """A service that answers with who asked and what, the other way round."""

    def __init__(self) -> None:
        self.members = SITES
        self.largest_ask = 1 << 20
        self.asked: Counter[str] = Counter()
        self.left: list[str] = []
        self.kept: list[Answer] = []
        self.raised = False
        self.lock = threading.Lock()

    def ask(self, member: str, frame: bytes, answer: Answer) -> None:
        with self.lock:
            self.asked[member] += 1
            if frame == b"raise once" and not self.raised:
                self.raised = True
                raise ValueError("a fault of the service")
            if frame == b"together":  # as a synchronous round: answered when all have asked
                self.kept.append(lambda data, a=answer, m=member: a(reply_to(m, data)))  # type: ignore[misc]
                if len(self.kept) == len(SITES):
                    for send in self.kept:
                        send(frame)
                    self.kept = []
                return
        answer(reply_to(member, frame))

    def gone(self, member: str) -> None:
        self.left.append(member)

    def tick(self) -> None:
        pass

    def conclude(self) -> None:
        pass


class Label(LabelHolder):
    @contextmanager
    def open(self, config: Path) -> Iterator[Counting]:
        service = Counting()
        try:
            yield service
        finally:
            facts = {"asked": service.asked, "left": sorted(service.left)}
            config.with_suffix(".asked").write_text(json.dumps(facts))


class Features(Member):
    def take_part(self, config: Path, channel: Channel) -> None:
        {"count": count, "pretend": pretend, "fail": fail, "die": die}[config.stem](config, channel)


def own_name(channel: Channel) -> str:
    """FLARE names a job's cell after its site."""
    return str(channel._core.get_fqcn()).split(".")[0]  # type: ignore[attr-defined]


def count(config: Path, channel: Channel) -> None:
    """A party of `ROUNDS` asks of 64 KB, one whose first handling fails, one of all together."""
    name = own_name(channel)
    for _ in range(ROUNDS):
        frame = os.urandom(65_536)
        assert channel.ask(frame) == reply_to(name, frame)
    if name == SITES[0]:
        assert channel.ask(b"raise once") == reply_to(name, b"raise once")
    assert channel.ask(b"together") == reply_to(name, b"together")
    config.with_suffix(f".{name}").write_text("done")


def pretend(config: Path, channel: Channel) -> None:
    """One member asks under another's name, at every place that its own cell writes."""
    from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
    from nvflare.fuel.f3.message import Message

    channel.ask(b"honest")
    core: Any = channel._core  # type: ignore[attr-defined]
    if own_name(channel) == SITES[1]:

        def forge(message: Any) -> None:
            mine = message.get_header(MessageHeaderKey.ORIGIN)
            other = mine.replace(SITES[1], SITES[0])
            message.set_header(MessageHeaderKey.ORIGIN, other)
            message.set_header(MessageHeaderKey.ROUTE, [(other, time.time())])

        core.add_outgoing_request_filter(CHANNEL, TOPIC, forge)
        to: str = channel._server  # type: ignore[attr-defined]
        reply = core.send_request(CHANNEL, TOPIC, to, Message({}, b"forged"), timeout=3.0)
        code = reply.get_header(MessageHeaderKey.RETURN_CODE)
        config.with_suffix(".forged").write_text(json.dumps([code, bool(reply.payload)]))


def breaks(channel: Channel, end: Callable[[], None]) -> None:
    """One member ends in the middle of a run that is not over."""
    for n in range(100_000):
        channel.ask(b"%d" % n)
        if n == BREAKS_AT and own_name(channel) == SITES[1]:
            end()


def fail(config: Path, channel: Channel) -> None:
    """One member's party raises."""

    def full() -> None:
        raise RunError("its disk is full")

    breaks(channel, full)


def die(config: Path, channel: Channel) -> None:
    """One member's process is killed."""
    breaks(channel, lambda: os.kill(os.getpid(), signal.SIGKILL))


def job(folder: Path, party: str) -> Any:
    """A recipe of one of the parties above; all sites have the same configuration."""
    config = folder / f"{party}.json"
    config.write_text("{}")
    members = dict.fromkeys(SITES, str(config))
    return flare.recipe(str(config), members, name=party, label_holder=Label, member=Features)


SERVE = """
epochs: 2
batch_size: 32
data: {name: breast-cancer, parties: 2}
method: {name: dpzv}
simulation: {timing: synchronous}
client:
  model: {name: mlp, outputs: 2}
  optimizer: {learning_rate: 0.003}
server:
  model: {name: mlp, hidden: [8]}
  optimizer: {learning_rate: 0.01}
  final_head: logistic
federation: {name: clinics, members: [site-1, site-2], folder: run, trial: true}
"""
JOIN = "federation: {name: clinics, folder: of-SITE, trial: true}\n"
CLOCK = {"seconds", "finished", "peak_memory_mib"}


def write_training(folder: Path, serve: str = SERVE) -> tuple[str, dict[str, str]]:
    """Configurations of two clinics and their label holder; what FLARE sees to is left out."""
    folder.mkdir()
    paths = {site: folder / f"{site}.yaml" for site in ("serve", *SITES)}
    for site, path in paths.items():
        path.write_text(serve if site == "serve" else JOIN.replace("SITE", site))
    return str(paths["serve"]), {site: str(paths[site]) for site in SITES}


def summary_of(folder: Path) -> dict[str, Any]:
    """What a run is about, but for the time it took, and what had come in early at its best."""
    summary = json.loads((folder / "run" / "summary.json").read_text())
    best = {k: v for k, v in summary["best"].items() if k not in CLOCK | {"bytes_up"}}
    return {key: value for key, value in summary.items() if key not in CLOCK} | {"best": best}


def train_here(folder: Path) -> dict[str, Any]:
    """The same run, with no network."""
    from tests import deployments as dep  # not where this file runs as a script

    config, members = write_training(folder)
    with LabelHolder(config).open(Path(config)) as service:
        channel = dep.direct(service)
        member = Member(60.0)
        dep.together([partial(member.take_part, Path(p), channel(m)) for m, p in members.items()])
        service.tick()
        service.conclude()
    return summary_of(folder)


# Whole jobs, in a process of their own, as FLARE reads the command line and changes folders.


def simulate(folder: Path) -> None:
    from nvflare.recipe import SimEnv

    made = flare.recipe(*write_training(folder / "simulated"), name="train")
    made.execute(SimEnv(clients=list(SITES), workspace_root=str(folder / "simulator")))


def poc(folder: Path) -> Any:
    """A `PocEnv` of two clients, with mutual TLS on the loopback address."""
    import nvflare
    import yaml
    from nvflare.recipe import PocEnv

    example = Path(nvflare.__file__).parent / "lighter" / "dummy_project.yml"
    plan = yaml.safe_load(example.read_text())
    participants: list[dict[str, object]] = [
        {"name": "localhost", "type": "server", "fed_learn_port": free_port()},
        *({"name": site, "type": "client"} for site in SITES),
        {"name": "admin@nvidia.com", "type": "admin", "role": "project_admin"},
    ]
    plan["participants"] = [{**who, "org": "nvidia"} for who in participants]
    for builder in plan["builders"]:
        if builder["path"].endswith("StaticFileBuilder"):
            builder["args"]["scheme"] = "tcp"
    (folder / "project.yml").write_text(yaml.safe_dump(plan))
    return PocEnv(
        num_clients=len(SITES), project_conf_path=str(folder / "project.yml"), extra=LOGIN
    )


def admin(folder: Path) -> Any:
    """The POC as one who submits jobs to it has it."""
    from nvflare.recipe import ProdEnv

    return ProdEnv(str(kit(folder)), **LOGIN)


def end_of(made: Any, start: Any, folder: Path, during: Callable[[], None] | None = None) -> Any:
    """Execute a job: its status at the end, and the log of its server."""
    name = made.execute(start).get_job_id()
    if during is not None:
        during()
    there = admin(folder)
    result = there.get_job_result(name, timeout=300.0)
    return [there.get_job_status(name), (Path(str(result)) / "workspace" / "log.txt").read_text()]


def prove_one(folder: Path) -> None:
    """A run in a POC that is killed afterwards, which takes less time than to stop it."""
    environment = poc(folder)
    try:
        made = flare.recipe(*write_training(folder / "proved"), name="train")
        ended = end_of(made, environment, folder)
        (folder / "ended.json").write_text(json.dumps({"train": ended}))
    finally:
        for one in services(folder):
            kill_all(one)


def prove(folder: Path) -> None:
    """Jobs in one POC; how each ended goes to a file."""
    environment = poc(folder)
    ended = {}
    try:
        for party in ("count", "train", "pretend", "fail", "die"):
            if party == "train":
                let_in_what_is_installed(folder)
                made = flare.recipe(
                    *write_training(folder / "proved"), name=party, installed_only=True
                )
            else:
                made = job(folder, party)
            start = environment if party == "count" else admin(folder)
            ended[party] = end_of(made, start, folder)
            (folder / "ended.json").write_text(json.dumps(ended))
    finally:
        environment.stop(clean_up=False)


def lose(folder: Path) -> None:
    """A site is killed, all its processes, in the middle of a run; a FLARE that waits 20 s."""
    from nvflare.recipe import poc_env

    start = poc_env._start_poc

    def with_less_patience(**options: Any) -> None:
        file = kit(folder).parent / "localhost" / "local" / "resources.json"
        made = json.loads(file.read_text())
        assert made["servers"][0]["heart_beat_timeout"] == 600, "docs/flare.md says so"
        made["servers"][0]["heart_beat_timeout"] = 20
        file.write_text(json.dumps(made))
        start(**options)

    poc_env._start_poc = with_less_patience
    environment = poc(folder)

    def kill_a_site() -> None:
        until(lambda: (folder / "lost" / "run" / "metrics.jsonl").is_file(), 120.0)
        site = f"/{SITES[1]}/"
        for one in [each for each in services(folder) if site in " ".join(each.cmdline())]:
            kill_all(one)

    try:
        longer = SERVE.replace("epochs: 2", "epochs: 100000").replace(
            "trial:", "patience: 5, trial:"
        )
        made = flare.recipe(*write_training(folder / "lost", longer), name="lose")
        ended = end_of(made, environment, folder, kill_a_site)
        (folder / "ended.json").write_text(json.dumps({"lose": ended}))
    finally:
        for one in services(folder):
            kill_all(one)


def kill_all(process: Any) -> None:
    """A process and its children, of which the first starts others again when they end."""
    import psutil

    for one in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()


def let_in_what_is_installed(folder: Path) -> None:
    """What a site writes to let in jobs without code that name Vertizo's classes."""
    for site in ("localhost", *SITES):
        local = folder / "poc" / "example_project" / "prod_00" / site / "local"
        resources = json.loads((local / "resources.json.default").read_text())
        resources["class_allow_list"] += ["vertizo.ops.flare.sites", "nvflare.collab"]
        (local / "resources.json").write_text(json.dumps(resources))


def kit(folder: Path) -> Path:
    return folder / "poc" / "example_project" / "prod_00" / "admin@nvidia.com"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_apart(what: str, folder: Path, seconds: float) -> str:
    """Run one of the four above in a process; nothing of it is left, however it ends."""
    import psutil

    room = {"HOME": str(folder), "NVFLARE_POC_WORKSPACE": str(folder / "poc")}
    with (folder / "output").open("w+") as output:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), what, str(folder)],
            env={**os.environ, "OMP_NUM_THREADS": "1", **room},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            code = process.wait(seconds)
            until(lambda: not services(folder))
        finally:
            left = services(folder)
            if process.poll() is None:
                left += psutil.Process(process.pid).children(recursive=True)
            for one in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
            process.kill()
            process.wait()
        text = (folder / "output").read_text()
        assert code == 0, text
        return text


def services(folder: Path) -> list[Any]:
    """The processes whose numbers FLARE wrote into a POC's folder, and that still run."""
    import psutil

    found = []
    for pid_file in folder.glob("poc/*/prod_00/*/*pid.fl"):
        with contextlib.suppress(OSError, ValueError, psutil.NoSuchProcess):
            process = psutil.Process(int(pid_file.read_text()))
            if str(folder) in " ".join(process.cmdline()):  # which a zombie has none of
                found.append(process)
    return found


def until(true: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait for what another thread, or process, does."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def check_count(folder: Path) -> None:
    """What a job of `count` leaves: every ask counted once, both members told to be gone."""
    facts = json.loads((folder / "count.asked").read_text())
    # all members ask together once; the one ask whose handling failed came a second time
    assert facts["asked"] == {SITES[0]: ROUNDS + 3, SITES[1]: ROUNDS + 1}
    assert facts["left"] == list(SITES)
    assert all((folder / f"count.{site}").read_text() == "done" for site in SITES)


def test_a_run_in_the_simulator_is_the_run_without_a_network(tmp_path: Path) -> None:
    run_apart("simulate", tmp_path, 180.0)
    expected = train_here(tmp_path / "here")
    assert expected["rounds"] == 26
    assert summary_of(tmp_path / "simulated") == expected


def test_a_run_over_mutual_tls_is_the_run_without_a_network(tmp_path: Path) -> None:
    text = run_apart("prove_one", tmp_path, 240.0)
    [status, _] = json.loads((tmp_path / "ended.json").read_text())["train"]
    assert status == "FINISHED:COMPLETED", text
    assert summary_of(tmp_path / "proved") == train_here(tmp_path / "here")


@pytest.mark.long
def test_a_site_that_is_killed_is_named_and_the_job_ends(tmp_path: Path) -> None:
    """FLARE waits, then ends the job; the server's log has a line of ours for each."""
    text = run_apart("lose", tmp_path, 500.0)
    [status, log] = json.loads((tmp_path / "ended.json").read_text())["lose"]
    assert status == "FINISHED:EXECUTION_EXCEPTION", text
    ours = [line for line in log.splitlines() if "silent for" in line]
    assert ours[-1].endswith(f"silent for 5 s: {SITES[1]}; waiting for them")
    assert f"RunError: {flare_cells.ENDED}" in log


@pytest.mark.long
def test_jobs_over_mutual_tls(tmp_path: Path) -> None:
    text = run_apart("prove", tmp_path, 600.0)
    ended = json.loads((tmp_path / "ended.json").read_text())
    assert ended["count"][0] == "FINISHED:COMPLETED", text
    check_count(tmp_path)
    assert ended["train"][0] == "FINISHED:COMPLETED", text
    assert summary_of(tmp_path / "proved") == train_here(tmp_path / "here")
    assert ended["pretend"][0] == "FINISHED:COMPLETED", text
    # FLARE's server drops what comes under another's name: no reply, and no ask counted
    assert json.loads((tmp_path / "pretend.forged").read_text()) == ["timeout", False]
    asked = json.loads((tmp_path / "pretend.asked").read_text())["asked"]
    assert asked == {SITES[0]: 1, SITES[1]: 1}
    assert ended["fail"][0] == "FINISHED:EXECUTION_EXCEPTION"
    assert "site-2 failed: RunError: its disk is full" in ended["fail"][1]
    assert ended["die"][0] == "FINISHED:EXECUTION_EXCEPTION"
    for party in ("fail", "die"):
        asked = json.loads((tmp_path / f"{party}.asked").read_text())["asked"]
        assert asked[SITES[1]] == BREAKS_AT + 1
    secure = [p.read_text() for p in tmp_path.glob("poc/*/prod_00/localhost/startup/*.json")]
    assert any('"connection_security": "mtls"' in text for text in secure)


# Cells of one process, with no network between them.


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The job's cell at the server, at each site, and at a client that is not of the run."""
    from nvflare.fuel.f3.cellnet.cell import Cell
    from nvflare.fuel.f3.cellnet.core_cell import CoreCell
    from nvflare.fuel.f3.stats_pool import StatsPoolManager

    monkeypatch.setattr(StatsPoolManager, "pools", {})
    url = "tcp://127.0.0.1:1"  # never opened
    made = {}
    for site in ("server", *SITES, "stranger"):
        made[site] = Cell(f"{site}.job", url, secure=False, credentials={}, parent_url=url)
        made[site].core_cell.running = True
    try:
        yield made
    finally:
        for cell in made.values():
            CoreCell.ALL_CELLS.pop(cell.get_fqcn(), None)


@pytest.fixture
def service() -> Counting:
    return Counting()


@pytest.fixture
def asks(cells: dict[str, Any], service: Counting) -> CellService:
    return CellService(cells["server"], service, {f"{site}.job": site for site in SITES})


def channel_of(cells: dict[str, Any], site: str, **options: Any) -> CellChannel:
    return CellChannel(cells[site], "server.job", **options)


@pytest.mark.usefixtures("asks")
def test_an_ask_is_answered_byte_for_byte_and_again_if_it_failed(
    cells: dict[str, Any], service: Counting
) -> None:
    for site in SITES:
        for frame in (b"", b"\x00", os.urandom(100_000)):
            assert channel_of(cells, site).ask(frame) == reply_to(site, frame)
    assert channel_of(cells, SITES[0]).ask(b"raise once") == reply_to(SITES[0], b"raise once")
    assert service.asked == {SITES[0]: 5, SITES[1]: 3}


@pytest.mark.usefixtures("asks")
def test_strangers_and_what_is_too_long_are_refused(
    cells: dict[str, Any], service: Counting
) -> None:
    service.largest_ask = 3
    for site, words in (
        ("stranger", r"refused an ask of 4 bytes: stranger\.job is not of"),
        (SITES[0], "an ask has 3 bytes at most"),
    ):
        with pytest.raises(RunError, match=words):
            channel_of(cells, site).ask(b"four")
    assert not service.asked


@pytest.mark.usefixtures("asks")
def test_objects_are_no_asks(cells: dict[str, Any], service: Counting) -> None:
    """FLARE would make an object of what says that it is one; a number is no count of bytes."""
    from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey

    for thing in (10**12, {"frame": b"x"}):
        reply = raw_ask(cells, thing, 30.0)
        assert reply.get_header(MessageHeaderKey.RETURN_CODE) == "invalid_request"
        assert "not of bytes" in reply.get_header(MessageHeaderKey.ERROR)
    assert not service.asked


def test_an_ask_without_an_answer_ends_in_one_line(cells: dict[str, Any]) -> None:
    """No service was put at the server's cell: every ask fails at once."""
    with pytest.raises(RunError, match=r"no answer for \d+ seconds .*patience is 0\.2 seconds"):
        channel_of(cells, SITES[0], patience=0.2).ask(b"hello")
    began = time.monotonic()
    with pytest.raises(RunError, match="FLARE ended the job"):
        channel_of(cells, SITES[0], aborted=lambda: time.monotonic() > began + 0.2).ask(b"hello")


def test_all_are_answered_when_all_have_asked(
    cells: dict[str, Any], asks: CellService, service: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who wait hear that they are not forgotten, and the service is not asked again."""
    monkeypatch.setattr(flare_cells, "HOLD", 0.0)
    monkeypatch.setattr(flare_cells, "LOOK", 0.01)
    said: list[bool] = []
    cells[SITES[0]].core_cell.add_incoming_reply_filter(
        CHANNEL, TOPIC, lambda reply: said.append(reply.get_header(NOT_YET, False))
    )
    with asks.open(), ThreadPoolExecutor(1) as pool:
        first = pool.submit(channel_of(cells, SITES[0], patience=0.1).ask, b"together")
        until(lambda: len(said) > 20)
        assert all(said)
        assert channel_of(cells, SITES[1]).ask(b"together") == reply_to(SITES[1], b"together")
        assert first.result(30.0) == reply_to(SITES[0], b"together")
    assert service.asked == dict.fromkeys(SITES, 1)
    with pytest.raises(RunError, match="the run is over"):
        channel_of(cells, SITES[0]).ask(b"more")


def raw_ask(cells: dict[str, Any], frame: object, seconds: float) -> Any:
    """One message of a cell's, and what came back; None if nothing did."""
    from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
    from nvflare.fuel.f3.message import Message

    core = cells[SITES[0]].core_cell
    reply = core.send_request(CHANNEL, TOPIC, "server.job", Message({}, frame), timeout=seconds)
    return None if reply.get_header(MessageHeaderKey.RETURN_CODE) == "timeout" else reply


def test_an_answer_that_comes_between_two_asks_is_kept(
    cells: dict[str, Any], asks: CellService, service: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flare_cells, "HOLD", 0.0)
    waiting = threading.Timer(0.2, asks.say_not_yet)
    waiting.start()
    reply = raw_ask(cells, b"together", 30.0)
    waiting.join()
    assert reply.get_header(NOT_YET)
    assert channel_of(cells, SITES[1]).ask(b"together") == reply_to(SITES[1], b"together")
    assert raw_ask(cells, b"together", 30.0).payload == reply_to(SITES[0], b"together")
    assert service.asked == dict.fromkeys(SITES, 1)


def test_who_asks_anew_or_is_gone_is_not_sent_the_old_answer(
    cells: dict[str, Any], asks: CellService, service: Counting
) -> None:
    channel = channel_of(cells, SITES[0])
    for leaves in (False, True):
        assert raw_ask(cells, b"together", 0.1) is None
        if leaves:
            asks.gone(SITES[0])
            assert service.left == [SITES[0]]
        else:
            assert channel.ask(b"other") == reply_to(SITES[0], b"other")
        service.kept.pop()(b"too late")
        assert channel.ask(b"more") == reply_to(SITES[0], b"more")


# What is wrong is said in a line.


def test_what_is_wrong_with_a_recipe_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    own: dict[str, Any] = {"installed_only": True, "member": Features}
    for config, members, options, words in (
        ("/a.yaml", {}, {}, "members is empty"),
        ("a.yaml", {"site-1": "/b"}, {}, r"config is 'a\.yaml'; write an absolute path"),
        ("/a", {"site-1": "b.yaml"}, {}, r"members\.site-1 is 'b\.yaml'; write an absolute path"),
        ("/a", {"site-1": "/b"}, own, "installed_only is True; leave label_holder"),
    ):
        with pytest.raises(ConfigError, match=words):
            flare.recipe(config, members, **options)

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    for version, words in (
        (lambda name: "2.10.0", r"version 2\.10\.0, and only 2\.9\.x is supported"),
        (missing, r"pip install 'vertizo\[flare\]'"),
    ):
        monkeypatch.setattr(metadata, "version", version)
        with pytest.raises(RunError, match=words):
            flare.recipe("/a.yaml", {"site-1": "/b.yaml"})


def test_a_configuration_is_not_of_a_job(tmp_path: Path) -> None:
    """It may name code, so no job may bring it; a link from outside does not help."""
    (tmp_path / "flare").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "flare")
    assert own_file(str(tmp_path / "a.yaml"), str(tmp_path / "flare")) == tmp_path / "a.yaml"
    for path in ("a.yaml", f"{tmp_path}/flare/job/a.yaml", f"{tmp_path}/link/a.yaml"):
        with pytest.raises(ConfigError, match="an absolute path outside FLARE's workspace"):
            own_file(path, str(tmp_path / "flare"))


def test_clients_and_members_have_the_same_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [SimpleNamespace(name=name, get_fqcn=str) for name in ("site-1", "other")]
    engine = SimpleNamespace(get_clients=lambda: clients)
    facade = SimpleNamespace(
        fl_ctx=SimpleNamespace(get_job_id=lambda: "job", get_engine=lambda: engine),
        workspace=SimpleNamespace(get_root_dir=lambda: str(tmp_path / "flare")),
    )
    monkeypatch.setattr(sites, "collab", facade)
    line = "the job is for other, site-1 and the run for site-1, site-2; a member has the name"
    with pytest.raises(RunError, match=line):
        Label(str(tmp_path / "count.json")).run()


def test_no_vertizo_travels(tmp_path: Path) -> None:
    """A site runs what it has installed, whoever submits the job."""
    for installed_only, name in ((False, "brings"), (True, "installed")):
        made = flare.recipe("/a.yaml", {"site-1": "/b.yaml"}, installed_only=installed_only)
        folder = tmp_path / name
        made.export(str(folder))
        brought = {path.name for path in folder.rglob("*.py")}
        assert brought == (set() if installed_only else {"sites.py"})
        assert not list(folder.rglob("vertizo/network"))
        [config] = folder.glob("vertizo/app_site-1/config/config_fed_client.json")
        paths = {one["path"] for one in json.loads(config.read_text())["components"]}
        assert paths == {"vertizo.ops.flare.sites.Member"}


def test_flare_is_not_imported_before_it_is_needed() -> None:
    text = "import sys, vertizo.ops.flare; print('nvflare' in sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True
    )
    assert answer.stdout == "False\n"


if __name__ == "__main__":
    parts = {"simulate": simulate, "prove_one": prove_one, "prove": prove, "lose": lose}
    parts[sys.argv[1]](Path(sys.argv[2]))
