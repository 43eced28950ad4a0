"""Predictions of a trained federation for new records, for which all parties work together.

The label holder asks every member for the embeddings of records that all of them have; each embeds
its own columns with its model of the finished job. Only embeddings travel, once all parties have
confirmed by a fingerprint that they mean the same records in the same order.

A member passes through these steps, as `PredictingService` sees it:

=========  =========  ============================================================================
from       to         when
=========  =========  ============================================================================
away       ready      its `Ready` has the job, the size of embeddings and the fingerprint (`_take`)
ready      sent       all are ready, and it has uploaded all embeddings (`Sent`)
sent       told       all have sent, and it was told `Done` (`_offer`)
=========  =========  ============================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from vertizo.core.errors import DataError, MalformedError, RefusedError
from vertizo.core.names import Head
from vertizo.core.text.messages import Alarm
from vertizo.data.alignment import align_table, fingerprint, in_order, keys_of
from vertizo.data.prepared import raw_matrix
from vertizo.data.tabular import frames as files
from vertizo.data.tabular.columns import Source, unknown
from vertizo.data.tabular.csv_lines import CsvFormat
from vertizo.data.tabular.preprocessing import Preprocessing
from vertizo.network.serving import frames
from vertizo.network.serving.frames import Done, Hello, Noted, Ready, Refusal, Send, Sent
from vertizo.network.serving.options import JoinConfig, ServeConfig
from vertizo.network.serving.service import MemberService
from vertizo.network.serving.trained_model import LabelHolderModel, MemberModel, terms_of
from vertizo.network.transport.base import Channel
from vertizo.protocol.messages import Purpose, WirePurpose
from vertizo.run.loop.traffic import UPLOAD_BYTES
from vertizo.run.trained.prediction import in_place_of_tests, logits_of

WORDS = "These are predictions; the guarantee of the job is in its summary."


class NewRecords:
    """A party's new records in a CSV, Excel or Parquet file, in the order of their keys.

    The fingerprint depends on the federation's name as well. DataError, which names the file, if
    records cannot be read.
    """

    def __init__(self, path: Path, column: str, form: CsvFormat, federation: str) -> None:
        frame, written = files.read_as_written(path, form)
        self.name = str(path)
        keys = keys_of(frame, column, self.name, files.place_in(path, form))
        self.keys = in_order(keys)
        self.frame = align_table(frame, column, self.keys, self.name)
        self.written = align_table(written, column, self.keys, self.name)
        """The same rows as the file writes them, letter for letter."""
        self.fingerprint = fingerprint(federation, self.keys)

    def features(self, prepare: Preprocessing) -> dict[Purpose, Tensor]:
        """Prepared features as test records of the party's model, float32 [records, width]."""
        known = prepare.columns, prepare.levels, prepare.dates
        return in_place_of_tests(prepare(raw_matrix(self.frame, *known, name=self.name)))

    def notes(self, prepare: Preprocessing) -> list[str]:
        """Notes on values that are allowed but unusual, as unknown categories, a line each."""
        known = prepare.levels, prepare.columns, prepare.dates
        found = unknown(Source(self.name, self.frame), *known)
        return [f"note: {line}" for line in found.values()]


class PredictingService(MemberService):
    """The label holder's side of a prediction: collects embeddings, then predicts.

    ``head`` and errors are as of `LabelHolderModel`; DataError if the new records lack a column.
    """

    largest_ask = 2 * UPLOAD_BYTES

    def __init__(
        self,
        config: ServeConfig,
        records: NewRecords,
        notice: Callable[[str], None] = lambda line: None,
        head: Head | None = None,
    ) -> None:
        super().__init__(config.federation, notice)
        model = LabelHolderModel(config, head)
        self._model, self.records, self.run = model, records, model.job
        self.privacy, self.task, self.class_names = model.privacy, model.task, model.class_names
        self.head = model.head
        own = None if model.own is None else records.features(model.own)
        for line in [] if model.own is None else records.notes(model.own):
            notice(line)
        self._party = model.party(own, len(records.keys))
        self._ready: set[int] = set()
        self._sent: set[int] = set()
        self._refusals: dict[int, str] = {}

    def missing(self) -> list[str]:
        """Names of the members that are waited for."""
        done = self._told if self._is_complete else self._sent
        return [name for client, name in enumerate(self.members) if client not in done]

    @property
    def _is_complete(self) -> bool:
        """Whether every member has sent all embeddings."""
        return len(self._sent) == len(self.members)

    def logits(self) -> Tensor:
        """Logits of the new records in the order of keys, [records, outputs].

        RefusedError before all embeddings are there.
        """
        return logits_of(self._party, self._model.raw_head, self._model.name)

    def _refuse(self, client: int, words: str) -> None:
        """Refuse a member's ask; tell people only if the reason is another than last time."""
        self._refused[client] += 1
        if self._refusals.get(client) != words:
            self._refusals[client] = words
            member = self.members[client]
            self._notice(
                Alarm(f"{member} was refused: {words}; waiting for it to be started again")
            )
        self._answer(client, Refusal(words))

    def tick(self) -> None:
        """Name silent members; the driver calls this about once a second."""
        with self._lock:
            _, names = self._silent(map(self.members.index, self.missing()))
        if names:
            self._notice(Alarm(f"silent: {names}; waiting for them"))

    def _take(self, client: int, frame: bytes) -> None:
        if frames.is_party_frame(frame):
            if client not in self._ready or self._is_complete:
                raise RefusedError("no embeddings are wanted now")
            self._party.receive_upload(frame, client)
            self._answer(client, Noted())
            return
        ask = frames.decode(frame)
        if isinstance(ask, Hello):
            self._meet(client, ask)
            self._answer(client, terms_of(self._model.job, self.members, client))
        elif isinstance(ask, Ready):
            self._check(client, ask)
            self._ready.add(client)
        elif isinstance(ask, Sent):
            if self._party.has_uploaded(client, "test"):
                self._sent.add(client)
        else:
            raise MalformedError(f"a {type(ask).__name__}, which is no ask here")

    def _check(self, client: int, ready: Ready) -> None:
        name, rows = self.members[client], len(self.records.keys)
        self._model.check(client, ready)
        if ready.fingerprint != self.records.fingerprint:
            raise RefusedError(
                f"{name} has {ready.records[2]:,} new records and the label holder {rows:,}, or "
                "not the same ones; run `vertizo align` on both tables first"
            )

    def _offer(self, client: int) -> None:
        if len(self._ready) < len(self.members):
            return
        if client not in self._sent:
            self._answer(client, Send(WirePurpose.test, 0, "best"))
        elif self._is_complete:
            self._answer(client, Done(WORDS, None))
            self._tell_end(client)


def help_predict(
    config: JoinConfig,
    records: NewRecords,
    channel: Channel,
    notice: Callable[[str], None] = lambda line: None,
    progress: Callable[[float], None] = lambda share: None,
) -> int:
    """Take part as a member: embed new records for the label holder; return their number.

    ``notice`` gets lines for people, ``progress`` the share that is sent. RunError if the job is
    not over here or the label holder refuses, DataError if the records lack a column.
    """
    model = MemberModel(config.federation.folder)
    features = records.features(model.preparation)
    for line in records.notes(model.preparation):
        notice(line)
    terms = frames.greet(channel.ask, config.federation.name)
    made = model.party(terms, features)
    rows = len(records.keys)
    ask: frames.Ask = Ready(
        terms.job, made.embedding_dim, (0, 0, rows), records.fingerprint, False, False
    )
    while True:
        todo = frames.expect(channel.ask(frames.encode(ask)), Send, Done)
        if isinstance(todo, Done):
            return rows
        if todo.purpose is not WirePurpose.test:
            raise DataError(f"the label holder wants {todo.purpose.name!r} records, not new ones")
        frames.upload(channel.ask, made, "test", rows, progress)
        ask = Sent(terms.job, todo.purpose, todo.number)
