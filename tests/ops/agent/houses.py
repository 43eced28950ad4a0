"""Agents of three parties in one process, with made-up processes that end when a test says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import Queue
from typing import Any

from vertizo.config.schema import parse
from vertizo.core.errors import RunError
from vertizo.network.serving.job import settings_of
from vertizo.ops.agent import processes
from vertizo.ops.agent.agent import Agent
from vertizo.ops.agent.children import PROCESS, Ended
from vertizo.ops.agent.jobs.messages import Offer
from vertizo.ops.agent.jobs.states import State
from vertizo.ops.agent.jobs.store import Store
from vertizo.ops.agent.label_holder import LabelHolder
from vertizo.ops.agent.member import Member
from vertizo.ops.agent.options import LabelHolderAgent, MemberAgent

HOLDER, MEMBERS = "bank", ("north", "east")
PARTIES = (HOLDER, *MEMBERS)
Sections = Mapping[str, Mapping[str, Any]]
PRIVATE: dict[str, Any] = {"privacy": {"mechanism": "gaussian", "clip": 1.0, "epsilon": 2.0}}


def offer(job: str = "one", kind: Any = "train", **keys: Any) -> Offer:
    """A job of both members on the table `people`."""
    if kind == "train":
        settings = settings_of(parse(PRIVATE), trial=False)
        said = {"settings": settings, "covers": ("labels",), "epsilon": 2.0, "delta": 1e-3}
        keys = {**said, **keys}
    return Offer(**{"job": job, "kind": kind, "members": MEMBERS, "table": "people", **keys})


def finished(store: Store, offered: Offer) -> None:
    """Put a job into a store that has ended well."""
    store.add(offered, "submitted")
    states: tuple[State, ...] = ("offered", "approved", "running", "finished")
    assert all(store.move(offered.job, state) for state in states)


def _file(folder: Path, name: str, agent: Any, table: Any, policy: Any) -> dict[str, Any]:
    own = {"name": "test", "certificates": folder, "folder": folder / name}
    people = {"path": "people.csv", "id": "id", **table}
    return {"agent": {**own, **agent}, "tables": {"people": people}, "policy": policy}


def holder_config(
    folder: Path, name: str = HOLDER, policy: Any = None, **agent: Any
) -> LabelHolderAgent:
    """The label holder's file."""
    agent = {"listen": "127.0.0.1:1", "ports": [21000, 21063], **agent}
    policy = {"peers": list(MEMBERS), **(policy or {})}
    tree = _file(folder, name, agent, {"label": "label"}, policy)
    return LabelHolderAgent.model_validate(tree)


def member_config(folder: Path, name: str, policy: Any = None, **agent: Any) -> MemberAgent:
    """A member's file, which approves what its policy allows."""
    agent, policy = {"server": "127.0.0.1:1", **agent}, {"approve": "automatic", **(policy or {})}
    return MemberAgent.model_validate(_file(folder, name, agent, {}, policy))


class Processes:
    """In place of `Children`: what runs, and how it is to end."""

    def __init__(self) -> None:
        self.running: dict[str, int] = {}
        self.started: list[tuple[str, int, tuple[str, ...]]] = []
        self.lingers = False
        """A process that is asked to end goes on for a while."""
        self._ended: list[Ended] = []
        self._asked: set[str] = set()

    def attempts(self) -> dict[str, int]:
        return dict(self.running)

    def start(self, job: str, attempt: int, folder: Path, words: Sequence[str]) -> None:
        assert job not in self.running, "two processes of one job"
        (folder / PROCESS).touch()
        self.running[job] = attempt
        self.started.append((job, attempt, tuple(words)))

    def stop(self, job: str) -> None:
        self._asked.add(job)
        if not self.lingers:
            self.end(job, 130)

    def end(self, job: str, code: int, line: str = "") -> None:
        """A process ends; the agent hears of it when it next looks."""
        attempt, asked = self.running.pop(job), job in self._asked
        self._asked.discard(job)
        self._ended.append(Ended(job, attempt, code, line, asked))

    def ended(self) -> list[Ended]:
        found, self._ended = self._ended, []
        return found


class Way:
    """A member's channel to the label holder's agent in this process."""

    def __init__(self, houses: Houses, member: str) -> None:
        self._houses, self._member = houses, member

    def ask(self, frame: bytes) -> bytes:
        answers: Queue[bytes] = Queue()
        if self._houses.cut.get(self._member) == "ask":
            raise RunError("the line is cut")
        self._houses.holder.ask(self._member, frame, answers.put)
        if self._houses.cut.get(self._member):
            raise RunError("the line is cut")
        return answers.get_nowait()

    def close(self) -> None:
        pass


class Houses:
    """The agents of all parties, which take turns.

    ``policies`` and ``agents`` are of parties' files: party → keys of the section.
    """

    def __init__(
        self, folder: Path, policies: Sections | None = None, agents: Sections | None = None
    ) -> None:
        policies, agents = policies or {}, agents or {}
        self.configs: dict[str, Any] = {}
        for name in PARTIES:
            config = holder_config if name == HOLDER else member_config
            self.configs[name] = config(folder, name, policies.get(name), **agents.get(name, {}))
        self.agents: dict[str, Agent] = {}
        self.cut: dict[str, str] = {}
        """Member → what is lost: its ask, or the answer."""
        self.said: list[str] = []
        for name in PARTIES:
            self.start(name)

    def start(self, name: str) -> None:
        """Start an agent, or start it again as after its death: its processes are gone too."""
        config = self.configs[name]
        store = Store(config.agent.folder)
        store.create()
        if name == HOLDER:
            self.agents[name] = LabelHolder(config, store, self._notice(name))
        else:
            self.agents[name] = Member(config, name, store, self._notice(name))
        self.agents[name]._children = Processes()  # type: ignore[assignment]
        self.agents[name].take_up()

    def _notice(self, name: str) -> Any:
        return lambda line: self.said.append(f"{name}: {line}")

    @property
    def holder(self) -> LabelHolder:
        found = self.agents[HOLDER]
        assert isinstance(found, LabelHolder)
        return found

    def processes(self, name: str) -> Processes:
        found: Any = self.agents[name]._children
        assert isinstance(found, Processes)
        return found

    def end(self, job: str = "one", code: int = 0) -> None:
        """The processes of a job end, at all parties."""
        for name in PARTIES:
            self.processes(name).end(job, code)

    def submit(self, offered: Offer, ledger: str = "", after: str = "") -> None:
        """As `vertizo submit` does once it has checked the file."""
        store = self.holder.store
        processes.write(store.folder_of(offered.job), {}, [offered.kind])
        store.add(offered, "submitted", ledger, after)

    def report(self, name: str) -> None:
        agent = self.agents[name]
        assert isinstance(agent, Member)
        try:
            agent.report(Way(self, name))
        except RunError as error:
            self.said.append(f"{name}: {error}")

    def turn(self, times: int = 1) -> None:
        """Everybody looks at its jobs, and the members report."""
        for _ in range(times):
            for agent in self.agents.values():
                agent.tick()
            for name in MEMBERS:
                self.report(name)

    def states(self, job: str = "one") -> list[str]:
        """Of a job, at each party; empty where it is not known."""
        found = [agent.store.job(job) for agent in self.agents.values()]
        return ["" if each is None else each.state for each in found]

    def line(self, name: str = HOLDER, job: str = "one") -> str:
        found = self.agents[name].store.job(job)
        assert found is not None
        return found.line

    def running(self, job: str = "one") -> list[int | None]:
        """The attempts of a job's processes, at each party."""
        return [self.processes(name).running.get(job) for name in PARTIES]
