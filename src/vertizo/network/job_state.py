"""What a job is at, and what comes next: from when all members are ready to its end.

Members *upload* the table where that is wanted, and *train*; then the result is scored (*closing*)
and all are told (*done*). Nothing here reads a clock, a file or a socket, so that the same messages
in the same order always lead to the same place: a server that was killed gets there again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from vertizo.core.errors import ConflictError, RefusedError, RunError, WireError
from vertizo.network import frames
from vertizo.network.evaluations import Evaluations
from vertizo.network.frames import Done, Go, Keep, Send, Sent
from vertizo.network.job import Job
from vertizo.party.checks import Vetted
from vertizo.party.server import Replies
from vertizo.protocol import wire
from vertizo.protocol.messages import Purpose

Phase = Literal["uploading", "training", "closing", "done"]


class Course:
    """The course of one job.

    Args:
        job: with its party as it was made.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.phase: Phase = "uploading"
        self.evaluations = Evaluations(job.party.clients)
        self.last: dict[str, Any] = {}
        """The figures of the last evaluation."""
        self.is_due = False
        """Whether a round is over after which `tend` was not called."""
        self.scores: dict[str, dict[str, Any] | None] = {}
        """Figures of the last and of the best parameters on the test records."""
        self._uploading = set(range(job.party.clients))

    @property
    def _progress(self) -> Purpose:
        """The partition that is scored on the way."""
        return "validation" if len(self.job.data.labels["validation"]) else "test"

    def begin(self) -> None:
        """Start training, unless the table is to be uploaded first."""
        if self.job.config.simulation.table == "zeros" or not self._uploading:
            self.phase = "training"
            self.job.party.train_between_queries()
            self.evaluations.begin(self._progress)

    def vet(self, frame: bytes, client: int) -> Vetted | Replies:
        """Find whether a member's query can be taken in; nothing changes.

        Raises:
            WireError, RefusedError: as of `vertizo.party.ServerParty.vet`, or it is one more than
                the member has in this job.
        """
        found = self.job.party.vet(frame, client)
        if isinstance(found, Vetted) and found.query.number >= self.job.queries:
            raise ConflictError(
                f"query {found.query.number} of client {client}, which has {self.job.queries}"
            )
        return found

    def take(self, vetted: Vetted) -> Replies:
        """Take in a query that was vetted, and say what to answer to whom.

        Raises:
            RunError: its answer could not be charged; nothing goes on from here.
        """
        return self._step(lambda: self.job.party.take(vetted))

    def tend(self) -> None:
        """Make the steps that are due, once the answers have left and before anything is asked.

        Raises:
            RunError: a step cannot be charged; nothing goes on from here.
        """
        if not self.is_due:
            return
        try:
            self.job.party.train_between_queries()
        except RefusedError as error:
            raise RunError(f"a step that is due cannot be charged: {error}") from None
        self.is_due = False

    def again(self, frame: bytes) -> Replies:
        """Take in what was taken in before this process began; what was answered to whom.

        Raises:
            RunError: it does not follow from the state.
        """
        try:
            if not wire.is_upload(frame):
                return self._step(lambda: self.job.party.receive(frame))
            self.job.party.receive_upload(frame)
            return []
        except (WireError, RefusedError) as error:
            raise RunError(f"the journal does not go on from the checkpoint: {error}") from None

    def wants(self, client: int) -> Purpose | None:
        """The partition that a member is to upload now; None for none."""
        if self.phase == "uploading":
            return "table" if client in self._uploading else None
        return self.evaluations.purpose if client in self.evaluations.waiting else None

    def close_round(self) -> Replies:
        """Answer those who asked in a synchronous round, without the others."""
        self.evaluations.end()  # what is under way waits for them, and is of the round before
        return self._step(self.job.party.close_round)

    def _step(self, take: Callable[[], Replies]) -> Replies:
        job, party = self.job, self.job.party
        before = party.round
        replies = take()
        if party.round == before:
            return replies
        if party.round >= job.rounds or not (job.synchronous or self._unfinished()):
            self._close()
        elif party.round % job.evaluate_every == 0:
            self.evaluations.begin(self._progress)
        self.is_due = True
        return replies

    def _unfinished(self) -> set[int]:
        """Clients that have queries left, in asynchronous rounds."""
        party, queries = self.job.party, self.job.queries
        return {client for client in range(party.clients) if party.next_number(client) < queries}

    def _close(self) -> None:
        """Training is over: score the last parameters, and then the best."""
        self.phase = "closing"
        self.evaluations.begin(self._progress)

    def completes(self, client: int, sent: Sent) -> bool:
        """Whether all came that the evaluation under way waits for from a member."""
        waits = self.evaluations.waits_for(client, sent.purpose, sent.number)
        return waits and self.job.party.has_uploaded(client, sent.purpose)

    def answered(self, client: int) -> None:
        """All came that the evaluation under way waited for from a member."""
        self.evaluations.waiting.discard(client)

    def uploaded(self, client: int) -> bool:
        """Note that a member's part of the table is complete; whether training begins with it.

        It is asked for again where a server that was restarted has not seen all of it.
        """
        if not self.job.party.has_uploaded(client, "table"):
            return False
        self._uploading.discard(client)
        if self.phase == "uploading" and not self._uploading:
            self.begin()
        return self.phase != "uploading"

    def scored(self, row: dict[str, Any]) -> None:
        """The evaluation under way has its figures; what follows from them follows."""
        evaluations = self.evaluations
        if evaluations.purpose is None or row["number"] != evaluations.number:
            return
        purpose, model = evaluations.purpose, evaluations.model
        evaluations.end()
        if row["improved"]:
            evaluations.best = row
        if model == "now":
            self.job.party.side.meter.reset()
            self.job.party.staleness.mark()
            self.last = row
        if self.phase == "closing":
            self._closed(purpose, model, row)

    def _closed(self, purpose: Purpose, model: str, row: dict[str, Any] | None) -> None:
        """One of the closing evaluations is over: the next, or the end."""
        if purpose == "validation":
            self.evaluations.begin("test")
            return
        self.scores["last" if model == "now" else "best"] = row
        if model == "now" and self.evaluations.best is not None:
            self.evaluations.begin("test", "best")
        else:
            self.phase = "done"

    def give_up(self) -> None:
        """What silent members owe is not waited for: the rest of training, or an evaluation."""
        if self.phase == "training":
            self._close()
        elif self.evaluations.purpose is not None:
            purpose, model = self.evaluations.purpose, self.evaluations.model
            self.evaluations.end()
            self._closed(purpose, model, None)

    def waited_for(self) -> set[int]:
        """The members that must do something before all can go on."""
        everybody = set(range(self.job.party.clients))
        if self.phase == "uploading":
            return set(self._uploading)
        if self.phase == "closing":
            return set(self.evaluations.waiting)
        if self.phase == "done":
            return everybody
        if self.job.synchronous:
            return everybody - set(self.job.party.asked)
        return self._unfinished()

    def todos(self, client: int, *, replied: bool = False) -> list[bytes]:
        """What a member is to do next: nothing to wait, or after a reply to go on as it does."""
        job, evaluations = self.job, self.evaluations
        best = None if evaluations.best is None else int(evaluations.best["number"])
        if self.phase == "uploading":
            waits = client in self._uploading
            return [frames.encode(Send("table", 0, "now"))] if waits else []
        if self.phase == "done":
            return [frames.encode(Done(job.statement.words, best))]
        if client in evaluations.waiting and evaluations.purpose is not None:
            send = Send(evaluations.purpose, evaluations.number, evaluations.model)
            keep = [] if best is None else [frames.encode(Keep(best))]
            return [*keep, frames.encode(send)]
        if self.phase == "closing":
            return []
        if job.synchronous:
            return [] if client in job.party.asked else [bytes(job.party.announce(client))]
        going = not replied and client in self._unfinished()
        return [frames.encode(Go())] if going else []

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold; who uploaded the table is asked again."""
        return {
            "phase": self.phase,
            "parameters": self.job.party.side.model.state(),
            "party": self.job.party.state(),
            "evaluations": self.evaluations.state(),
            "last": self.last,
            "scores": self.scores,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from ``state``."""
        self.phase = state["phase"]
        self.job.party.side.model.load(state["parameters"])
        self.job.party.load(state["party"])
        self.evaluations.load(state["evaluations"])
        self.last, self.scores = state["last"], state["scores"]
