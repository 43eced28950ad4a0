"""The state machine of a job: where a run stands and what comes next, until its end.

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

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vertizo.config.schema import ExperimentConfig
from vertizo.config.sections.early_stopping import EarlyStopping
from vertizo.core.errors import ConflictError, RefusedError, RunError, WireError
from vertizo.core.state import Stateful
from vertizo.data.vertical import VerticalData
from vertizo.party.checks import Vetted
from vertizo.party.final_head import Chosen
from vertizo.party.metrics import quality
from vertizo.party.server import Replies, ServerParty
from vertizo.party.server_model import ServerModel
from vertizo.privacy.statement import Statement
from vertizo.protocol import wire
from vertizo.protocol.messages import Purpose
from vertizo.run.build.schedule import planned_rounds, rounds_per_epoch, steps_of_client

Phase = Literal["uploading", "training", "closing", "fitting", "done"]
STAGES: dict[Phase, str] = {
    "uploading": "the table is uploaded",
    "training": "training",
    "closing": "scoring",
    "fitting": "over; members are told, then the raw head is fitted",
    "done": "over; members are told",
}
"""Phase → what the job does in it, for those who watch one over a network."""
Which = Literal["now", "best"]
Row = dict[str, Any]
"""One evaluation's figures."""


@dataclass
class Job:
    """The label holder's side of a run, simulated or served, before its first round."""

    config: ExperimentConfig
    """The whole configuration."""
    data: VerticalData
    party: ServerParty
    statement: Statement
    """The privacy statement of the whole run."""
    is_charged: bool = False
    """Whether the run is charged to a ledger that outlives the process."""

    def __post_init__(self) -> None:
        config, records = self.config, self.data.records
        self.synchronous = config.simulation.timing == "synchronous"
        self.rounds = planned_rounds(config, self.data)
        """Rounds (server steps) of the whole run."""
        self.queries = steps_of_client(config, records)
        """Queries of each client over the whole run."""
        self.rounds_per_epoch = rounds_per_epoch(config, self.data)
        self.evaluate_every = config.evaluate_every or self.rounds_per_epoch
        validates = len(self.data.labels["validation"]) > 0
        self.progress: Purpose = "validation" if validates else "test"
        """The partition that evaluations during training score."""


@dataclass
class Stopping(Stateful):
    """Early stopping by validation records: evaluations without improvement, a goal reached."""

    STATE = ("waited", "mark", "reached")

    options: EarlyStopping
    waited: int = 0
    """Evaluations since the last improvement."""
    mark: dict[str, float] = field(default_factory=dict)
    """Validation figures of the last improvement; empty before the first evaluation."""
    reached: bool = False
    """Whether an evaluation has reached the accuracy that is the goal."""

    def hear(self, row: Mapping[str, Any]) -> None:
        """Note the figures of an evaluation on validation records, after the first round."""
        better = not self.mark or quality(row) > quality(self.mark)
        if better and self.mark and self.options.min_delta:  # of a share for classes, else the loss
            gains = [now - best for now, best in zip(quality(row), quality(self.mark), strict=True)]
            better = gains[0 if "validation_accuracy" in row else 1] > self.options.min_delta
        self.waited = 0 if better else self.waited + 1
        if better:
            self.mark = {key: row[key] for key in row if key.startswith("validation_")}
        goal = self.options.accuracy
        self.reached |= goal is not None and row["validation_accuracy"] >= goal

    @property
    def is_due(self) -> bool:
        """Whether training is to end."""
        patience = self.options.patience
        return self.reached or (patience is not None and self.waited >= patience)


@dataclass
class Evaluations(Stateful):
    """The evaluation under way and the best one so far; the party keeps the uploads."""

    STATE = ("number", "purpose", "model", "waiting", "best")

    clients: int
    number: int = 0
    """Number of the current evaluation, or else of the last one."""
    purpose: Purpose | None = None
    """Partition of the current evaluation; None between two."""
    model: Which = "now"
    waiting: set[int] = field(default_factory=set)
    """The clients that have not answered it."""
    best: Row | None = None
    """Figures of the best evaluation so far."""

    def begin(self, purpose: Purpose, model: Which = "now") -> None:
        """Start an evaluation; drop the current one, if there is one."""
        self.number += 1
        self.purpose, self.model = purpose, model
        self.waiting = set(range(self.clients))

    @property
    def is_answered(self) -> bool:
        """Whether every client has answered the current evaluation, so that it can be scored."""
        return self.purpose is not None and not self.waiting

    def end(self) -> None:
        """End the current evaluation: it was scored, or given up."""
        self.purpose, self.waiting = None, set()

    def restored(self) -> None:
        """Refuse a best evaluation that was never scored."""
        if self.best is not None and not {"number", "validation_loss"} <= self.best.keys():
            raise ValueError("the best evaluation has no figures")


class JobState(Stateful):
    """The state machine of one job, whose party has not yet done anything.

    Clients are asked again for a table that was not complete at a checkpoint.
    """

    STATE = ("phase", "parameters", "job.party", "evaluations", "last", "scores", "stopping")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.phase: Phase = "uploading"
        self.evaluations = Evaluations(job.party.clients)
        self.last: Row = {}
        """Figures of the last evaluation during training."""
        self.stopping = Stopping(job.config.early_stopping)
        """Early stopping, by whether evaluations still get better."""
        self.is_due = False
        """Whether a round has ended since `tend` was last called."""
        self.scores: dict[str, Row | None] = {}
        """Figures of the ``last`` and of the ``best`` parameters on the test records."""
        self._uploading: dict[Purpose, set[int]] = {}
        """Partition → clients that have yet to upload it before the first query, in order."""
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
        """Begin training with an evaluation of the first parameters; without rounds, close."""
        if not self.job.rounds:
            self.close()
            return
        self.phase = "training"
        self.evaluations.begin(self.job.progress)

    def vet(self, frame: bytes, client: int) -> Vetted | Replies:
        """Check a member's query without changing anything.

        Raises as `ServerParty.vet`, and ConflictError if the member has no such query in this job.
        """
        vetted = self.job.party.vet(frame, client)
        if isinstance(vetted, Vetted) and vetted.query.number >= self.job.queries:
            raise ConflictError(
                f"query {vetted.query.number} of client {client}, which has {self.job.queries}"
            )
        return vetted

    def take(self, vetted: Vetted) -> Replies:
        """Process a query that `vet` has checked; return the replies, by client.

        Raises RunError if its answer could not be charged: the job ends here.
        """
        return self._step(lambda: self.job.party.take(vetted))

    def tend(self) -> None:
        """Make the server's due steps: after the replies have left, before the next query.

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
        """Process a message of the journal again; return the replies. RunError if refused."""
        try:
            if not wire.is_upload(frame):
                return self._step(lambda: self.job.party.receive(frame))
            self.job.party.receive_upload(frame)
            return []
        except (WireError, RefusedError) as error:
            raise RunError(f"the journal does not follow from the checkpoint: {error}") from None

    def close_round(self) -> Replies:
        """Answer those that have asked in a synchronous round, without the other clients."""
        self.evaluations.end()  # what is under way waits for them, and is of the round before
        return self._step(self.job.party.close_round)

    def _step(self, take: Callable[[], Replies]) -> Replies:
        before = self.job.party.round
        replies = take()
        if self.job.party.round > before:
            self.stepped()
        return replies

    def stepped(self) -> None:
        """End a round: begin the evaluation that is due, or close the run after the last."""
        job, round_ = self.job, self.job.party.round
        over = round_ >= job.rounds or self.stopping.is_due
        if over or not (job.synchronous or any(map(self._asks, self._everybody))):
            self.close()
        elif round_ % job.evaluate_every == 0:
            self.evaluations.begin(job.progress)
        self.is_due = True

    def close(self) -> None:
        """End training: score the last parameters, and then the best."""
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
        """Whether clients are told that the job is over."""
        return self.phase in ("fitting", "done")

    # Uploads and evaluations.

    def wants(self, client: int) -> Purpose | None:
        """The partition that a client has to upload now; None if there is none."""
        return next(iter(self.accepts(client)), None)

    def accepts(self, client: int) -> list[Purpose]:
        """The partitions that a client may upload now, in the order in which they are wanted.

        A restarted server may want the first again, of clients that have uploaded further ones.
        """
        if self.phase == "uploading":
            return [purpose for purpose, missing in self._uploading.items() if client in missing]
        purpose, waiting = self.evaluations.purpose, self.evaluations.waiting
        return [purpose] if purpose is not None and client in waiting else []

    def completes(self, client: int, purpose: Purpose, number: int) -> bool:
        """Whether a client has uploaded everything that this evaluation needs from it."""
        one = self.evaluations
        waits = (purpose, number) == (one.purpose, one.number) and client in one.waiting
        return waits and self.job.party.has_uploaded(client, purpose)

    def answered(self, client: int) -> None:
        """Record that a client finished its upload; once all have, a raw head is to be fitted."""
        self.evaluations.waiting.discard(client)
        if self.evaluations.is_answered and self.evaluations.purpose == "train":
            self.phase = "fitting"

    def uploaded(self, client: int) -> bool:
        """Note a client's complete uploads before the first query; return whether training began.

        A partition that a restarted server has only in part is asked for again.
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

        Only validation records choose, and never the first parameters. Evaluations by which a raw
        head is chosen do not count: their model was chosen before.
        """
        best = self.evaluations.best
        chooses = self.evaluations.purpose == "validation" and self.job.party.round > 0
        chooses = chooses and "last" not in self.scores
        return chooses and (best is None or quality(row) > quality(best))

    def scored_before(self, row: Row) -> None:
        """Give an evaluation the figures that the journal has; RunError if uploads are missing.

        Does nothing if that evaluation is over already.
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
        """Record an evaluation's figures, and go on to the phase that follows from them."""
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
        """End a closing evaluation: begin the next one, or end the job."""
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
        """Stop waiting for silent members: close training, or drop the current evaluation."""
        if self.phase == "training":
            self.close()
        elif self.evaluations.purpose is not None:
            purpose, model = self.evaluations.purpose, self.evaluations.model
            self.evaluations.end()
            self._closed(purpose, model, None)

    def waited_for(self) -> set[int]:
        """The members that the others are waiting for."""
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

    @property
    def parameters(self) -> ServerModel:
        """The server's model, whose state is its parameters."""
        return self.job.party.side.model

    def go_on(self) -> None:
        """Continue after the party's round, whose evaluation ``last`` was scored before."""
        self.phase = "training"
        if self.job.party.round >= self.job.rounds or self.stopping.is_due:
            self.phase = "closing"
            self._closed(self.job.progress, "now", self.last)
