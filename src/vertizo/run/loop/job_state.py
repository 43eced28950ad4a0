"""Where a run stands and what comes next, from its first round to its end.

The one run loop of simulated and served jobs, as a state machine: a driver makes rounds and
uploads, and this says which evaluation is due on which records, which model is the best, and when
the run is over. Its phases:

=========  ========  ==============================================================================
from       to        when
=========  ========  ==============================================================================
uploading  training  everybody has uploaded the table, where that is wanted (`uploaded`, `begin`)
training   closing   the last round is over, or none asks any more (`stepped`, `close`), early
                     stopping is due (`scored`), or silent members are given up (`give_up`)
closing    done      the last evaluation is scored, and there is no raw head (`_closed`)
closing    fitting   everybody has sent what a raw head is fitted on (`answered`): from here on
                     clients are told that it is over (`is_over`), since fitting takes a time that
                     depends on labels
fitting    done      the head is fitted and scored (`_closed`)
=========  ========  ==============================================================================

Nothing here reads a clock, a file or a socket, so that the same messages in the same order always
lead to the same place: a server that was killed gets there again.

An evaluation asks every client for its embeddings of one partition. Over a network each uploads
them when it next hears of it, and remembers the parameters that it made them with; once all are
there they are scored, with the server's parameters of that moment. So what is scored, all parties
can go back to. In synchronous rounds nobody goes on before it answered; a round that is closed
without somebody drops the evaluation that waits for it. In asynchronous rounds an evaluation that
somebody has not answered by the time the next is due is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConflictError, RefusedError, RunError, WireError
from vertizo.data.vertical import VerticalData
from vertizo.party.checks import Vetted
from vertizo.party.final_head import Chosen
from vertizo.party.metrics import quality
from vertizo.party.server import Replies, ServerParty
from vertizo.privacy.statement import Statement
from vertizo.protocol import wire
from vertizo.protocol.messages import Purpose
from vertizo.run.build.schedule import planned_rounds, rounds_per_epoch, steps_of_client
from vertizo.run.loop.stopping import Stopping

Phase = Literal["uploading", "training", "closing", "fitting", "done"]
STAGES: dict[Phase, str] = {
    "uploading": "the table is uploaded",
    "training": "training",
    "closing": "scoring",
    "fitting": "over; members are told, then the raw head is fitted",
    "done": "over; members are told",
}
"""What a job does in each, for those who watch one that is served."""
Which = Literal["now", "best"]
Row = dict[str, Any]
"""One evaluation's figures."""


@dataclass
class Job:
    """The label holder's side of a run, simulated or served, made and ready to begin."""

    config: ExperimentConfig
    """Complete."""
    data: VerticalData
    party: ServerParty
    statement: Statement
    """What the whole run guarantees."""
    is_charged: bool = False
    """Whether it is charged to a ledger that outlives the process."""

    def __post_init__(self) -> None:
        config, records = self.config, self.data.records
        self.synchronous = config.simulation.timing == "synchronous"
        self.rounds = planned_rounds(config, self.data)
        """Server steps in all."""
        self.queries = steps_of_client(config, records)
        """Of each client, in all."""
        self.rounds_per_epoch = rounds_per_epoch(config, self.data)
        self.evaluate_every = config.evaluate_every or self.rounds_per_epoch
        validates = len(self.data.labels["validation"]) > 0
        self.progress: Purpose = "validation" if validates else "test"
        """The partition that is scored on the way."""


@dataclass
class Evaluations:
    """Which evaluation is under way, and which was the best."""

    clients: int
    number: int = 0
    """Of the one under way, or else of the last."""
    purpose: Purpose | None = None
    """Of the one under way; None between two."""
    model: Which = "now"
    waiting: set[int] = field(default_factory=set)
    """The clients that have not answered it."""
    best: Row | None = None
    """The figures of the best one so far."""

    def begin(self, purpose: Purpose, model: Which = "now") -> None:
        """Start one; what is under way is dropped."""
        self.number += 1
        self.purpose, self.model = purpose, model
        self.waiting = set(range(self.clients))

    @property
    def is_answered(self) -> bool:
        """Whether one is under way that everybody answered: it can be scored."""
        return self.purpose is not None and not self.waiting

    def end(self) -> None:
        """What was under way was scored, or given up."""
        self.purpose, self.waiting = None, set()

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold, beside the embeddings that came."""
        under_way = None if self.purpose is None else [self.purpose, self.model]
        waiting = sorted(self.waiting)
        here = {"number": self.number, "under_way": under_way, "waiting": waiting}
        return here | {"best": self.best}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from ``state``."""
        self.number, self.best = state["number"], state["best"]
        if self.best is not None:
            assert {"number", "validation_loss"} <= self.best.keys(), "as it was scored"
        self.end()
        if state["under_way"] is not None:
            self.purpose, self.model = state["under_way"]
            self.waiting = set(state.get("waiting", range(self.clients)))


class JobState:
    """Where one job stands, whose party is as it was made at first."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.phase: Phase = "uploading"
        self.evaluations = Evaluations(job.party.clients)
        self.last: Row = {}
        """The figures of the last evaluation on the way."""
        self.stopping = Stopping(job.config.early_stopping)
        """Whether nothing gets better any more."""
        self.is_due = False
        """Whether a round is over after which `tend` was not called."""
        self.scores: dict[str, Row | None] = {}
        """Figures of the ``last`` and of the ``best`` parameters on the test records."""
        self._uploading: dict[Purpose, set[int]] = {}
        """Who has yet to upload what before the first query, in order."""
        if job.party.wants_teaching:
            self._uploading["teacher"] = set(self._everybody)
        if job.config.simulation.table == "upload":
            self._uploading["train"] = set(self._everybody)

    # Rounds.

    def begin(self) -> None:
        """Start training, unless something is to be uploaded first."""
        if "teacher" not in self._uploading:
            self.job.party.make_labels()
        if not self._uploading:
            self.job.party.train_between_queries()
            self.start()

    def start(self) -> None:
        """Training begins, and with it an evaluation of the first parameters; or there is none."""
        if not self.job.rounds:
            self.close()
            return
        self.phase = "training"
        self.evaluations.begin(self.job.progress)

    def vet(self, frame: bytes, client: int) -> Vetted | Replies:
        """Find whether a member's query can be taken in; nothing changes.

        Raises as `ServerParty.vet`, and ConflictError if the member has no such query in this job.
        """
        vetted = self.job.party.vet(frame, client)
        if isinstance(vetted, Vetted) and vetted.query.number >= self.job.queries:
            raise ConflictError(
                f"query {vetted.query.number} of client {client}, which has {self.job.queries}"
            )
        return vetted

    def take(self, vetted: Vetted) -> Replies:
        """Take in a query that was vetted, and say what to answer to whom.

        Raises RunError if its answer could not be charged: the job ends here.
        """
        return self._step(lambda: self.job.party.take(vetted))

    def tend(self) -> None:
        """Make the steps that are due, once the answers have left and before anything is asked.

        Raises RunError if a step cannot be charged: the job ends here.
        """
        if not self.is_due:
            return
        try:
            self.job.party.train_between_queries()
        except RefusedError as error:
            raise RunError(f"a step that is due cannot be charged: {error}") from None
        self.is_due = False

    def again(self, frame: bytes) -> Replies:
        """Take in what was taken in before this process began, or raise RunError; the answers."""
        try:
            if not wire.is_upload(frame):
                return self._step(lambda: self.job.party.receive(frame))
            self.job.party.receive_upload(frame)
            return []
        except (WireError, RefusedError) as error:
            raise RunError(f"the journal does not follow from the checkpoint: {error}") from None

    def close_round(self) -> Replies:
        """Answer those who asked in a synchronous round, without the others."""
        self.evaluations.end()  # what is under way waits for them, and is of the round before
        return self._step(self.job.party.close_round)

    def _step(self, take: Callable[[], Replies]) -> Replies:
        before = self.job.party.round
        replies = take()
        if self.job.party.round > before:
            self.stepped()
        return replies

    def stepped(self) -> None:
        """A round is over: begin the evaluation that is due, if one is."""
        job, round_ = self.job, self.job.party.round
        over = round_ >= job.rounds or self.stopping.is_due
        if over or not (job.synchronous or any(map(self._asks, self._everybody))):
            self.close()
        elif round_ % job.evaluate_every == 0:
            self.evaluations.begin(job.progress)
        self.is_due = True

    def close(self) -> None:
        """Training is over: score the last parameters, and then the best."""
        self.phase = "closing"
        self.evaluations.begin(self.job.progress)

    def _asks(self, client: int) -> bool:
        """Whether a client has queries left, in asynchronous rounds."""
        return self.job.party.next_number(client) < self.job.queries

    @property
    def _everybody(self) -> range:
        return range(self.job.party.clients)

    @property
    def is_over(self) -> bool:
        """Whether clients are told that there is nothing more to do."""
        return self.phase in ("fitting", "done")

    # Uploads and evaluations.

    def wants(self, client: int) -> Purpose | None:
        """The partition that a client is to upload now; None for none."""
        return next(iter(self.accepts(client)), None)

    def accepts(self, client: int) -> list[Purpose]:
        """The partitions that a client may upload now, in the order in which they are wanted.

        A server that was restarted wants the first of them again, of clients that are further.
        """
        if self.phase == "uploading":
            return [purpose for purpose, missing in self._uploading.items() if client in missing]
        purpose, waiting = self.evaluations.purpose, self.evaluations.waiting
        return [purpose] if purpose is not None and client in waiting else []

    def completes(self, client: int, purpose: Purpose, number: int) -> bool:
        """Whether all came that the evaluation under way waits for from a client."""
        one = self.evaluations
        waits = (purpose, number) == (one.purpose, one.number) and client in one.waiting
        return waits and self.job.party.has_uploaded(client, purpose)

    def answered(self, client: int) -> None:
        """All came that the evaluation under way waited for from a client."""
        self.evaluations.waiting.discard(client)
        if self.evaluations.is_answered and self.evaluations.purpose == "train":
            self.phase = "fitting"

    def uploaded(self, client: int) -> bool:
        """Note what a client has uploaded whole before the first query; whether training begins.

        It is asked for again where a server that was restarted has not seen all of it.
        """
        for purpose, missing in self._uploading.items():
            if self.job.party.has_uploaded(client, purpose):
                missing.discard(client)
        before = len(self._uploading)
        self._uploading = {p: missing for p, missing in self._uploading.items() if missing}
        if self.phase == "uploading" and len(self._uploading) < before:
            self.begin()
        return self.phase != "uploading"

    def is_best(self, row: Row) -> bool:
        """Whether the evaluation under way, with these figures, is the best of the run so far.

        Only validation records choose, and never the first parameters. Nor does what a head is
        chosen by: those are of a model that was chosen before.
        """
        best = self.evaluations.best
        chooses = self.evaluations.purpose == "validation" and self.job.party.round > 0
        chooses = chooses and "last" not in self.scores
        return chooses and (best is None or quality(row) > quality(best))

    def scored_before(self, row: Row) -> None:
        """An evaluation has the figures that it was given before this process began, or RunError.

        One that is over already has had them.
        """
        one = self.evaluations
        if one.purpose is None or row["number"] != one.number:
            return
        if len(self.job.data.labels[one.purpose]):
            try:
                self.job.party.used(one.purpose)
            except RefusedError as error:
                raise RunError(f"the journal scores what did not come: {error}") from None
        self.scored(row, improved=row["improved"])

    def scored(self, row: Row, *, improved: bool) -> None:
        """The evaluation under way has its figures; what follows from them follows."""
        evaluations = self.evaluations
        purpose, model = evaluations.purpose, evaluations.model
        assert purpose is not None, "an evaluation is under way"
        evaluations.end()
        if improved:
            evaluations.best = row
        if model == "now":
            self.job.party.side.meter.reset()
            self.job.party.staleness.mark()
            self.last = row
        if self.phase == "training" and purpose == "validation" and self.job.party.round:
            self.stopping.hear(row)
            # It closes the run, unless somebody is in the next round already, which then does.
            if self.stopping.is_due and not self.job.party.asked:
                self.phase = "closing"
        if self.phase in ("closing", "fitting"):
            self._closed(purpose, model, row)

    def _closed(self, purpose: Purpose, model: Which, row: Row | None) -> None:
        """One of the closing evaluations is over: the next, or the end."""
        head = self.job.party.head
        if purpose == "validation" and "last" not in self.scores:
            self.evaluations.begin("test")
            return
        if purpose == "validation" and row is not None:  # of the head, which is chosen by it
            self.evaluations.begin("train", model)
            return
        name = "last" if model == "now" else "best"
        name = name if purpose == "test" else "head"
        self.scores[name] = row
        if name == "last" and self.evaluations.best is not None:
            self.evaluations.begin("test", "best")
        elif name != "head" and row is not None and head is not None:
            self.job.party.await_final()
            chooses = isinstance(head, Chosen) and self.job.progress == "validation"
            self.evaluations.begin("validation" if chooses else "train", model)
        else:
            self.phase = "done"

    def give_up(self) -> None:
        """What silent members owe is not waited for: the rest of training, or an evaluation."""
        if self.phase == "training":
            self.close()
        elif self.evaluations.purpose is not None:
            purpose, model = self.evaluations.purpose, self.evaluations.model
            self.evaluations.end()
            self._closed(purpose, model, None)

    def waited_for(self) -> set[int]:
        """The members that must do something before all can go on."""
        if self.phase == "uploading":
            return set().union(*self._uploading.values())
        if self.phase == "closing":
            return set(self.evaluations.waiting)
        if self.is_over:
            return set(self._everybody)
        if self.job.synchronous:
            return set(self._everybody) - set(self.job.party.asked)
        return set(filter(self._asks, self._everybody))

    # Checkpoints.

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold; who uploaded the table is asked again."""
        return {
            "phase": self.phase,
            "parameters": self.job.party.side.model.state(),
            "party": self.job.party.state(),
            "evaluations": self.evaluations.state(),
            "last": self.last,
            "scores": self.scores,
            "stopping": self.stopping.state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from ``state``."""
        self.phase = state["phase"]
        self.job.party.side.model.load(state["parameters"])
        self.job.party.load(state["party"])
        self.evaluations.load(state["evaluations"])
        self.last, self.scores = state["last"], state["scores"]
        self.stopping.load(state.get("stopping", {}))

    def go_on(self, last: Row, best: Row | None) -> None:
        """Go on after the round that the party is at, whose evaluation was scored."""
        self.phase, self.last, self.evaluations.best = "training", last, best
        if self.job.party.round >= self.job.rounds or self.stopping.is_due:
            self.phase = "closing"
            self._closed(self.job.progress, "now", last)
