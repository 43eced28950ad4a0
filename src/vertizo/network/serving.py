"""The label holder's side of a job: a service that members ask.

It holds the server party, keeps what it needs to go on on disk, and knows nothing of sockets: who
asks, the transport vouches for. Everything happens inside one lock, one ask at a time. Before a
query is acted on it is in the journal; before a reply leaves, the ledger has charged it. So the
process may be killed at any moment and started again: it computes the state that it had, to the
last bit, and whoever had not got an answer asks again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event, RLock
from typing import Self

import numpy as np

from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import (
    Interrupted,
    MalformedError,
    OtherRoundError,
    RefusedError,
    RunError,
    WireError,
)
from vertizo.network import frames
from vertizo.network.archive import CLOSE, GIVEN_UP, QUERY, SENT, UPLOAD, Archive
from vertizo.network.frames import Hello, Next, Noted, Ready, Refusal, Sent
from vertizo.network.job import choice_seed, settings_of
from vertizo.network.job_state import Course
from vertizo.network.limits import LARGEST_DIM, check_size
from vertizo.network.liveness import Silence
from vertizo.network.options import ServeConfig
from vertizo.network.report import evaluation_row, scored
from vertizo.network.terms import check_hello
from vertizo.network.transport import Answer, Rest
from vertizo.party.checks import Vetted
from vertizo.party.server import Replies
from vertizo.protocol import wire
from vertizo.run.simulator import UPLOAD_BYTES, Traffic

TOLD = 10
"""Refusals of one member that people are told of one by one."""
UNKNOWN = "the label holder does not know this member's party; join again"


class FederationService:
    """Serves one job, from its beginning or from where its folder says it was.

    Args:
        config: of the label holder.
        notice: takes a line about what people should know, such as who is waited for.

    Raises:
        UserError: on entering, where the job cannot be served.
    """

    def __init__(self, config: ServeConfig, notice: Callable[[str], None] = lambda line: None):
        served = config.federation
        self.members = tuple(served.members)
        self.finished = Event()
        """Whether the job is over and every member was told, as far as they are there."""
        self.failure: Exception | None = None
        """What made the service stop answering, if something did."""
        self._served = served
        self._notice = notice
        self._archive = Archive(config.experiment(), served)
        self._lock = RLock()
        self._pending: dict[int, Answer] = {}
        self._told: set[int] = set()
        self._refused = [0] * len(self.members)
        self._silence = Silence(self.members, served.patience, time.monotonic())

    def __enter__(self) -> Self:
        try:
            self._archive.open()
            self._score()
        except BaseException:
            self._archive.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *error: object) -> None:
        with self._lock:
            clean = kind is None or issubclass(kind, Interrupted)
            if clean:
                self.tend()
            clean = clean and self.failure is None
            if clean and self.course is not None and self.course.phase != "done":
                self._archive.save()  # a restart has less to do
            self._pending.clear()
            self._archive.close()

    @property
    def config(self) -> ExperimentConfig:
        """Of the run; complete once the service is entered."""
        return self._archive.config

    @property
    def course(self) -> Course | None:
        """Where the job is; None until all members were ready."""
        return self._archive.course

    @property
    def traffic(self) -> Traffic:
        """Bytes that came and went."""
        return self._archive.traffic

    # What members ask.

    @property
    def largest_ask(self) -> int:
        """As of a `vertizo.network.transport.Service`."""
        if self.course is None:
            batch = self.config.method.points * self.config.batch_size
            return min(wire.MAX_BODY, 4 * LARGEST_DIM * batch + 2 * UPLOAD_BYTES)
        return max(self.course.job.party.largest_frame, 2 * UPLOAD_BYTES)

    @property
    def _course(self) -> Course:
        """The course of the job, which is under way.

        Raises:
            RefusedError: it is not.
        """
        if self.course is None:
            raise RefusedError(UNKNOWN)
        return self.course

    def ask(self, member: str, frame: bytes, answer: Answer) -> Rest | None:
        """As of a `vertizo.network.transport.Service`; a step that is due is its rest."""
        with self._lock:
            client = self.members.index(member)
            if self.failure is None:
                self._pending[client] = answer
            self._work(lambda: self._take(client, frame), client)
            return self.tend if self.course is not None and self.course.is_due else None

    def tend(self) -> None:
        """Make the step that is due, if one is."""
        with self._lock:
            self._work(lambda: None)

    def _work(self, work: Callable[[], None], client: int = -1) -> None:
        """Make what is due, and then do something; not after a failure."""
        if self.failure is not None:
            return
        started = time.perf_counter()
        try:
            with np.errstate(all="ignore"):  # overflow is dealt with where it matters
                self._archive.tend()
                work()
        except (WireError, RefusedError) as error:
            self._refuse(client, str(error))
        except Exception as error:  # whatever it is, nothing goes on from a state in between
            self._fail(error)
        except BaseException:
            self._fail(RunError("an ask was broken off"))
            raise
        self._archive.seconds += time.perf_counter() - started

    def gone(self, member: str) -> None:
        """As of a `vertizo.network.transport.Service`."""
        with self._lock:
            self._pending.pop(self.members.index(member), None)

    def missing(self) -> list[str]:
        """Members that are waited for before the job can begin."""
        ready = zip(self.members, self._archive.ready, strict=True)
        return [member for member, one in ready if one is None]

    def _refuse(self, client: int, words: str) -> None:
        """Tell a member why not, and people, though not each time for a flood of it."""
        self._refused[client] += 1
        if self._refused[client] <= TOLD or self._refused[client] % 1000 == 0:
            times = "" if self._refused[client] <= TOLD else f", {self._refused[client]:,} times"
            self._notice(f"{self.members[client]} was refused{times}: {words}")
        self._answer(client, frames.encode(Refusal(words)))

    def _progress(self, client: int) -> None:
        """A member did something that the job needs; saying something is not enough."""
        if self._silence.heard(client, time.monotonic()):
            self._notice(f"{self.members[client]} is back")

    def _fail(self, error: Exception) -> None:
        """Stop answering: what happened must be seen to first."""
        self.failure = error
        self._pending.clear()

    def _take(self, client: int, frame: bytes) -> None:
        if frames.is_party_frame(frame):
            if wire.is_upload(frame):
                self._upload(client, frame)
            else:
                self._query(client, frame)
            return
        ask = frames.decode(frame)
        if isinstance(ask, Hello):
            self._greet(client, ask)
            return
        if not isinstance(ask, Ready | Next | Sent):
            raise MalformedError(f"a {type(ask).__name__}, which is no ask")
        if ask.job != self._archive.run:
            raise RefusedError(
                f"the label holder serves another job than the one {self.members[client]} is in; "
                "name a new federation.folder to take part in it"
            )
        if isinstance(ask, Ready):
            self._gather(client, ask)
        elif isinstance(ask, Sent):
            self._sent(client, ask)
        self._offer(client)

    def _greet(self, client: int, hello: Hello) -> None:
        check_hello(hello, self._served.name)
        terms = frames.Terms(
            job=self._archive.run,
            index=client,
            members=self.members,
            settings=settings_of(self.config, trial=self._served.trial),
            own_tables=self.config.data.name == "table",
            choice=choice_seed(self.config, trial=self._served.trial),
            shared=self._archive.root.child("shared", client).key,
            trial=self._served.trial,
        )
        self._answer(client, frames.encode(terms))

    def _gather(self, client: int, ready: Ready) -> None:
        """A member's party is made; the last one's begins the job."""
        known, records = self._archive.ready[client], self._archive.records
        if self.course is not None:
            if known != ready:
                raise RefusedError("the party is another one than when the job began")
            return
        member = self.members[client]
        records.check_same(member, ready)
        others = [one.embedding_dim for one in self._archive.ready if one is not None]
        check_size(member, ready.embedding_dim, sum(others), sum(records.counts))
        self._progress(client)
        self._archive.ready[client] = ready
        if not self.missing():
            self._archive.begin().begin()
            self._archive.save()
            self._offer_all()

    def _upload(self, client: int, frame: bytes) -> None:
        course = self._course
        wanted = course.wants(client)
        if wanted is None and course.phase == "uploading":
            raise RefusedError("this member's part of the table is there already")
        if wanted is None:  # a piece of an evaluation that was dropped
            self._answer(client, frames.encode(Noted()))
            return
        if course.job.party.receive_upload(frame, client, wanted):
            self._progress(client)
        if course.phase == "uploading":
            self.traffic.table += len(frame)
        else:
            self.traffic.evaluation += len(frame)
            self._archive.append(UPLOAD, frame)
            self._archive.worked(0.0)
        self._answer(client, frames.encode(Noted()))

    def _sent(self, client: int, sent: Sent) -> None:
        course = self._course
        if course.completes(client, sent):
            self._archive.append(SENT, b"%d" % client)
            course.answered(client)
            self._score()
        elif course.phase == "uploading" and course.uploaded(client):
            self._archive.save()
        self._offer_all()

    def _query(self, client: int, frame: bytes) -> None:
        course, party = self._course, self._course.job.party
        self.traffic.up += len(frame)
        if course.phase != "training":
            found = party.vet(frame, client)
            self._deliver([] if isinstance(found, Vetted) else found)
            self._offer(client)
            return
        started = time.perf_counter()
        try:
            found = course.vet(frame, client)
        except OtherRoundError:
            self._offer(client)  # its round went on without it; here is the next
            return
        if isinstance(found, Vetted):
            self._archive.append(QUERY, frame)
            self._progress(client)
            found = course.take(found)
        self._deliver(found)
        self._after(started)

    # What they are answered.

    def _answer(self, client: int, answer: bytes) -> None:
        take = self._pending.pop(client, None)
        if take is not None:
            take(answer)

    def _deliver(self, replies: Replies) -> None:
        for client, reply in replies:
            self.traffic.down += len(reply)
            if client in self._pending:
                todos = self._course.todos(client, replied=True)
                self._answer(client, b"".join([bytes(reply), *todos]))

    def _offer(self, client: int) -> None:
        """Answer a member that waits for something to do, if there is something."""
        course = self.course
        if client not in self._pending or course is None or client in course.job.party.asked:
            return
        todos = course.todos(client)
        if todos:
            self._answer(client, b"".join(todos))
        if course.phase == "done":
            self._told.add(client)
            if len(self._told) == len(self.members):
                self.finished.set()

    def _offer_all(self) -> None:
        for client in list(self._pending):
            self._offer(client)

    def _after(self, started: float) -> None:
        """After an answer: offer what is new, and keep what was worked out if it is much."""
        self._offer_all()
        self._archive.worked(time.perf_counter() - started)

    # Evaluations.

    def _score(self) -> None:
        """Score the evaluation under way, if all of its embeddings are there."""
        if self.course is None or not self.course.evaluations.is_answered:
            return
        course, archive = self._course, self._archive
        found, now = scored(course, archive.best_parameters)
        row = evaluation_row(course, archive.traffic, archive.seconds, found)
        archive.scored(course, row, now)

    # Silence.

    def tick(self) -> None:
        """Look after members that are silent; for the driver to call about once a second.

        Raises:
            Exception: what made the service stop answering.
        """
        with self._lock:
            self.tend()
            if self.failure is not None:
                raise self.failure
            waited_for = self._waited_for()
            silent = self._silence.among(waited_for, time.monotonic())
            going_on = self._served.absent == "go-on" and self.course is not None
            new = self._silence.name(silent)
            if new:
                what = "going on without" if going_on else "waiting for"
                self._notice(f"silent for {self._served.patience:g} s: {new}; {what} them")
            if self.course is not None and self.course.phase == "done":
                if silent:
                    self.finished.set()  # they are told when the job is served again
            elif silent and silent == waited_for and going_on:  # the others are slow, and there
                self._without()

    def _waited_for(self) -> set[int]:
        """The members whose silence holds the others up."""
        if self.course is None:
            return {self.members.index(member) for member in self.missing()}
        waited_for = self.course.waited_for() - self._told
        if self.course.phase != "training":
            return waited_for
        if self.course.job.synchronous:
            return waited_for if self.course.job.party.asked else set()
        return waited_for if all(self._silence.is_long(c) for c in waited_for) else set()

    def _without(self) -> None:
        """Go on without those who are silent."""
        course, started = self._course, time.perf_counter()
        if course.phase == "uploading":
            return  # there is no table without them
        if course.phase == "training" and course.job.synchronous:
            self._archive.append(CLOSE, b"")
            self._deliver(course.close_round())
        else:
            self._archive.append(GIVEN_UP, b"")
            course.give_up()
            self._archive.end_if_done()
        self._after(started)
