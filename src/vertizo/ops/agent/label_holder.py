"""The label holder's agent: it offers jobs to members' agents, starts them and sees them end.

Members' agents ask it once a second; see `messages`. What they say is in the store before they are
answered. The states of a job are in `states`.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event, RLock

from msgspec.structs import replace

from vertizo.core.errors import ConfigError, MalformedError, WireError
from vertizo.core.text.messages import one_line
from vertizo.network.serving import frames
from vertizo.network.transport.base import Answer
from vertizo.network.transport.certificates import Credentials
from vertizo.network.transport.grpc import GrpcServer
from vertizo.network.transport.rotation import Rotation
from vertizo.ops.agent import processes
from vertizo.ops.agent.agent import LASTING, TOGETHER, Agent
from vertizo.ops.agent.children import holder
from vertizo.ops.agent.jobs import messages
from vertizo.ops.agent.jobs.messages import Order, Orders, Rejection, Report, Standing
from vertizo.ops.agent.jobs.states import ENDS, State
from vertizo.ops.agent.jobs.store import HEARD_SECONDS, Job, Store
from vertizo.ops.agent.options import LabelHolderAgent

GRACE_SECONDS = 10.0
"""Seconds for members to end after the label holder's process; then it is started again."""
RATE = 10.0
"""Most reports of one member that are read in a second."""
TOLD = {
    "failed": "a process of another party failed",
    "refused": "another member refused",
    "expired": "a member did not answer, or was silent, for too long",
    "cancelled": "the label holder cancelled it",
}
"""State → what members hear of that end: the label holder's own lines may depend on labels,
another member's lines on that member's table."""
EARLIER = "a job that it comes after has not finished"
"""What members hear if a job ends because an earlier job did."""
COMES_AFTER = ", which it comes after, is "
NO_AGENT = "an agent listens here, which runs jobs of agents; `vertizo join` needs `vertizo serve`"


class LabelHolder(Agent):
    """Offers and runs the jobs of one label holder, and answers members' agents (a `Service`)."""

    largest_ask = 2 * frames.MAX_BODY

    def __init__(
        self, config: LabelHolderAgent, store: Store, notice: Callable[[str], None]
    ) -> None:
        super().__init__(store, notice)
        self.config = config
        self.members = tuple(config.policy.peers)
        self._lock = RLock()  # between the network's thread and the loop's
        self._began = time.monotonic()
        self._heard: dict[str, float] = {}
        self._noted: dict[str, float] = {}
        """Member → when the store last noted that it was heard."""
        self._parallel: dict[str, int] = {}
        self._rejected: dict[str, str] = {}
        self._offered: dict[str, tuple[float, float]] = {}
        """Job → seconds that former agents offered it, and since when this one does."""
        self._over_since: dict[str, float] = {}
        """Job → when this party's process ended well."""

    def serve(self, stopped: Event) -> None:
        """Listen and run jobs until it is stopped; RunError or ConfigError if it cannot listen."""
        agent = self.config.agent
        credentials = Credentials.load(agent.certificates)
        latest = Rotation(agent.certificates, credentials, serving=True, tell=self.notice)
        with GrpcServer(
            self, listen=agent.listen, credentials=credentials, rate=RATE, latest=latest
        ) as net:
            self.take_up()
            place = f"{self._host}:{net.port}"
            self.notice(f"{credentials.name} is the agent of {agent.name} at {place}")
            self.run(stopped)

    # What members' agents ask.

    def ask(self, member: str, frame: bytes, answer: Answer) -> None:
        """Answer a member's report with orders, at once."""
        if frame[:2] == frames.MAGIC:
            answer(frames.encode(frames.Refusal(NO_AGENT)))
            return
        try:
            report = messages.decode(frame)
            if not isinstance(report, Report):
                raise MalformedError(f"a {type(report).__name__}, which is no report")
            words = self._unfit(report)
        except WireError as error:
            words = str(error)
        if words:
            if self._rejected.get(member) != words:
                self._rejected[member] = words
                self.store.hear(member, one_line(words))
                self.notice(f"{member} was refused: {words}")
            answer(messages.encode(Rejection(one_line(words))))
            return
        assert isinstance(report, Report)
        with self._lock:
            orders = self._take(member, report)
        answer(messages.encode(orders))

    def gone(self, member: str) -> None:
        """Do nothing: a lost connection shows as silence."""

    def _unfit(self, report: Report) -> str:
        """The reason why a report is not accepted; empty if it is."""
        if report.protocol != messages.PROTOCOL:
            return (
                f"protocol {report.protocol} of agents; the label holder speaks "
                f"{messages.PROTOCOL}: install the same version of vertizo"
            )
        if report.federation != self.config.agent.name:
            ours = self.config.agent.name
            return f"agent.name is {report.federation!r}; the label holder's is {ours!r}"
        return ""

    def _take(self, member: str, report: Report) -> Orders:
        now, last = time.monotonic(), self._noted.get(member)
        if member not in self._heard:
            self.notice(f"{member} is connected")
        if last is None or now - last > HEARD_SECONDS or member in self._rejected:
            self._noted[member] = now
            self._rejected.pop(member, None)
            self.store.hear(member)
        self._heard[member] = now
        self._parallel[member] = report.parallel
        said = {each.job: each for each in report.jobs}
        orders: list[Order] = []
        for job in self.store.open_jobs():
            if member not in job.offer.members:
                continue
            known = said.pop(job.name, None)
            if known is not None:
                standing = replace(known, line=one_line(known.line))
                if self.store.stand(member, standing):
                    self.notice(f"{job.name}: {member}: {standing.words}")
            if job.state != "submitted" and len(orders) < messages.MOST_JOBS:
                offer = job.offer if known is None else None
                orders.append(Order(job.name, job.state, "", job.port, job.attempt, offer))
        for name in said:
            over = self.store.job(name)
            if over is None or member not in over.offer.members:
                line = "the label holder's agent does not know this job"
                orders.append(Order(name, "failed", line, 0, 0))
            elif over.is_over:
                line = EARLIER if COMES_AFTER in over.line else TOLD.get(over.state, "")
                orders.append(Order(name, over.state, line, over.port, over.attempt))
        return Orders(tuple(orders))

    # What becomes of jobs.

    def consider(self, jobs: Sequence[Job]) -> None:
        """Change the states of jobs by what members have said and the time that has passed."""
        with self._lock:
            for job in jobs:
                standings = self.store.standings(job.name)
                refused = next((m for m, s in standings.items() if s.state == "refused"), None)
                if self._ends_with_an_earlier(job):
                    continue
                if refused is not None:
                    self._end(job, "refused", f"{refused}: {standings[refused].line}")
                elif job.state == "submitted":
                    self.store.move(job.name, "offered")
                    self._waited(job)
                    self.notice(f"{job.name} is offered to {', '.join(job.offer.members)}")
                elif job.state == "offered":
                    self._consider_offered(job, standings)
                elif job.state == "approved":
                    self._consider_approved(job)
                else:
                    self._consider_running(job, standings)

    def _consider_offered(self, job: Job, standings: Mapping[str, Standing]) -> None:
        approving = {m for m, s in standings.items() if s.state not in ("offered", "refused")}
        missing = [member for member in job.offer.members if member not in approving]
        if not missing:
            self.store.move(job.name, "approved")
        elif self._waited(job) > self.config.agent.deadline:
            known = self.store.whereabouts(job)
            whys = "; ".join(f"{member} {known[member]}" for member in missing)
            self._end(job, "expired", f"not approved in {self.config.agent.deadline:g} s: {whys}")

    def _ends_with_an_earlier(self, job: Job) -> bool:
        """End a job if one that it comes after did not end well; return whether it ended."""
        if job.state == "running":
            return False
        for name, state in self.store.unfinished(job):
            if state is None or state in ENDS:
                state = state or "failed"
                self._end(job, state, f"{name}{COMES_AFTER}{state}")
                return True
        return False

    def _waited(self, job: Job) -> float:
        """Seconds that a job was offered while an agent ran, by the monotonic clock."""
        now = time.monotonic()
        before, since = self._offered.setdefault(job.name, (job.waited, now))
        waited = before + now - since
        if waited - job.waited > HEARD_SECONDS:
            self.store.wait(job.name, waited)
        return waited

    def _consider_approved(self, job: Job) -> None:
        if self._is_expired(job) or self.store.unfinished(job):
            return
        if job.offer.kind not in LASTING and not self._has_place(job):
            return
        if port := self._free_port():
            self.store.assign(job.name, port, job.attempt)
            self.store.move(job.name, "running")
            self.notice(f"{job.name} begins at port {port}")

    def _running(self) -> list[Job]:
        return [job for job in self.store.open_jobs() if job.state == "running"]

    def _has_place(self, job: Job) -> bool:
        """Whether the job may begin beside those that run."""
        running = self._running()
        if job.ledger and any(each.ledger == job.ledger for each in running):
            return False  # which one process at a time has
        counted = [each for each in running if each.offer.kind not in LASTING]
        if len(counted) >= self.config.agent.parallel:
            return False
        for member in job.offer.members:
            busy = sum(member in each.offer.members for each in counted)
            if busy >= self._parallel.get(member, 0):
                return False  # one that waits for a member's turn would hold up others
        return True

    def _free_port(self) -> int:
        """The free port whose last use is longest ago; 0 if there is none.

        A member that has not yet heard of a job's end may still connect to its port, and would
        wait there.
        """
        first, last = self.config.agent.ports
        used = {port: order for order, port in enumerate(self.store.used_ports(), 1)}
        free = set(range(first, last + 1)) - {job.port for job in self._running()}
        for port in sorted(free, key=lambda port: (used.get(port, 0), port)):
            if _can_listen(self._host, port):
                self.store.use_port(port)
                return port
        return 0

    def _consider_running(self, job: Job, standings: Mapping[str, Standing]) -> None:
        here = {m: s for m, s in standings.items() if s.attempt == job.attempt}
        failed = next((m for m, s in here.items() if s.state == "failed"), None)
        done = {m for m, s in here.items() if s.state == "finished"}
        if failed is not None:
            self._end(job, "failed", f"{failed}: {here[failed].line}")
        elif job.outcome == "failed":
            self._end(job, "failed", job.reason)
        elif job.outcome == "broken":
            self._begin_anew(job)
        elif broken := next((m for m, s in here.items() if s.state == "broken"), None):
            self.store.conclude(job.name, job.attempt, "broken", f"{broken}: {here[broken].line}")
        elif done == set(job.offer.members) and (job.outcome or self._has_ended(job)):
            self._end(job, "finished", "")
        elif not self._is_expired(job) and job.outcome == "finished":
            self._wait_for_members(job)

    def _begin_anew(self, job: Job) -> None:
        """Begin the next attempt, once no process of this party has the job's folder.

        It gets another port if there is one, since processes of two attempts must not meet: one
        would be refused by the other, which ends the job, or be done before others have begun.
        """
        if job.name in self._children.attempts():
            return  # it was asked to end
        if holder(self.store.folder_of(job.name)):
            self._end_stray(job)
            return
        port = self._free_port() or job.port
        self.store.note(job.name, f"attempt {job.attempt + 1} begins at port {port}")
        self.store.assign(job.name, port, job.attempt + 1)

    def _has_ended(self, job: Job) -> bool:
        """Whether training is over here, though its process was killed before it could exit."""
        summary = self.store.folder_of(job.name) / "run" / "summary.json"
        return job.offer.kind == "train" and summary.is_file()

    def _wait_for_members(self, job: Job) -> None:
        """Start the process again for members that were away when it ended, after a while."""
        since = self._over_since.setdefault(job.name, time.monotonic())
        if time.monotonic() - since > GRACE_SECONDS:
            del self._over_since[job.name]
            if job.offer.kind in TOGETHER:
                self._begin_anew(job)
            else:  # it says to each member that comes that the job is over
                self.store.conclude(job.name, job.attempt, "")

    def _is_expired(self, job: Job) -> bool:
        """End a job if a member is silent for too long; return whether it ended."""
        if job.state == "running" and job.offer.kind in LASTING:
            return False
        now, most = time.monotonic(), self.config.agent.silence
        for member in job.offer.members:
            silent = now - self._heard.get(member, self._began)
            if silent > most:
                self._end(job, "expired", f"{member}: its agent is silent for {silent:.0f} s")
                return True
        return False

    def _end(self, job: Job, state: State, line: str) -> None:
        if self.store.move(job.name, state, line):
            self._over_since.pop(job.name, None)
            self._offered.pop(job.name, None)
            self.notice(f"{job.name} is {state}{': ' if line else ''}{line}")

    def _start(self, job: Job) -> None:
        """Start a job's process; if its port was taken meanwhile, assign another port instead."""
        with self._lock:
            if not _can_listen(self._host, job.port):
                if port := self._free_port():  # members' processes begin anew with the attempt
                    self.store.note(job.name, f"port {job.port} is in use; goes on at {port}")
                    self.store.assign(job.name, port, job.attempt + 1)
                return
        super()._start(job)

    @property
    def _host(self) -> str:
        return self.config.agent.listen.rpartition(":")[0]

    def words_of(self, job: Job, folder: Path) -> list[str]:
        """The command of a job's process, by `vertizo submit`, with address and attempt."""
        words = processes.words_of(folder)
        if words is None:
            raise ConfigError(f"{folder} lacks {processes.COMMAND}, which `vertizo submit` wrote")
        return processes.started_as(words, "listen", f"{self._host}:{job.port}", job)


def _can_listen(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host.strip("[]"), port))
            trial.listen()
        except OSError:
            return False
    return True
