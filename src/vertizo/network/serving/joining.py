"""The feature holder's side of a job: a loop that asks over a channel and does what it is told.

It holds the client party and keeps on disk what a restart needs: each query before it is sent, each
reply before it is applied. So it may be killed at any moment and started again with the same
folder; it sends the open query again, byte for byte, and the label holder charges a query once.

The state of the loop is the party's open query, `_going` and `_announced`::

    from      to        when
    new       idle      terms are accepted and the party is made (`_open`); it says `Ready`
    new       asking    likewise, and the folder has an open query
    idle      asking    a round is announced, or `Go` was heard and queries are left (`_next`)
    asking    idle      the reply is applied (`_told`), or the round went on without it (withdrawn)
    idle      idle      an upload is sent (`Send`), parameters are kept (`Keep`), or it asks `Next`
    idle      over      `Done`: model and figures are written (`_end`)

Whatever else it hears while it is asking, it does, and then sends the open query again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, NamedTuple, Self

import numpy as np
import torch

from vertizo.core.errors import (
    ConfigError,
    ConflictError,
    MalformedError,
    RefusedError,
    RunError,
    VertizoError,
    WireError,
)
from vertizo.core.randomness import Stream
from vertizo.core.state import Stateful
from vertizo.data.own_tables import party_table
from vertizo.data.prepare import prepare
from vertizo.models.base import Model, copied
from vertizo.network.serving import frames
from vertizo.network.serving.client_folder import ClientFolder
from vertizo.network.serving.frames import Done, Go, Keep, Next, Ready, Refusal, Send, Sent
from vertizo.network.serving.options import JoinConfig
from vertizo.network.serving.store import Slot, Store, root_of
from vertizo.network.serving.terms import accepted, chosen_rows, told
from vertizo.network.transport.base import Channel
from vertizo.protocol import wire
from vertizo.run.build.client import embedding_noise, make_client
from vertizo.run.build.schedule import check_sizes, steps_of_client
from vertizo.run.results.provenance import now

QUERY, REPLY, WITHDRAWN = range(3)
"""Kinds of the journal's records."""
UNPROTECTED = (
    "The label holder got all that this party sent of its records as it was made; nothing protects "
    "this party's features from it."
)
TRIAL = "Nothing is protected: this was a trial, whose secrets follow from a public seed."


class Progress(NamedTuple):
    """The progress of a member, for a display."""

    answered: int
    total: int
    sent: int
    """Bytes of queries and uploads."""
    received: int


class Joined(NamedTuple):
    """The closing figures of a job at a member."""

    words: str
    """The label holder's privacy statement, which nobody here can check."""
    own_words: str
    """This party's own statement on what it sent."""
    queries: int
    sent: int
    received: int
    finished: str = ""
    """Time of the end by this machine's clock, in UTC; empty in jobs of older versions."""


class Member(Stateful):
    """Takes part in one job, from its beginning or from the state in its folder.

    ``progress`` is called after each answer. Entering and `run` raise a UserError if something does
    not fit.
    """

    STATE = ("made.party", "_parameters", "made.optimizer", "_sent", "_received", "_uses")

    def __init__(
        self,
        config: JoinConfig,
        channel: Channel,
        *,
        progress: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        self._options = config.federation
        self._config = config
        self._channel = channel
        self._progress = progress
        self._folder = ClientFolder(self._options.folder)
        self._store = Store(self._options.folder, sync=self._options.sync)
        self._slot = Slot(self._options.folder / "query", sync=self._options.sync)
        self._exit = ExitStack()
        self._sent = self._received = 0
        self._announced: bytes | None = None
        self._going = False

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._folder.locked())
            stack.callback(self._store.close)
            stack.callback(self._slot.close)
            with frames.understood():
                self._open()
            self._exit = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._exit.close()

    # Joining.

    def _open(self) -> None:
        """Get and check the terms, make the party, and resume from the state in the folder."""
        self.terms = terms = frames.greet(self._channel.ask, self._options.name)
        if not terms.index < len(terms.members):
            raise MalformedError(f"client {terms.index} of {len(terms.members)} members")
        self._folder.check_job(terms.job, terms.index)
        self.settings = accepted(terms, self._config)
        self._synchronous = self.settings.simulation.timing == "synchronous"
        table = self._records()
        self._rows = {purpose: len(rows) for purpose, rows in table.values.items()}
        records = self._rows["teacher"] = self._rows["train"]
        check_sizes(self.settings, records)
        self._noise = embedding_noise(self.settings, records)
        self._uses = torch.zeros(records, dtype=torch.int32)
        public = Stream.from_seed(terms.choice)
        noised, digest = told(terms)
        made = make_client(
            self.settings,
            terms.index,
            table.values,
            public if self._options.trial else root_of(self._options.folder),
            clients=len(terms.members),
            cardinalities=table.cardinalities,
            shared=Stream(terms.shared),
            public=public.child("validation"),
            noise=self._noise,
            noised=noised,
            digest=digest,
        )
        self.made = replace(made, notes=(*table.notes, *made.notes))
        sources = self._config.data.path, self._config.data.test_path
        self._folder.create(terms, self.settings, table.preparation, sources)
        if (loaded := self._store.load()) is not None:
            self._go_on(*loaded)
        self._folder.go_on_with(table.preparation, begun=self.made.party.answered > 0)
        self._save()
        self._ready = Ready(
            job=terms.job,
            embedding_dim=self.made.embedding_dim,
            records=(records, self._rows["validation"], self._rows["test"]),
            fingerprint=table.fingerprint,
            fitted=table.fitted,
            mixes_records=self.made.mixes_records,
        )

    def _records(self) -> party_table.Held:
        settings, terms, data = self.settings, self.terms, self._config.data
        stream = Stream.from_seed(terms.choice).child("validation")
        if not terms.own_tables:
            if data.path is not None:
                raise ConfigError(
                    f"data.path is {data.path} but the label holder's job is on the data set "
                    f"{settings.data.name!r}, of which parties take their parts"
                )
            root = {"root": data.root} if data.root is not None else {}
            whole = prepare(settings.data.model_copy(update=root), stream)
            if terms.index >= len(whole.parties):
                raise ConfigError(
                    f"{whole.name} is cut between {len(whole.parties)} clients; this party is "
                    f"number {terms.index + 1} of {len(terms.members)}"
                )
            return party_table.part(whole, terms.index)
        if data.path is None:
            raise ConfigError("data.path is not set; name this party's own table")
        share = settings.data
        rows = chosen_rows(terms)
        choice = party_table.Choice(stream, share.validation, share.test, share.limit, rows)
        return party_table.features(data, choice, self._options.name)

    def _go_on(self, state: Any, journal: Iterator[tuple[int, bytes]]) -> None:
        party = self.made.party
        with self._store.going_on():
            before = state["party"]
            if not before["answered"] and before["waiting"] is None:
                # It has asked nothing: its table may be another by now.
                state |= {"party": party.state(), "uses": self._uses}
            self.load(state)
        with np.errstate(all="ignore"):
            for kind, body in journal:
                if kind == QUERY:
                    party.reopen(body)
                    self._count_uses()
                elif kind == REPLY:
                    if not self._synchronous:  # a reply alone says what it answers
                        party.reopen_next()
                    with suppress(WireError, RefusedError):  # it was to be taken back
                        party.tell(body)
                else:
                    party.withdraw()
        query = self._slot.get()
        if query is not None and party.is_reopened_by_ids:
            is_noted = party.open_ids is not None
            with suppress(ConflictError):  # it may be one that was answered
                party.reopen(query)
                if not is_noted:
                    self._count_uses()

    @property
    def _parameters(self) -> Model:
        """The client's model, whose state is its parameters."""
        return self.made.model

    def _save(self) -> None:
        self._store.save(self.state())

    # The loop.

    def run(self) -> Joined:
        """Take part until the job is over; RunError if the label holder refuses or is away."""
        torch.set_num_threads(self.settings.threads)
        party, total = self.made.party, steps_of_client(self.settings, self._rows["train"])
        # An open query comes first: what is done next must be done with what it is answered.
        ask = frames.encode(self._ready) if party.open_ids is None else bytes(party.ask())
        with frames.understood(), np.errstate(all="ignore"):
            while True:
                done = self._do(self._ask(ask))
                if done is not None:
                    return self._end(done)
                self._progress(Progress(party.answered, total, self._sent, self._received))
                ask = self._next(total)

    def _next(self, total: int) -> bytes:
        """The next ask: the open query, a new query if one may be made, or else `Next`.

        An open query is repeated even if the label holder spoke of something else.
        """
        party = self.made.party
        announced, self._announced = self._announced, None
        if party.open_ids is not None:
            return bytes(party.ask())
        if announced is None and not (self._going and party.answered < total):
            return frames.encode(Next(self.terms.job))
        if party.answered >= total:
            raise RefusedError(f"a round beyond the {total} that were agreed on")
        query = bytes(party.ask(announced))
        self._count_uses()
        if party.is_reopened_by_ids:
            self._slot.put(query)
            if announced is not None:  # its own order, this party knows
                self._store.append(QUERY, party.opened())
        else:
            self._store.append(QUERY, query)
        return query

    def _count_uses(self) -> None:
        """Count how often the open query's records were used; RefusedError if above once an epoch.

        Noise on embeddings is calibrated to that. In asynchronous rounds members keep to it by
        their own order.
        """
        ids = self.made.party.open_ids
        if self._noise is None or ids is None or not self._synchronous:
            return
        self._uses[ids] += 1
        if int(self._uses.max()) > self.settings.epochs:
            raise RefusedError(
                f"a record in more than the {self.settings.epochs} batches that its noise is for"
            )

    def _ask(self, ask: bytes) -> bytes:
        answer = self._channel.ask(ask)
        self._sent += len(ask)
        self._received += len(answer)
        return answer

    def _do(self, answer: bytes) -> Done | None:
        """Do what the frames of an answer say, in order; return a `Done`, if there is one."""
        waiting = deque(frames.split(answer))
        while waiting:
            frame = waiting.popleft()
            if frames.is_party_frame(frame):
                self._told(frame)
                continue
            todo = frames.decode(frame)
            if isinstance(todo, Send):
                waiting.extend(frames.split(self._send(todo)))
            elif isinstance(todo, Go):
                self._going = True
            elif isinstance(todo, Keep):
                self._folder.keep(todo.number)
            elif isinstance(todo, Done):
                return todo
            elif isinstance(todo, Refusal):
                raise RunError(f"the label holder refused: {todo.words}")
            else:
                raise MalformedError(f"a {type(todo).__name__}, which is nothing to do")
        return None

    def _told(self, frame: bytes) -> None:
        """Take in a party's frame: a reply, or the announcement of a round."""
        party = self.made.party
        if wire.is_batch(frame):
            if not self._synchronous:
                raise RefusedError("an announced round in a job where members choose their batches")
            if party.is_overtaken(frame):
                party.withdraw()
                self._store.append(WITHDRAWN, b"")
            self._announced = frame
            return
        started = time.perf_counter()
        self._store.append(REPLY, frame)
        try:
            party.tell(frame)
        except VertizoError:
            self._store.undo()
            raise
        if self._store.worked(time.perf_counter() - started):
            self._save()

    def _send(self, todo: Send) -> bytes:
        """Upload one partition, and keep the parameters that it was made with.

        The table, and the numbers that a teacher is fitted on, are uploaded before the first query
        only, if that was agreed on: under noise, the table is accounted as one release, which must
        not be made again of other parameters. For a raw head, which the terms name and noise on
        embeddings excludes, training records are uploaded once more. RefusedError for others.
        """
        model, party, purpose = self.made.model, self.made.party, todo.purpose.own
        settings, begins = self.settings, not party.answered
        at_first = {
            "train": begins and settings.simulation.table == "upload",
            "teacher": begins and party.teaching is not None,
        }
        agreed = at_first.get(purpose, True)
        if purpose == "train" and settings.server.final_head != "private":
            agreed = True
        if purpose in at_first and not (agreed and party.open_ids is None):
            raise RefusedError(f"a {todo.purpose.value} upload that was not agreed on, or not now")
        now = copied(model.state())
        if todo.model == "best":
            model.load(self._folder.best())
        elif purpose not in at_first:
            self._folder.consider(todo.number, now)
        frames.upload(self._ask, self.made, purpose, self._rows[purpose])
        model.load(now)
        return self._ask(frames.encode(Sent(self.terms.job, todo.purpose, todo.number)))

    def _end(self, done: Done) -> Joined:
        """Write the model and the closing figures; remove journals that nobody needs any more."""
        if done.best is not None:
            self._folder.keep(done.best)
        self._save()
        own_words = UNPROTECTED if self._noise is None else self._noise.words()
        joined = Joined(
            words="".join(c if c.isprintable() else " " for c in done.words),
            own_words=TRIAL if self._options.trial else own_words,
            queries=self.made.party.answered,
            sent=self._sent,
            received=self._received,
            finished=now(),
        )
        last = self.made.model.state()
        self._folder.finish(joined._asdict(), last if done.best is None else self._folder.best())
        self._store.clear()
        self._slot.clear()
        return joined
