"""Three parties' agents in a folder, for `kills`: files, processes, and what came of jobs."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Self

import yaml
from preloaded import Preloaded, Spawned, mortal

from vertizo.network.transport.authority import issue
from vertizo.ops.agent.children import PROCESS, end_left_over, left_by
from vertizo.ops.agent.jobs.store import Store
from vertizo.ops.agent.options import LabelHolderAgent, load_agent
from vertizo.ops.agent.preparing import submit
from vertizo.ops.scoring import callers
from vertizo.privacy.ledger.base import REPLY, STEP
from vertizo.privacy.ledger.file import LedgerFile
from vertizo.run.results import checkpoint
from vertizo.run.results.folder import RunFolder

PARTIES = ("bank", "north", "east")
MEMBERS = PARTIES[1:]
RECORDS, NEW = 400, 40
JOB_PORTS = 12
ENDED_BADLY = ("failed", "refused", "cancelled", "expired")
COLUMNS = {"bank": ("label",), "north": ("a", "b", "c"), "east": ("d", "e")}
MODELS: dict[str, Any] = {
    "batch_size": 32,
    "client": {
        "model": {"hidden": [8], "outputs": 4},
        "optimizer": {"learning_rate": 1e-3},
    },
    "server": {"model": {"hidden": []}, "optimizer": {"learning_rate": 0.1}},
}
SECRET = {"update": "poisson-dp-sgd", "secret": {"every": 3, "warm_up": 4, "sampling": 0.1}}
FILES: dict[str, dict[str, Any]] = {
    "plain": {**MODELS, "epochs": 60, "simulation": {"timing": "synchronous"}},
    "exact": {
        **MODELS,
        "epochs": 60,
        "server": {**MODELS["server"], **SECRET},
        "privacy": {"mechanism": "gaussian", "clip": 1.0, "epsilon": 2.0, "delta": 1e-3},
    },
}
MACHINE = (
    "seconds",
    "peak_memory_mib",
    "bytes_up",
    "bytes_down",
    "bytes_table",
    "bytes_evaluation",
    "began",
    "finished",
)
"""Figures of the machine and the line: what came twice is counted twice in bytes."""


class Federation:
    """Made in the folder, if it is not there; its agents run while it is entered."""

    def __init__(self, folder: Path, preloaded: Preloaded | None = None) -> None:
        self.folder, self._preloaded = folder, preloaded
        folder.mkdir(parents=True, exist_ok=True)
        self.agents: dict[str, subprocess.Popen[bytes] | Spawned] = {}
        made = folder / "made.json"
        if not made.exists():
            port = free_ports(JOB_PORTS + 2)
            issue(folder / "certs", "bank", list(MEMBERS), ["127.0.0.1"], 30)
            self._write_tables()
            for name in PARTIES:
                self._write(f"{name}.yaml", self._agent(name, port))
            key = callers.add(folder / "callers.yaml", "crm", 1000, 10000)
            made.write_text(json.dumps({"port": port, "key": key}))
        known = json.loads(made.read_text())
        self.http, self.key = known["port"] + 1, known["key"]

    def _write_tables(self) -> None:
        chance = random.Random(0)
        for file, first, count in (("", "P", RECORDS), (".new", "N", NEW)):
            keys = [f"{first}{n:03}" for n in range(count)]
            rows = [[chance.gauss(0, 1) for _ in range(5)] for _ in keys]
            for name, columns in COLUMNS.items():
                place = 0 if name == "north" else 3
                cells = [row[place : place + len(columns)] for row in rows]
                if name == "bank":
                    cells = [[int(sum(row) + chance.gauss(0, 0.5) > 0)] for row in rows]
                # each party has some records that no other has
                own = [*zip(keys, cells, strict=True)]
                own = own[:-10] if name == "bank" else own[10:] if name == "north" else own
                chance.shuffle(own)
                lines = [",".join(map(str, (key, *row))) for key, row in own]
                text = "\n".join([",".join(("id", *columns)), *lines])
                (self.folder / f"{name}{file}.csv").write_text(text)

    def _agent(self, name: str, port: int) -> dict[str, Any]:
        agent: dict[str, Any] = {
            "name": "kills",
            "certificates": f"certs/{name}",
            "folder": f"agents/{name}",
            "parallel": 4,
        }
        people: dict[str, Any] = {"path": f"{name}.csv", "id": "id"}
        policy: dict[str, Any] = {"kinds": ["align", "train", "predict", "score"], "covers": []}
        policy["hashed"] = True
        if name == "bank":
            ports = [port + 2, port + 1 + JOB_PORTS]
            agent |= {"listen": f"127.0.0.1:{port}", "ports": ports}
            people |= {"label": "label", "classes": [0, 1]}
            policy["peers"] = list(MEMBERS)
        else:
            agent["server"] = f"127.0.0.1:{port}"
            policy["approve"] = "automatic"
        tables = {"people": people, "new": {"path": f"{name}.new.csv", "id": "id"}}
        return {"agent": agent, "tables": tables, "policy": policy}

    def _write(self, name: str, tree: Any) -> Path:
        (self.folder / name).write_text(yaml.safe_dump(tree))
        return self.folder / name

    def __enter__(self) -> Self:
        os.environ["XDG_STATE_HOME"] = str(self.folder / "state")
        for name in PARTIES:
            self.store(name).create()
            self.start(name)
        return self

    def __exit__(self, *_: object) -> None:
        for agent in self.agents.values():
            agent.kill()
            agent.wait()
        for name in PARTIES:
            end_left_over(self.folder_of(name, "").glob("*"))

    def start(self, name: str) -> None:
        """Start a party's agent; it dies with this process, whatever becomes of that."""
        with (self.folder / f"{name}.log").open("ab") as log:
            words = ["-m", "vertizo", "agent", str(self.folder / f"{name}.yaml")]
            if self._preloaded is not None:
                self.agents[name] = self._preloaded.spawn(words, log.fileno())
                return
            self.agents[name] = subprocess.Popen(
                [sys.executable, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=mortal,
            )

    def kill_agent(self, name: str) -> None:
        self.agents[name].kill()
        self.agents[name].wait()

    def processes(self, name: str) -> dict[str, int]:
        """Job → its process at a party, of those that live."""
        found = {}
        for folder in self.folder_of(name, "").glob("*"):
            with suppress(OSError, ValueError):
                number = int((folder / PROCESS).read_text())
                if Path(f"/proc/{number}/cwd").readlink() == folder:  # and no later process
                    found[folder.name] = number
        return found

    def kill_process(self, name: str, job: str) -> bool:
        """Kill a job's process at a party; whether there was one."""
        number = self.processes(name).get(job)
        with suppress(ProcessLookupError):
            if number is not None:
                os.kill(number, signal.SIGKILL)
                return True
        return False

    @property
    def new(self) -> list[str]:
        """Records to score, which all members have."""
        return [f"N{n:03}" for n in range(10, NEW)]

    def store(self, name: str) -> Store:
        return Store(self.folder / "agents" / name)

    def folder_of(self, name: str, job: str) -> Path:
        return self.folder / "agents" / name / "jobs" / job

    def submit(
        self,
        job: str,
        kind: str,
        file: str = "",
        table: str = "people",
        planted: bool = False,
        **more: Any,
    ) -> None:
        """As `vertizo submit` does; ``planted`` parties draw the same in every federation."""
        if self.store("bank").job(job) is not None:
            return
        own = {"kind": kind, "name": job, "members": list(MEMBERS), "table": table, **more}
        tree = {"job": own, **FILES.get(file, {})}
        if file == "exact":
            tree["privacy"] = {**tree["privacy"], "ledger": str(self.folder / "people.sqlite")}
        if kind == "score":
            tree["scoring"] = {"http": f"127.0.0.1:{self.http}", "callers": "callers.yaml"}
            tree["scoring"] |= {"cache": 0.0}
        path = self._write(f"{job}.job.yaml", tree)
        config = load_agent(self.folder / "bank.yaml")
        assert isinstance(config, LabelHolderAgent)
        if planted:
            for name in MEMBERS:
                self._plant(name, job)
        submit(path, config, self.store("bank"))
        if planted:
            self._plant("bank", job)

    def _plant(self, name: str, job: str) -> None:
        run = self.folder_of(name, job) / "run"
        run.mkdir(parents=True, exist_ok=True)
        (run / "secret.key").write_bytes(hashlib.sha256(name.encode()).digest())

    def create_ledger(self, runs: int) -> None:
        """That of the aligned people, for so many trainings."""
        if (self.folder / "people.sqlite").exists():
            return
        served = {"name": "kills", "members": list(MEMBERS), "certificates": "certs/bank"}
        data: dict[str, Any] = {"id": "id", "label": "label", "classes": [0, 1]}
        data |= {"name": "table", "path": str(self.folder_of("bank", "ids") / "aligned.csv")}
        tree = {**FILES["exact"], "data": data, "federation": {**served, "folder": "none"}}
        config = self._write("ledger.yaml", tree)
        words = ["privacy", "ledger", "create", str(self.folder / "people.sqlite"), str(config)]
        command = [sys.executable, "-m", "vertizo", *words, "--runs", str(runs)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def states(self) -> dict[str, str]:
        """Job → its state at the label holder; none has ended but well."""
        jobs = self.store("bank").jobs()
        bad = [f"{job.name} is {job.state}: {job.line}" for job in jobs if job.state in ENDED_BADLY]
        assert not bad, bad
        return {job.name: job.state for job in jobs}

    def trainings(self) -> list[str]:
        """States of all jobs that end, at all parties."""
        jobs = [job for name in PARTIES for job in self.store(name).jobs()]
        return [job.state for job in jobs if job.offer.kind != "score"]

    def trace(self) -> list[str]:
        """What all trainings and scores have left so far."""
        return [left_by(path) for path in sorted(self.folder_of("bank", "").glob("*"))]

    def wait(self, there: Callable[[], bool], seconds: float) -> None:
        last = time.monotonic() + seconds
        while not there():
            self.states()
            assert time.monotonic() < last, self.words[-5000:]
            time.sleep(0.2)

    def finish(self, jobs: Sequence[str], seconds: float) -> None:
        """Wait for jobs to end well at all parties."""

        def over() -> bool:
            found = [self.store(name).job(job) for name in PARTIES for job in jobs]
            return all(one is not None and one.state == "finished" for one in found)

        self.wait(over, seconds)

    @property
    def words(self) -> str:
        """What agents and processes said."""
        logs = [*self.folder.glob("*.log"), *self.folder.glob("agents/*/jobs/*/log")]
        return "".join(path.read_text() for path in logs)

    def deaths(self) -> int:
        """Of processes, that their agents noted."""
        events = [e for n in PARTIES for job in self.store(n).jobs() for e in self._events(n, job)]
        return sum("its process ended by signal" in words for _, words in events)

    def _events(self, name: str, job: Any) -> list[tuple[float, str]]:
        return self.store(name).events(job.name)


def free_ports(count: int) -> int:
    """The first of so many ports in a row that nobody listens on, below those that are lent out."""
    chance = random.Random()
    while True:
        first = chance.randrange(15000, 30000)
        with suppress(OSError):
            for port in range(first, first + count):
                with socket.socket() as one:
                    one.bind(("127.0.0.1", port))
            return first


def outcome(federation: Federation, number: int) -> dict[str, Any]:
    """What a training without noise came to: parameters, metrics, summary and predictions."""
    plain = f"plain-{number}"
    run = federation.folder_of("bank", plain) / "run"
    found: dict[str, Any] = {}
    for name in PARTIES:
        place = federation.folder_of(name, plain) / "run" / "checkpoints" / "last.safetensors"
        state = checkpoint.load(place)["state"]
        parameters = (state["course"] if name == "bank" else state)["parameters"]
        found[f"parameters of {name}"] = hashlib.sha256(parameters.numpy().tobytes()).hexdigest()
    found["metrics"] = figures(RunFolder(run).metrics())
    found["summary"] = figures(json.loads((run / "summary.json").read_text()))
    guesses = federation.folder_of("bank", f"guess-{number}") / "predictions.csv"
    found["predictions"] = hashlib.sha256(guesses.read_bytes()).hexdigest()
    return found


def asked(federation: Federation, number: int) -> list[Any]:
    """How much was asked in a training that is charged: queries of each member, and rounds."""
    run = federation.folder_of("bank", f"exact-{number}") / "run"
    summary = json.loads((run / "summary.json").read_text())
    return [summary["queries"], summary["rounds"]]


def figures(tree: Any) -> Any:
    """What metrics and summaries say of the training."""
    if isinstance(tree, list):
        return [figures(each) for each in tree]
    if isinstance(tree, dict):
        return {key: figures(value) for key, value in tree.items() if key not in MACHINE}
    return tree


def exact_rows(federation: Federation) -> dict[str, dict[str, Any]]:
    """Run → what its ledger was charged for: queries by client and number, and secret steps."""
    with closing(LedgerFile(federation.folder / "people.sqlite")) as file:
        rows = [file.row(number) for number in range(1, file.head.sequence + 1)]
    runs: dict[str, dict[str, Any]] = {}
    for row in rows:
        of = runs.setdefault(str(row.run), {"replies": [], "steps": 0})
        if row.kind == REPLY:
            of["replies"].append([row.client, row.number])
        of["steps"] += row.kind == STEP
    for of in runs.values():
        of["replies"].sort()
    return {run: of for run, of in runs.items() if of["replies"] or of["steps"]}
