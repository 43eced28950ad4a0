"""The label holder's side of a job: a service that members ask.

It holds the server party, keeps on disk what a restart needs, and knows nothing of sockets: the
transport vouches for who asks. Everything happens inside one lock, one ask at a time. A process
that is killed and started again computes the same state, and members without an answer ask again.

The phases of a job are those of `vertizo.run.loop.job_state`; before and after them, the service:

=========  =========  ============================================================================
from       to         when
=========  =========  ============================================================================
gathering  uploading  every member is ready (`_gather`)
uploading  fitting    (or done) as in `job_state`, by queries (`_query`), uploads (`_sent`), and
                      silent members that are given up (`tick`)
fitting    done       `finished` is set, since all members were told or some are silent (`tick`);
                      then the raw head is fitted and scored (`conclude`)
done       ended      `finished` is set, since all members were told (`_offer`) or some are silent
any        failed     anything but a refusal went wrong (`_fail`): nothing is answered any more
=========  =========  ============================================================================
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Self

import numpy as np

from vertizo.core.errors import (
    Interrupted,
    MalformedError,
    OtherRoundError,
    RefusedError,
    RunError,
    WireError,
)
from vertizo.core.text.messages import Alarm
from vertizo.network.serving import frames
from vertizo.network.serving.archive import CLOSE, GIVEN_UP, QUERY, SENT, UPLOAD, Archive
from vertizo.network.serving.frames import Done, Go, Hello, Keep, Next, Noted, Ready, Send, Sent
from vertizo.network.serving.job import choice_seed, settings_of
from vertizo.network.serving.options import ServeConfig
from vertizo.network.serving.service import MemberService
from vertizo.network.serving.terms import LARGEST_DIM, check_size
from vertizo.network.transport.base import Answer, Rest
from vertizo.party.checks import Vetted
from vertizo.party.server import Replies
from vertizo.privacy.epsilon_text import bound_text
from vertizo.protocol import wire
from vertizo.protocol.messages import WirePurpose
from vertizo.run.loop.job_state import STAGES, JobState
from vertizo.run.loop.traffic import UPLOAD_BYTES, Traffic
from vertizo.run.results.summary_figures import metric_text, size_text


class FederationService(MemberService):
    """Serves one job, from its beginning or from the state in its folder.

    ``notice`` takes a line for people. Entering raises a UserError if it cannot be served.
    """

    def __init__(self, config: ServeConfig, notice: Callable[[str], None] = lambda line: None):
        super().__init__(config.federation, notice)
        self.failure: Exception | None = None
        """The error that made the service stop answering; None if there was none."""
        self._served = config.federation
        self._archive = Archive(config.experiment(), self._served)

    def __enter__(self) -> Self:
        try:
            self._archive.open()
            self.run = self._archive.run
            self._archive.score()
            if (phase := self.state and self.state.phase) == "fitting":
                self._told |= self._archive.told
            elif phase == "done":
                self._was_over()
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
            if clean and self.state is not None and self.state.phase != "done":
                self._archive.save()  # a restart has less to do
            self._pending.clear()
            self._archive.close()

    @property
    def state(self) -> JobState | None:
        """The state of the job; None until all members are ready."""
        return self._archive.state

    @property
    def traffic(self) -> Traffic:
        """Bytes so far, in all processes that served the job."""
        return self._archive.traffic

    @property
    def _state(self) -> JobState:
        """The state of the job, once it has begun; RefusedError before."""
        if self.state is None:
            raise RefusedError("the label holder does not know this member's party; join again")
        return self.state

    def missing(self) -> list[str]:
        """Members whose party is not ready yet, before the job begins."""
        return [m for m, one in zip(self.members, self._archive.ready, strict=True) if one is None]

    def stage(self) -> str:
        """The job's stage in a few words, for a log."""
        if self.state is None:
            return f"waiting for {', '.join(self.missing())}"
        return STAGES[self.state.phase]

    def progress(self) -> tuple[float, str]:
        """The share of rounds that are done, from 0 to 1, and the words beside the bar."""
        state, traffic = self.state, self._archive.traffic
        if state is None:
            return 0.0, self.stage()
        if state.phase == "uploading":
            return 0.0, f"table: {size_text(traffic.table)}"
        job, party = state.job, state.job.party
        parts = [f"{party.round:,} of {job.rounds:,} rounds"]
        meter = party.side.meter.read()
        if meter.records:
            parts.append(f"loss {meter.loss / meter.records:.3f}")
        if (metric := metric_text(state.last)) is not None:
            parts.append(metric)
        parts.append(size_text(traffic.up + traffic.down))
        epsilon = job.statement.epsilon
        parts.append("no ε" if epsilon is None else f"ε {bound_text(epsilon, 3)}")
        if state.phase != "training":
            parts.append(state.phase)
        return party.round / max(job.rounds, 1), " · ".join(parts)

    # What members ask.

    @property
    def largest_ask(self) -> int:
        """Most bytes of an ask that could make sense; larger ones need not be read."""
        if self.state is None:
            config = self._archive.config
            batch = config.method.points * config.batch_size
            return min(wire.MAX_BODY, 4 * LARGEST_DIM * batch + 2 * UPLOAD_BYTES)
        return max(self.state.job.party.largest_frame, 2 * UPLOAD_BYTES)

    def ask(self, member: str, frame: bytes, answer: Answer) -> Rest | None:
        """Take in an ask; return `tend` if a step is due, to be made once answers have left."""
        with self._lock:
            client = self.members.index(member)
            if self.failure is None:
                self._pending[client] = answer
            self._work(lambda: self._take(client, frame), client)
            return self.tend if self.state is not None and self.state.is_due else None

    def tend(self) -> None:
        """Make the server's steps that are due, if there are some."""
        with self._lock:
            self._work(lambda: None)

    def _work(self, work: Callable[[], None], client: int = -1) -> None:
        """Make steps that are due, then do some work for an ask; does nothing after a failure."""
        if self.failure is not None:
            return
        started = time.perf_counter()
        try:
            with np.errstate(all="ignore"):  # overflow is dealt with where it matters
                self._archive.tend()
                work()
        except (WireError, RefusedError) as error:
            self._refuse(client, str(error))
        except Exception as error:  # whatever it is, nothing resumes from a state in between
            self._fail(error)
        except BaseException:
            self._fail(RunError("an ask was broken off"))
            raise
        self._archive.seconds += time.perf_counter() - started

    def _fail(self, error: Exception) -> None:
        """Stop answering, since nothing may go on from a state in between."""
        self.failure = error
        self._pending.clear()

    def _progressed(self, client: int) -> None:
        """Note that a member did something the job needs; an ask alone does not count."""
        if self._hear(client):
            self._notice(f"{self.members[client]} is back")

    def _take(self, client: int, frame: bytes) -> None:
        if frames.is_party_frame(frame):
            (self._upload if wire.is_upload(frame) else self._query)(client, frame)
            return
        ask = frames.decode(frame)
        if isinstance(ask, Hello):
            self._greet(client, ask)
            return
        if not isinstance(ask, Ready | Next | Sent):
            raise MalformedError(f"a {type(ask).__name__}, which is no ask")
        if ask.job != self.run:
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
        self._meet(client, hello)
        config, trial = self._archive.config, self._served.trial
        terms = frames.Terms(
            job=self.run,
            index=client,
            members=self.members,
            settings=settings_of(config, trial=trial, told=self._archive.records.told),
            own_tables=config.data.name == "table",
            choice=choice_seed(config, trial=trial),
            shared=self._archive.root.child("shared", client).key,
            trial=trial,
        )
        self._answer(client, terms)

    def _gather(self, client: int, ready: Ready) -> None:
        """Note that a member's party is ready; the last one begins the job."""
        archive = self._archive
        if self.state is not None:
            if archive.ready[client] != ready:
                raise RefusedError("the party is another one than when the job began")
            return
        member = self.members[client]
        archive.records.check_same(member, ready)
        others = [one.embedding_dim for one in archive.ready if one is not None]
        check_size(member, ready.embedding_dim, sum(others), sum(archive.records.counts))
        self._progressed(client)
        archive.ready[client] = ready
        if not self.missing():
            archive.begin().begin()
            archive.save()
            self._offer_all()

    def _upload(self, client: int, frame: bytes) -> None:
        state, traffic = self._state, self._archive.traffic
        wanted = state.accepts(client)
        if not wanted and state.phase == "uploading":
            raise RefusedError("this member's part of the table is there already")
        if wanted:  # or else it is a piece of an evaluation that was dropped
            if state.job.party.receive_upload(frame, client, wanted):
                self._progressed(client)
            if state.phase == "uploading":
                traffic.table += len(frame)
            else:
                traffic.evaluation += len(frame)
                self._archive.append(UPLOAD, frame)
                self._archive.worked(0.0)
        self._answer(client, Noted())

    def _sent(self, client: int, sent: Sent) -> None:
        state = self._state
        if state.completes(client, sent.purpose.own, sent.number):
            self._archive.append(SENT, b"%d" % client)
            state.answered(client)
            self._archive.score()
        elif state.phase == "uploading" and state.uploaded(client):
            self._archive.save()
        self._offer_all()

    def _query(self, client: int, frame: bytes) -> None:
        state, party = self._state, self._state.job.party
        self._archive.traffic.up += len(frame)
        if state.phase != "training":
            known = party.vet(frame, client)
            self._deliver([] if isinstance(known, Vetted) else known)
            self._offer(client)
            return
        started = time.perf_counter()
        try:
            query = state.vet(frame, client)
        except OtherRoundError:
            self._offer(client)  # its round went on without it; here is the next
            return
        if isinstance(query, Vetted):
            self._archive.append(QUERY, frame)
            self._progressed(client)
            query = state.take(query)
        self._deliver(query)
        self._after(started, moved=bool(query))

    # What they are answered.

    def _deliver(self, replies: Replies) -> None:
        for client, reply in replies:
            self._archive.traffic.down += len(reply)
            if client in self._pending:
                self._answer(client, bytes(reply), *self._todos(client, replied=True))

    def _todos(self, client: int, *, replied: bool = False) -> list[frames.Frame | bytes]:
        """The frames that say what a member does next; none: wait, or after a reply go on."""
        state, evaluations = self._state, self._state.evaluations
        job, best = state.job, None if evaluations.best is None else evaluations.best["number"]
        if state.is_over:
            return [Done(job.statement.words, best)]
        wanted = state.wants(client)
        if wanted is not None and state.phase == "uploading":
            return [Send(WirePurpose[wanted], 0, "now")]
        if wanted is not None:
            send = Send(WirePurpose[wanted], evaluations.number, evaluations.model)
            return [send] if best is None else [Keep(best), send]
        if state.phase != "training":
            return []
        if job.synchronous:
            return [] if client in job.party.asked else [bytes(job.party.announce(client))]
        return [Go()] if not replied and client in state.waited_for() else []

    def _offer(self, client: int) -> None:
        """Answer a member that waits for something to do, if there is something."""
        state = self.state
        if client not in self._pending or state is None or client in state.job.party.asked:
            return
        if todos := self._todos(client):
            self._answer(client, *todos)
        if state.phase == "fitting":
            self._archive.tell(client)
        if state.is_over:
            self._tell_end(client, done=state.phase == "done")

    def _after(self, started: float, *, moved: bool = True) -> None:
        """Offer members what is new, and save a checkpoint if much work would be repeated."""
        if moved:  # of a query that only waits for its round, nothing follows
            self._offer_all()
        self._archive.worked(time.perf_counter() - started)

    # Silent members.

    def tick(self) -> None:
        """Name silent members, or go on without them; the driver calls this every second.

        Raises the error that made the service stop answering, if there was one.
        """
        with self._lock:
            self.tend()
            if self.failure is not None:
                raise self.failure
            waited_for = self._waited_for()
            silent, new = self._silent(waited_for)
            going_on = self._served.absent == "go-on" and self.state is not None
            if new:
                what = "going on without" if going_on else "waiting for"
                self._notice(Alarm(f"silent for {self._patience:g} s: {new}; {what} them"))
            if self.state is not None and self.state.is_over:
                if silent or self._all_told:  # the silent are told when the job is served again
                    self.finished.set()
            elif silent and silent == waited_for and going_on:  # the others are slow, and there
                self._without()

    def conclude(self) -> None:
        """Fit and score the raw head of a job that is over, if it has one; raises as `tick`.

        The driver calls this once no member can ask: an ask would wait for a time that depends on
        labels.
        """
        with self._lock:
            if self.finished.is_set():
                self._work(lambda: self._archive.score(told=True))
            if self.failure is not None:
                raise self.failure

    def _waited_for(self) -> set[int]:
        """The members whose silence holds up the others."""
        if self.state is None:
            return {self.members.index(member) for member in self.missing()}
        waited_for = self.state.waited_for() - self._told
        if self.state.phase != "training":
            return waited_for
        if self.state.job.synchronous:
            return waited_for if self.state.job.party.asked else set()
        return waited_for if all(map(self._is_long_silent, waited_for)) else set()

    def _without(self) -> None:
        """Go on without silent members: close the round, or give them up; not in uploads."""
        state, started = self._state, time.perf_counter()
        if state.phase == "uploading":
            return  # there is no table without them
        if state.phase == "training" and state.job.synchronous:
            self._archive.append(CLOSE, b"")
            self._deliver(state.close_round())
        else:
            self._archive.append(GIVEN_UP, b"")
            state.give_up()
            self._archive.end_if_done()
        self._after(started)
