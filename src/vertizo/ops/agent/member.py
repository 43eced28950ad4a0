"""A member's agent: it asks the label holder's for jobs, holds them to its policy and runs them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from threading import Event, RLock

from vertizo.core.errors import MalformedError, RefusedError, RunError, VertizoError, WireError
from vertizo.core.text.messages import one_line
from vertizo.network.serving import frames
from vertizo.network.transport.base import Channel
from vertizo.network.transport.certificates import Credentials
from vertizo.network.transport.grpc_channel import GrpcChannel
from vertizo.network.transport.rotation import Rotation
from vertizo.ops.agent import processes
from vertizo.ops.agent.agent import Agent
from vertizo.ops.agent.children import Ended
from vertizo.ops.agent.jobs import messages
from vertizo.ops.agent.jobs.messages import Order, Orders, Rejection, Report, Standing
from vertizo.ops.agent.jobs.states import ENDS, State
from vertizo.ops.agent.jobs.store import Job, Store
from vertizo.ops.agent.options import MemberAgent
from vertizo.ops.agent.policy import check_member

EVERY_SECONDS = 1.0
"""Seconds between two reports."""
AGAIN_SECONDS = 10.0
"""Seconds until it asks again, after a refusal or a long loss of the connection."""
KNOWN_BEFORE = "this party had a job of that name before; submit it under another one"


class Member(Agent):
    """Takes part in jobs of one label holder; ``name`` is that in the party's certificate."""

    def __init__(
        self, config: MemberAgent, name: str, store: Store, notice: Callable[[str], None]
    ) -> None:
        super().__init__(store, notice)
        self.config = config
        self.name = name
        self._lock = RLock()  # between the loop's thread and that of reports
        self._strange: dict[str, str] = {}
        """Job → why it is refused, for jobs that are not kept."""
        self._news = Event()
        self._said = ""

    def serve(self, stopped: Event) -> None:
        """Take up former jobs, then report and run jobs until it is stopped."""
        self.take_up()
        self.notice(f"{self.name} is an agent of {self.config.agent.name}")
        over = Event()
        reports = threading.Thread(target=self._report_on, args=(over,), daemon=True)
        reports.start()
        try:
            self.run(stopped)
        finally:
            over.set()
            self._news.set()
            reports.join(5.0)

    def _report_on(self, over: Event) -> None:
        """Report until ``over``, with a new channel whenever the connection fails."""
        while not over.is_set():
            pause = AGAIN_SECONDS
            try:
                with closing(self._connect()) as channel:
                    threading.Thread(target=_close_when, args=(over, channel), daemon=True).start()
                    shown = channel.credentials
                    while not over.is_set() and channel.credentials == shown:  # else it is renewed
                        self.report(channel)
                        self._news.wait(EVERY_SECONDS)
                        self._news.clear()
                pause = 0.0
            except VertizoError as error:
                if not over.is_set():
                    self._say(f"{error}; trying again every {AGAIN_SECONDS:g} s")
            over.wait(pause)

    def _connect(self) -> GrpcChannel:
        """Open a channel with the certificate in the folder, or with one that replaces it."""
        agent = self.config.agent
        first = Credentials.load(agent.certificates)
        return GrpcChannel(
            agent.server,
            first,
            latest=Rotation(agent.certificates, first, serving=False, tell=self.notice),
            server_name=agent.server_name,
            on_trouble=self._say,
            largest_answer=2 * frames.MAX_BODY,
        )

    def _say(self, line: str) -> None:
        if line != self._said:
            self._said = line
            self.notice(line)

    def report(self, channel: Channel) -> None:
        """Report the states of all jobs, and follow the orders; RunError if refused."""
        agent = self.config.agent
        report = Report(messages.PROTOCOL, agent.name, agent.parallel, self._standings())
        answer = channel.ask(messages.encode(report))
        try:
            orders = messages.decode(answer)
        except WireError as error:
            raise RunError(f"what answers at {agent.server} is no agent's: {error}") from None
        if isinstance(orders, Rejection):
            raise RunError(f"the label holder's agent refused: {orders.words}")
        if not isinstance(orders, Orders):
            raise MalformedError(f"a {type(orders).__name__}, which is no answer to a report")
        with self._lock:
            for order in orders.jobs:
                self._follow(order)

    def _standings(self) -> tuple[Standing, ...]:
        with self._lock:
            found = [self._standing(job) for job in self.store.unclosed()]
            found += [Standing(job, "refused", 0, line) for job, line in self._strange.items()]
        return tuple(found[: messages.MOST_JOBS])

    def _standing(self, job: Job) -> Standing:
        line = job.reason if self.config.policy.tell else "its own log says why"
        if job.state == "running" and job.outcome in ("failed", "broken"):
            return Standing(job.name, job.outcome, job.attempt, line[:500])  # type: ignore[arg-type]
        if job.state == "running":
            return Standing(job.name, "finished" if job.outcome else "running", job.attempt, "")
        if job.state == "approved" or job.state == "refused":
            return Standing(job.name, job.state, job.attempt, job.line[:500])
        return Standing(job.name, "finished" if job.is_over else "offered", job.attempt, "")

    def _follow(self, order: Order) -> None:
        """Bring one job in line with its state at the label holder."""
        job = self.store.job(order.job)
        if job is None or (job.closed and order.offer is not None):
            self._hear(order, job)
            return
        if order.state in ENDS:
            self._strange.pop(order.job, None)
            if not job.is_over:
                self._end(job, order.state, job.reason or one_line(order.line))
            self.store.close(job.name)
        elif order.state == "running" and job.state in ("approved", "running"):
            newer = order.attempt > job.attempt or order.port != job.port
            if job.state == "approved" or newer:
                self.store.assign(job.name, order.port, order.attempt)
                if self.store.move(job.name, "running"):
                    self.notice(f"{job.name} begins")

    def _end(self, job: Job, state: State, line: str) -> None:
        if state == "finished" and job.outcome != "finished":
            state, line = "failed", "finished at the label holder, and not here"
        self.store.move(job.name, state, line)
        self.notice(f"{job.name} is {state}{': ' if line else ''}{line}")

    def _hear(self, order: Order, known: Job | None) -> None:
        """Take in an order about a job that is new here: keep its offer, or refuse it."""
        offer = order.offer
        if order.state in ENDS:
            self._strange.pop(order.job, None)
        elif known is not None:
            self._strange[order.job] = KNOWN_BEFORE
        elif len(self.store.unclosed()) >= messages.MOST_JOBS:
            self.notice(f"{order.job} is not looked at: there are {messages.MOST_JOBS} open jobs")
        elif offer is not None and offer.job == order.job:
            self.store.add(offer, "submitted")
            self.notice(f"{offer.job} is offered: {offer.kind} on {offer.table}")

    def consider(self, jobs: Sequence[Job]) -> None:
        """Judge submitted jobs, and offered ones that the policy approves."""
        automatic = self.config.policy.approve == "automatic"
        for job in jobs:  # offered: an agent was killed before it could approve
            if job.state == "submitted" or (automatic and job.state == "offered"):
                self._judge(job)

    def _judge(self, job: Job) -> None:
        """Refuse what the policy does not allow; approve the rest, or leave it to a person."""
        try:
            check_member(job.offer, self.config, self.store, self.name)
        except RefusedError as error:
            if self.store.move(job.name, "refused", str(error)):
                self.notice(f"{job.name} is refused: {error}")
        else:
            self.store.move(job.name, "offered")
            if self.config.policy.approve == "automatic":
                self.store.move(job.name, "approved", "by the policy")
                self.notice(f"{job.name} is approved by the policy")
            else:
                self.notice(f"{job.name} waits for `vertizo approve {job.name}`")
        self._news.set()

    def words_of(self, job: Job, folder: Path) -> list[str]:
        """The command of a job's process, written when it begins and not changed after that."""
        words = processes.words_of(folder)
        if words is None:
            tree, words = processes.as_member(self.config, job.offer, self.store)
            processes.write(folder, tree, words)
        host = self.config.agent.server.rpartition(":")[0]
        return processes.started_as(words, "server", f"{host}:{job.port}", job)

    def _note_end(self, ended: Ended) -> None:
        super()._note_end(ended)
        self._news.set()


def _close_when(over: Event, channel: GrpcChannel) -> None:
    over.wait()
    channel.close()
