"""Agents as processes: all are killed on the way, and each charge is made once."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import pytest
import yaml
from tests import deployments as dep
from tests import warm
from tests.processes import held_port
from tests.waiting import PATIENT, until

from vertizo.network.transport.authority import issue
from vertizo.ops.agent import children as children_module
from vertizo.ops.agent.children import PROCESS, Children, Ended, end_left_over
from vertizo.ops.agent.jobs.states import AFTER
from vertizo.ops.agent.jobs.store import Store
from vertizo.ops.agent.launch import TAKEN
from vertizo.ops.agent.options import LabelHolderAgent, load_agent
from vertizo.ops.agent.preparing import submit

pytestmark = pytest.mark.full

PARTIES = ("bank", "north")
EXACT: dict[str, Any] = {
    "epochs": 40,
    "batch_size": 8,
    "client": {"model": {"hidden": [8], "outputs": 4}},
    "server": {"model": {"hidden": []}, "update": "none"},
    "privacy": {"mechanism": "gaussian", "clip": 1.0, "epsilon": 2.0, "delta": 1e-3},
}


STRAY = """
import fcntl, os, signal, sys, time
handle = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
fcntl.flock(handle, fcntl.LOCK_EX)
os.ftruncate(handle, 0)
os.write(handle, str(os.getpid()).encode())
signal.signal(signal.SIGTERM, getattr(signal, sys.argv[2]))
print("here", flush=True)
time.sleep(99)
"""


def end_of(children: Children) -> Ended:
    """How the first of some processes ends."""
    found: list[Ended] = []
    assert until(lambda: bool(found.extend(children.ended()) or found), PATIENT)
    return found[0]


def held_ports(count: int) -> list[socket.socket]:
    """Ports one after the other, each as of `held_port`."""
    while True:
        first = held_port()
        held, place = [first], first.getsockname()[1]
        try:
            for number in range(1, count):
                held.append(held_port(place + number))
        except OSError:
            for each in held:
                each.close()
        else:
            return held


class Agents:
    """A label holder's agent and members', whose processes outlive them if they are killed.

    Jobs have ``ports`` ports, one beside the other.
    """

    def __init__(self, folder: Path, members: Sequence[str] = ("north",), ports: int = 1) -> None:
        self.folder, self.parties = folder, ("bank", *members)
        self._held = [held_port(), *held_ports(ports)]
        port, jobs = (each.getsockname()[1] for each in self._held[:2])
        issue(folder / "certs", "bank", members, ["127.0.0.1"], 1)
        rows = [(f"P{n}", n % 2, n % 7, n % 3) for n in range(140)]
        for name in self.parties:
            own, old = ("label", rows[:120]) if name == "bank" else ("x,y", rows[10:130])
            for file, some in ((name, old), (f"{name}.new", rows[130:])):
                cells = [(r[0], *(r[1:2] if name == "bank" else r[2:])) for r in some]
                columns = own if name != "bank" or file == name else ""
                kept = cells if columns else [cell[:1] for cell in cells]
                lines = [",".join(["id", columns]).strip(",")]
                lines += [",".join(map(str, cell)) for cell in kept]
                (folder / f"{file}.csv").write_text("\n".join(lines))
        for name in self.parties:
            agent = {"name": "test", "certificates": f"certs/{name}", "folder": f"agents/{name}"}
            people: dict[str, Any] = {"path": f"{name}.csv", "id": "id"}
            policy: dict[str, Any] = {"approve": "automatic", "hashed": True}
            if name == "bank":
                agent |= {"listen": f"127.0.0.1:{port}", "ports": [jobs, jobs + ports - 1]}  # type: ignore[dict-item]
                people |= {"label": "label", "classes": [0, 1]}
                policy = {"peers": list(members), "hashed": True}
            else:
                agent["server"] = f"127.0.0.1:{port}"
            tables = {"people": people, "new": {"path": f"{name}.new.csv", "id": "id"}}
            tables |= {part: {**people, "path": f"{name}.{part}.csv"} for part in "ab"}
            self._write(f"{name}.yaml", {"agent": agent, "tables": tables, "policy": policy})
        self.environment = {
            **os.environ,
            "XDG_STATE_HOME": str(folder / "state"),
            "OMP_NUM_THREADS": "1",
        }
        self.agents: dict[str, warm.Process] = {}

    def _write(self, name: str, tree: Any) -> Path:
        (self.folder / name).write_text(yaml.safe_dump(tree))
        return self.folder / name

    def __enter__(self) -> Self:
        for name in self.parties:
            self.start(name)
        return self

    def __exit__(self, *_: object) -> None:
        for agent in self.agents.values():
            agent.kill()
            agent.wait(30)
        left = [folder for name in self.parties for folder in self.jobs_of(name)]
        end_left_over(left)
        for held in self._held:
            held.close()

    def jobs_of(self, name: str) -> list[Path]:
        return sorted((self.folder / "agents" / name / "jobs").glob("*"))

    def start(self, name: str) -> None:
        words = ["agent", str(self.folder / f"{name}.yaml")]
        log = self.folder / f"{name}.log"
        self.agents[name] = warm.Process(words, log, self.environment)

    def kill_agent(self, name: str) -> None:
        """Kill it, and start it again; the processes of its jobs stay behind."""
        self.agents[name].kill()
        self.agents[name].wait(30)
        self.start(name)

    def number(self, name: str, job: str) -> int:
        """Of a job's process at a party; ValueError where none has begun."""
        return int((self.folder / "agents" / name / "jobs" / job / PROCESS).read_text())

    def kill_process(self, name: str, job: str) -> bool:
        """Kill a job's process at a party; whether there was one."""
        try:
            number = self.number(name, job)
            words = Path(f"/proc/{number}/cmdline").read_bytes()
            if b"vertizo" in words:
                os.kill(number, signal.SIGKILL)
                return True
        except (OSError, ValueError):
            pass
        return False

    def vertizo(self, *words: str | Path) -> str:
        command = [sys.executable, "-m", "vertizo", *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def submit(self, job: str, kind: str, keys: Any = None, **more: Any) -> None:
        members = list(self.parties[1:])
        own = {"kind": kind, "name": job, "members": members, "table": "people", **more}
        file = self._write(f"{job}.job.yaml", {"job": own, **(keys or {})})
        config = load_agent(self.folder / "bank.yaml")
        assert isinstance(config, LabelHolderAgent)
        submit(file, config, self.store("bank"))

    def store(self, name: str) -> Store:
        return Store(self.folder / "agents" / name)

    def states(self, job: str) -> list[str]:
        found = [self.store(name).job(job) for name in self.parties]
        return ["" if each is None else each.state for each in found]

    def finish(self, job: str) -> None:
        def over() -> bool:
            assert self.states(job)[0] in {*AFTER} - {"failed", "refused", "cancelled", "expired"}
            return self.states(job) == ["finished"] * len(self.parties)

        assert until(over, PATIENT, 0.2), self.words

    def moved(self, seconds: float) -> None:
        """Wait until training was seen to have done something."""
        place = self.folder / "agents" / "bank" / "jobs" / "model" / "run" / "checkpoints"

        def seen() -> dict[str, int]:
            files = place.glob("journal-*.log")
            return {path.name: path.stat().st_size for path in files if path.exists()}

        before = seen()
        until(lambda: seen() != before, seconds, 0.01)

    @property
    def words(self) -> str:
        return "".join((self.folder / f"{name}.log").read_text() for name in self.parties)

    def align_by_hand(self) -> None:
        """Leave the records that both have."""
        for name in PARTIES:
            path = self.folder / f"{name}.csv"
            head, *rows = path.read_text().splitlines()
            path.write_text("\n".join([head, *(rows[10:] if name == "bank" else rows[:110])]))

    def assert_charged_once(self, epochs: int = EXACT["epochs"]) -> None:
        """The job `model` is over, and its ledger has each query of it once."""
        run = self.folder / "agents" / "bank" / "jobs" / "model" / "run"
        queries = json.loads((run / "summary.json").read_text())["queries"]
        charged, _ = dep.charged(run, self.folder / "state" / "vertizo" / "ledgers")
        assert charged == [(0, number) for number in range(queries[0])]
        assert len(charged) == epochs * 10


@pytest.fixture
def agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agents]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with Agents(tmp_path) as agents:
        assert until(lambda: "north is connected" in agents.words, PATIENT), agents.words
        yield agents


def test_training_goes_on_when_agents_and_processes_are_killed(agents: Agents) -> None:
    agents.align_by_hand()
    agents.submit("model", "train", EXACT)
    agents.moved(PATIENT)
    if sys.platform == "linux":  # it ends sooner than the agent where memory runs out
        place = Path(f"/proc/{agents.number('bank', 'model')}/oom_score_adj")
        assert int(place.read_text()) >= 500
    agents.kill_agent("bank")  # whose process stays behind, and is ended by the next agent
    assert agents.kill_process("north", "model")
    agents.finish("model")
    assert "model is taken up again" in agents.words
    assert "Traceback" not in agents.words
    agents.assert_charged_once()


def test_certificates_of_a_new_authority_are_taken_up_while_a_job_runs(agents: Agents) -> None:
    """Those of the old one are worth nothing from then on, and no process was told of it."""
    for turn in ("first", "second"):
        issue(agents.folder / turn, "bank", ["north"], ["127.0.0.1"], 1)
    agents.align_by_hand()
    agents.submit("model", "train", {**EXACT, "epochs": 80})
    agents.moved(PATIENT)
    taken = "a new certificate is in use"
    logs = {name: agents.folder / "agents" / name / "jobs" / "model" / "log" for name in PARTIES}
    for turn, (dies, stays) in {"first": ("north", "bank"), "second": ("bank", "north")}.items():
        for name in PARTIES:
            for file in (agents.folder / turn / name).iterdir():
                file.replace(agents.folder / "certs" / name / file.name)
        # the other one's process goes on, and shows the new certificate to the one that begins
        assert agents.kill_process(dies, "model")
        assert until(lambda log=logs[stays]: taken in log.read_text(), PATIENT), agents.words
    agents.finish("model")
    assert [(agents.folder / f"{name}.log").read_text().count(taken) for name in PARTIES] == [2, 2]
    assert [log.read_text().count(taken) for log in logs.values()] == [1, 1]
    assert "refused" not in agents.words
    agents.assert_charged_once(80)


def test_a_process_that_locks_its_folder_after_its_agent_was_replaced_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next agent had found nobody there, and its own process then finds the folder taken."""
    for handler, late in (("SIG_DFL", False), ("SIG_IGN", True)):
        stray = subprocess.Popen(
            [sys.executable, "-c", STRAY, str(tmp_path / PROCESS), handler],
            stdout=subprocess.PIPE,
        )
        children = Children()
        assert stray.stdout is not None
        assert stray.stdout.readline() == b"here\n"
        children.start("job", 1, tmp_path, ["certs", "--help"])
        assert end_of(children).code == TAKEN
        children.end_stray(tmp_path)
        if late:
            monkeypatch.setattr(children_module, "END_SECONDS", 0.0)
            assert stray.poll() is None
            children.end_stray(tmp_path)
        assert stray.wait(PATIENT) == (-signal.SIGKILL if late else -signal.SIGTERM)
        stray.stdout.close()


@pytest.mark.long
@pytest.mark.full
def test_jobs_of_all_kinds_go_on_whoever_is_killed(agents: Agents) -> None:
    chance, killed = random.Random(1), 0
    agents.submit("ids", "align", method="hashed")
    agents.submit("model", "train", EXACT, alignment="ids")
    agents.submit("scores", "predict", model="model", table="new")
    agents.kill_agent("north")
    agents.finish("ids")
    for deadly in PARTIES * 3:
        agents.moved(20.0)
        killed += agents.kill_process(deadly, "model")
        agents.moved(20.0)
        agents.kill_agent(chance.choice(PARTIES))
    agents.finish("model")
    assert killed >= 3, agents.words
    agents.assert_charged_once()
    agents.kill_agent("bank")
    agents.finish("scores")
    scores = agents.folder / "agents" / "bank" / "jobs" / "scores" / "predictions.csv"
    assert scores.read_text().count("\n") == 11
    assert "Traceback" not in agents.words


@pytest.mark.full
@pytest.mark.parametrize("method", ["one-shot", "dpzv"])
def test_what_follows_from_the_data_is_in_no_offer_before_an_alignment(
    method: str, agents: Agents
) -> None:
    """Epochs and batches of records that are still to be found; the job begins with them."""
    agents.submit("ids", "align", method="hashed")
    given = {key: value for key, value in EXACT.items() if key in ("server", "privacy")}
    tree = {"method": {"name": method}, **(given if method == "dpzv" else {})}
    agents.submit("model", "train", tree, alignment="ids")
    agents.submit("scores", "predict", model="model", table="new")
    agents.finish("scores")
    place = agents.folder / "agents" / "bank" / "jobs"
    summary = json.loads((place / "model" / "run" / "summary.json").read_text())
    epsilon = 0 if method == "one-shot" else 2
    assert summary["metric"] == "auc"
    assert summary["privacy"]["epsilon"] == pytest.approx(epsilon, rel=0.01)
    scores = (place / "scores" / "predictions.csv").read_text()
    assert scores.count("\n") == 11
    offered = agents.store("north").job("model")
    assert offered is not None
    assert offered.offer.epsilon == epsilon
    assert "Traceback" not in agents.words


SWAPS = 4


@pytest.mark.long
def test_two_alignments_end_right_whichever_agent_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs have three ports between them, so that one begins anew where the other was."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    members, chance = ("east", "north"), random.Random(2)
    with Agents(tmp_path, members, ports=3) as agents:
        assert until(
            lambda: all(f"{name} is connected" in agents.words for name in members), PATIENT
        ), agents.words
        for turn in range(SWAPS):
            swap(agents, turn, chance)
        assert "Traceback" not in agents.words


def swap(agents: Agents, turn: int, chance: random.Random) -> None:
    """Two alignments begin, an agent is started again meanwhile, and both have their own records.

    Of other people each, by the tables' rows. A member's agent may be held up at that moment, so
    that its processes knock at ports where their jobs no longer are.
    """
    for job, keep in (("a", slice(0, 60)), ("b", slice(60, 120))):
        for name in agents.parties:
            head, *rows = (agents.folder / f"{name}.csv").read_text().splitlines()
            (agents.folder / f"{name}.{job}.csv").write_text("\n".join([head, *rows[keep]]))
    jobs = [f"{job}-{turn}" for job in "ab"]
    for job in jobs:
        agents.submit(job, "align", method="hashed", table=job[0])
    party, job = chance.choice(agents.parties), chance.choice(jobs)
    begun = agents.folder / "agents" / party / "jobs" / job / PROCESS
    until(lambda: begun.exists() or "finished" in agents.states(job), chance.choice([0.0, PATIENT]))
    time.sleep(chance.uniform(0.0, 3.0))
    name, late = chance.choice(agents.parties), chance.choice(agents.parties[1:])
    if name != late:
        agents.agents[late].send_signal(signal.SIGSTOP)
    if chance.random() < 0.5:
        agents.kill_agent(name)
    else:
        agents.agents[name].send_signal(signal.SIGTERM)
        agents.agents[name].wait(PATIENT)
        agents.start(name)
    time.sleep(chance.uniform(0.0, 6.0))
    agents.agents[late].send_signal(signal.SIGCONT)
    for job in jobs:
        agents.finish(job)
        found = [
            {
                line.split(",")[0]
                for line in (place / job / "aligned.csv").read_text().splitlines()[1:]
            }
            for place in (agents.folder / "agents" / name / "jobs" for name in agents.parties)
        ]
        wanted = range(10, 60) if job[0] == "a" else range(70, 120)
        assert found == [{f"P{n}" for n in wanted}] * len(agents.parties), agents.words


@pytest.mark.long
@pytest.mark.full
def test_an_agent_that_is_asked_to_stop_leaves_no_process(agents: Agents) -> None:
    agents.submit("model", "train", {**EXACT, "epochs": 400}, table="people")
    assert until(lambda: "failed" in agents.states("model"), PATIENT)  # of other people: unaligned
    agents.submit("ids", "align", method="hashed")
    agents.finish("ids")
    agents.submit("long", "train", {**EXACT, "epochs": 400}, alignment="ids")
    place = agents.folder / "agents" / "bank" / "jobs" / "long" / "run" / "checkpoints"
    assert until(lambda: any(place.glob("journal-*.log")), PATIENT), agents.words
    for name in PARTIES:
        agents.agents[name].send_signal(signal.SIGTERM)
        assert agents.agents[name].wait(PATIENT) == 0, agents.words
        assert not agents.kill_process(name, "long")
    assert agents.states("long") == ["running", "running"]
    for name in PARTIES:
        agents.start(name)
    assert until(lambda: agents.words.count("long is taken up again") == 2, PATIENT), agents.words
    agents.vertizo("cancel", "long", "--agent", agents.folder / "bank.yaml")
    assert until(lambda: agents.states("long") == ["cancelled"] * 2, PATIENT), agents.words
    gone = until(lambda: not any(agents.kill_process(n, "long") for n in PARTIES), PATIENT)
    assert gone, agents.words
