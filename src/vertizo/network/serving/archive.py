"""The archive: a label holder's job on disk, from which it resumes.

A checkpoint has the whole state; a journal has what came after it: each query, each piece of an
evaluation's embeddings, and each evaluation's figures. From the two, a process that was killed
computes the same state again, noise included: the key of the noise is kept with the checkpoint, and
each checkpoint takes a new key.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np

from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import NonFiniteError, RunError
from vertizo.core.randomness import Stream
from vertizo.models.base import copied
from vertizo.network.serving import frames
from vertizo.network.serving.frames import Ready
from vertizo.network.serving.job import check_free, open_job, records_of
from vertizo.network.serving.options import ServeOptions
from vertizo.network.serving.store import Store, root_of
from vertizo.run.build.data_defaults import complete
from vertizo.run.loop import evaluation
from vertizo.run.loop.job_state import JobState, Row
from vertizo.run.loop.traffic import Traffic
from vertizo.run.results import checkpoint
from vertizo.run.results.folder import RunFolder

QUERY, CLOSE, SCORED, GIVEN_UP, UPLOAD, SENT, TOLD = range(7)
"""Kinds of the journal's records; `UPLOAD` and `SENT` belong to evaluations."""
STATE = "course"
"""Key of the `JobState` in checkpoints."""


class KeyedBytes:
    """A source of bytes that nobody without the key can foresee: AES-256 in counter mode.

    A killed server makes the same noise again, so that nothing is released a second time with other
    noise; and since each checkpoint takes a new key, none is used for two courses of events.

    >>> source = KeyedBytes(bytes(32))
    >>> first = source(5)
    >>> source.rekey(bytes(32))
    >>> source(5) == first
    True
    """

    name = "AES-256 with a key from the operating system"

    def __init__(self, key: bytes) -> None:
        self.rekey(key)

    def rekey(self, key: bytes) -> None:
        """Start again with a key of 32 bytes."""
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        self._stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def __call__(self, count: int) -> bytes:
        """The next ``count`` bytes of the key's stream."""
        return self._stream.update(bytes(count))


class Archive:
    """The folder of one job; opened once, by one process at a time."""

    def __init__(self, config: ExperimentConfig, served: ServeOptions) -> None:
        self.config = config
        self.state: JobState | None = None
        """The state of the job; None until all members are ready."""
        self.ready: list[Ready | None] = [None] * len(served.members)
        """What each member said of its party when it was ready; None before."""
        self.told: set[int] = set()
        """Members that were told that the job is over while a raw head is still to be fitted."""
        self.seconds = 0.0
        """Seconds spent on asks, in all processes that served the job."""
        self.traffic = Traffic()
        self._served = served
        self._folder = RunFolder(served.folder)
        self._agreed = self._folder.path / "federation.json"
        self._store = Store(served.folder, sync=served.sync)
        self._exit = ExitStack()
        self._bytes = KeyedBytes(os.urandom(32))

    def open(self) -> None:
        """Begin a job, or resume the one in the folder; UserError if neither can be."""
        folder, served = self._folder, self._served
        known = (folder.path / "config.yaml").is_file()
        if not known:
            folder.check_is_new()
        self.records = records_of(self.config, served)
        self.config = complete(self.config, self.records.data)
        if not known:
            check_free(self.config, self.records.data, trial=served.trial)
        folder.make()
        with checkpoint.writing(folder.path):
            folder.path.chmod(0o700)  # its figures are of labels as well
        self._exit.enter_context(folder.locked())
        if known:
            self._check_same()
        else:
            checkpoint.keep(self._agreed, self._agreement())
            folder.create(self.config, None, self.records.data.preparation)
        self.run = folder.run_name()
        self.root = Stream.from_seed(self.config.seed) if served.trial else root_of(folder.path)
        loaded = self._store.load()
        if loaded is not None:  # until then, the table may be aligned anew
            if changed := folder.changed_files(self.config):
                raise RunError(
                    f"federation.folder {folder.path} holds a job that began with another "
                    f"{changed[0]} (its SHA-256 is another one now); bring that table back, or "
                    "begin a new job"
                )
            self._resume(*loaded)

    def close(self) -> None:
        """Close all files."""
        self._store.close()
        self._exit.close()

    def _check_same(self) -> None:
        place = f"federation.folder {self._folder.path}"
        if not self._folder.is_of(self.config):
            raise RunError(
                f"{place} holds a job of another configuration; "
                "name another folder, or serve the configuration that is in it"
            )
        kept = self._folder.preparation()
        if kept is not None and not kept.agrees_with(self.records.data.preparation):
            raise RunError(
                f"{place} holds a job on other records than {self.records.data.name} has now: "
                "columns or what they are scaled by have changed; bring them back, or begin a new "
                "job"
            )
        if checkpoint.kept(self._agreed) != self._agreement():
            raise RunError(
                f"{place} holds a job of other members, in another order, or of another name: "
                f"{self._agreed.name} in it has them"
            )

    def _agreement(self) -> bytes:
        """Name, members and trial of the federation as JSON, which may not change during a job."""
        keys = ("name", "members", "trial")
        return json.dumps({key: getattr(self._served, key) for key in keys}, indent=1).encode()

    def begin(self) -> JobState:
        """Make the label holder's party, once all members are ready.

        RunError if the ledger has replies of this job but its checkpoint is gone: those replies,
        and steps on secret samples before them, cannot be made again without another charge.
        """
        is_new = not self._store.exists
        made = open_job(
            self.config,
            self.records,
            [one for one in self.ready if one is not None],
            self.root,
            self._bytes,
            folder=self._folder.path,
            is_new=is_new,
            run=self.run,
            trial=self._served.trial,
        )
        job = self._exit.enter_context(made)
        plan = job.party.side.plan
        if is_new and any(plan.answered(at) is not None for at in range(job.party.clients)):
            raise RunError(
                f"{self._folder.path}: the ledger has replies of this job, and its checkpoint is "
                "gone; put the folder back as it was last, or begin a new job in another folder"
            )
        self._store.sync = self._store.sync or job.is_charged
        self.state = JobState(job)
        return self.state

    def _resume(self, kept: Any, journal: Iterator[tuple[int, bytes]]) -> None:
        """Compute the state of the last process again, from checkpoint and journal."""
        with self._store.going_on():
            for client, frame in enumerate(kept["ready"]):
                self.ready[client] = frames.expect(frame, Ready)
        state = self.begin()
        with self._store.going_on():
            self._bytes.rekey(kept["key"])
            state.load(kept[STATE])
            self.traffic, self.seconds = Traffic(**kept["traffic"]), float(kept["seconds"])
            self.told = set(kept.get("told", ()))
        if state.phase == "uploading":  # what it waited for may have come, and be kept
            state.begin()
        with np.errstate(all="ignore"):
            for kind, body in journal:
                self._again(state, kind, body)
            state.tend()
        self._folder.metrics(at_least=kept.get("rows", 0))
        self._check_ledger(state)
        state.job.party.resume_answered()
        self._promote(state)
        if state.phase == "done":
            self.end_if_done()
        else:
            self.save()

    def _check_ledger(self, state: JobState) -> None:
        """Raise RunError in synchronous rounds if the ledger has answers that the journal lacks.

        A job with a ledger has each query on the disk before it is charged: then somebody has put
        back an older checkpoint or journal.
        """
        party = state.job.party
        for client in range(party.clients):
            stored = party.side.plan.answered(client)
            ahead = stored is not None and stored.number >= party.next_number(client)
            if ahead and state.job.synchronous:
                raise RunError(
                    f"{self._folder.path}: the ledger has answers that the journal lacks, so that "
                    "this is an older state; put the newest one back, or begin a new job"
                )

    def _again(self, state: JobState, kind: int, body: bytes) -> None:
        state.tend()
        if kind == QUERY:
            self.traffic.up += len(body)
            self.traffic.down += sum(len(reply) for _, reply in state.again(body))
        elif kind == CLOSE:
            self.traffic.down += sum(len(reply) for _, reply in state.close_round())
        elif kind == UPLOAD:
            self.traffic.evaluation += len(body)
            state.again(body)
        elif kind == SENT:
            state.answered(int(body))
        elif kind == GIVEN_UP:
            state.give_up()
        elif kind == TOLD:
            self.told.add(int(body))
        else:
            row = json.loads(body)
            state.scored_before(row)
            if all(row["number"] != known.get("number") for known in self._folder.metrics()):
                self._folder.append_metrics(row)

    def save(self) -> None:
        """Write a checkpoint; from here on, noise is drawn with a new key, after a restart too."""
        state, key = self.state, os.urandom(32)
        assert state is not None, "a job that began"
        self._folder.sync_metrics()
        self._store.save(
            {
                "ready": [frames.encode(one) for one in self.ready if one is not None],
                "key": key,
                STATE: state.state(),
                "traffic": vars(self.traffic),
                "seconds": self.seconds,
                "told": sorted(self.told),
                "rows": self._folder.rows,
            }
        )
        self._bytes.rekey(key)
        state.job.party.renew()

    def worked(self, seconds: float) -> None:
        """Count work that a restart would repeat, and write a checkpoint if it is much.

        A checkpoint is of a round that is over, so none is written while a step is due.
        """
        if self._store.worked(seconds) and not (self.state is not None and self.state.is_due):
            self.save()

    def tend(self) -> None:
        """Make the server's due steps, if there are some; RunError if one cannot be charged."""
        if self.state is not None and self.state.is_due:
            started = time.perf_counter()
            self.state.tend()
            self.worked(time.perf_counter() - started)

    def append(self, kind: int, body: bytes) -> None:
        """Add to the journal what is about to be acted on, or raise RunError."""
        self._store.append(kind, body)

    def tell(self, client: int) -> None:
        """Note in the journal that a member was told the end: it may never ask again."""
        if client not in self.told:
            self.append(TOLD, b"%d" % client)
            self.told.add(client)

    def score(self, *, told: bool = False) -> None:
        """Score the evaluation under way, if all of its embeddings are there.

        The evaluation of a raw head, which fits it, waits until members were ``told`` that the job
        is over and cannot ask, since they must not see how long it takes. The figures are kept, and
        the parameters if they are the best so far. RunError if training diverged, or figures cannot
        be written.
        """
        state = self.state
        if state is None or not state.evaluations.is_answered:
            return
        if state.phase == "fitting" and not told:
            return
        job, one, model = state.job, state.evaluations, state.job.party.side.model.model
        assert one.purpose is not None, "it is answered"
        now = copied(model.state())
        if one.model == "best":
            model.load(self._folder.load("best", "server")["server"])
        try:
            scores = evaluation.score(job, one.purpose, closing=state.phase != "training")
        except NonFiniteError as error:
            raise evaluation.diverged(job, error) from None
        model.load(now)
        row: Row = {"number": one.number, "model": one.model}
        times = {"seconds": self.seconds}
        row |= evaluation.evaluation_row(job, one.purpose, scores, self.traffic, times)
        row["improved"] = state.is_best(row)
        if one.purpose == "train":
            assert job.party.head is not None, "it was scored"
            self._folder.save(evaluation.HEAD, {"head": job.party.head.state()})
        if state.phase != "training" and (kept := evaluation.tested(job, one.model)):
            self._folder.save(evaluation.TESTED, kept)
        if row["improved"]:
            best = {"server": now, "number": row["number"], "round": row["round"]}
            self._folder.save("candidate", best)
        self._store.append(SCORED, json.dumps(row).encode())
        state.scored(row, improved=row["improved"])
        self._promote(state)
        self._folder.append_metrics(row)
        self.end_if_done()

    def _promote(self, state: JobState) -> None:
        """Make the candidate the best model, once the journal says that it is."""
        best = state.evaluations.best
        if best is None or not self._folder.has("candidate"):
            return
        candidate = self._folder.load("candidate", "number", "server")
        if candidate["number"] == best["number"]:
            self._folder.save("best", candidate)

    def end_if_done(self) -> None:
        """Write the closing figures and a last checkpoint, if the job is done."""
        if self.state is not None and self.state.phase == "done":
            party = self.state.job.party
            summary = evaluation.summary_of(self.state, self.traffic, self.seconds)
            summary["queries"] = [party.next_number(client) for client in range(party.clients)]
            self._folder.write_summary(summary)
            self.save()
            self._store.clear()
