"""The label holder's party: it answers queries, and trains on what clients send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from vertizo.core import arrays
from vertizo.core.arrays.graphs import Graphed
from vertizo.core.errors import (
    ConflictError,
    OtherRoundError,
    RefusedError,
    RunError,
    UnknownPartyError,
)
from vertizo.core.names import Head
from vertizo.core.state import Stateful
from vertizo.party.batches import Batches
from vertizo.party.checks import Partition, Peer, QueryChecks, Vetted, with_tangents
from vertizo.party.final_head import FinalHead
from vertizo.party.metrics import Scores
from vertizo.party.private_updates import Schedule, SecretSgd
from vertizo.party.scoring import Scoring
from vertizo.party.server_model import ServerSide
from vertizo.party.uploads import Uploads
from vertizo.privacy.labels.private_labels import LabelMaker
from vertizo.privacy.noise.mechanisms import NoiseSource
from vertizo.privacy.plan import Answer
from vertizo.protocol import wire
from vertizo.protocol.codecs.base import Codec
from vertizo.protocol.codecs.feedback import Feedback, Received
from vertizo.protocol.codecs.none import NoCompression
from vertizo.protocol.messages import Batch, Purpose, Query, Reply, Upload

Replies = list[tuple[int, wire.Frame]]
"""The frames to send, each with the client that it goes to."""


@dataclass(eq=False, kw_only=True)
class ServerParty(Stateful):
    """The label holder's party.

    What `receive` does with a query::

        number, content        asynchronous         synchronous
        the next one           is answered          waits; the last of the round answers all
        the last one, as sent  gets the same reply  gets the same reply, or nothing while it waits
        any other              is refused           is refused; nothing changes

    Its state lacks the server model's parameters, which drivers keep.
    """

    STATE = (
        "round",
        "_secret_steps",
        "_peers",
        "staleness",
        "side.table",
        "side.plan",
        "side.update",
        "side.meter",
        "feedback",
        "received",
        "_uploads",
        "_is_final",
        "_final_rows",
        "_private_labels",
    )

    side: ServerSide
    """The model, table, method and plan that it trains with."""
    labels: Partition
    """Raw labels, by purpose."""
    batch_size: int
    """Nominal B, the most records of one query."""
    up: Codec
    down: Codec
    """Codecs of queries (``up``) and of replies."""
    bound: float
    """H_max, the largest absolute value accepted in an embedding."""
    batches: Batches | None = None
    """The server's order of records, for synchronous rounds; None for asynchronous ones."""
    own: Partition | None = None
    """The label holder's own features by purpose, [records, columns]."""
    feedback: Sequence[Feedback] = ()
    """For each client, what coding lost of each record's replies; empty without error feedback."""
    received: Sequence[Received] = ()
    """For each client, the embeddings received so far, for error feedback; empty without it."""
    schedule: Schedule | None = None
    """When it makes steps on secret samples; None for a server without those."""
    noises: Sequence[NoiseSource] = ()
    """Its sources of noise, which draw ahead."""
    encode: wire.Encode = wire.encode
    known: Sequence[Batches] = ()
    """Each client's order of records, where it is known; empty where IDs are sent."""
    private_labels: LabelMaker | None = None
    """Makes the labels that training reads in place of raw ones; None to train on raw ones."""
    head: FinalHead | None = None
    """The raw head, to be fitted after the last reply; None for none."""

    def __post_init__(self) -> None:
        side, dims = self.side, self.side.table.dims
        self.round = 0
        """Server steps made: queries answered, or synchronous rounds completed."""
        self.staleness, self.clients = side.staleness, len(dims)
        self._order: wire.Order | None = self._named if self.known else None
        self._secret_steps = 0
        self._is_final = False
        self._seen: dict[Purpose, Tensor] = {}
        self._peers, self._open = [Peer() for _ in dims], list[Query]()
        self._uploads = Uploads(dims, self.bound)
        self._teaching: Uploads | None = None
        if self.wants_teaching:
            assert self.private_labels is not None
            self._teaching = Uploads([self.private_labels.width] * self.clients, self.bound)
        self.scoring = Scoring(side, self.labels, self.own, self.head)
        sizes = len(side.table.values), self.batch_size, side.method.points, dims
        tolerant, device = side.plan.tolerant, side.table.device
        self._checks = QueryChecks(*sizes, self.bound, tolerant, self.received, device)
        self.watch = self._checks.watch
        self._graphed: Graphed[tuple[int, ...]] | None = None
        if side.table.is_on_card:
            self._graphed = Graphed(self._graph, "the label holder's answer", device)
            few = side.method.whole_queries is not None
            self._graphed.is_eager |= few or side.method.is_foreign()
        self._max_body = self._checks.largest_body(self.up)

    def receive(self, frame: wire.Frame, sender: int | None = None) -> Replies:
        """Take in one frame of a client and return what to send, and to whom.

        A query that was answered before gets the stored answer, computed and charged once. The
        ``sender``, where the driver knows it, must speak for itself. WireError if it is no query or
        larger than any this federation needs, RefusedError if not acceptable; nothing is changed.
        """
        found = self.vet(frame, sender)
        return self.take(found) if isinstance(found, Vetted) else found

    def vet(self, frame: wire.Frame, sender: int | None = None) -> Vetted | Replies:
        """Check whether a query can be taken in; nothing changes. Raises as `receive`.

        Returns the query, for `take`; or for one that came before, its stored answer, or nothing
        while it waits.
        """
        message = wire.decode(frame, self.up, Query, order=self._order, max_body=self._max_body)
        peer = self._peer(message, sender)
        if peer.came_before(message, frame):
            return [] if peer.reply is None else [(message.client, peer.reply)]
        full = None
        if self.side.method.sends_tangents and len(message.embeddings) == 1:
            full = peer.brought
            before = None if full is None else wire.decode(full, self.up, Query, order=self._order)
            message = with_tangents(message, before)
        query = self._checks.accept(message)
        if self.batches is not None and not torch.equal(message.ids, self.batches.ids(self.round)):
            raise OtherRoundError(
                f"client {message.client} answers for other records than round {self.round} names"
            )
        self.side.plan.admit(query.client, query.ids)
        return Vetted(query, frame, full)

    def take(self, vetted: Vetted) -> Replies:
        """Take in a query that was vetted, before anything else was taken in.

        RunError if its answer could not be charged: the party's state is not to be used again.
        """
        peer = self._peers[vetted.query.client]
        peer.full = vetted.full
        if self.batches is None:
            return self._answer([vetted.query], vetted.frame)
        peer.query, peer.reply = vetted.frame, None
        self._open.append(vetted.query)
        return self.close_round() if len(self._open) == self.clients else []

    def _named(self, client: int | None, batch: int) -> Tensor:
        """Record IDs that the number of a batch stands for; announcements are not for a server."""
        if client is None or client >= self.clients:
            raise UnknownPartyError(f"batch {batch} is of no client of this federation")
        return self.known[client].ids(batch)

    def _peer(self, message: Query | Upload, sender: int | None) -> Peer:
        if sender not in (None, message.client):
            raise UnknownPartyError(f"client {sender} speaks for client {message.client}")
        if message.client >= self.clients:
            raise UnknownPartyError(
                f"client {message.client} of a federation with {self.clients} clients"
            )
        return self._peers[message.client]

    @property
    def asked(self) -> list[int]:
        """The clients whose queries wait for the synchronous round to be complete."""
        return [query.client for query in self._open]

    def close_round(self) -> Replies:
        """Answer those who asked in a synchronous round; the table stands in for the others.

        Called for the last query of a round, or by a driver that waits no longer. ConflictError if
        too few asked: nobody, or not all whose queries pay for the server's step together.
        """
        if (count := len(self._open)) < (self.clients if self.side.update.is_shared else 1):
            raise ConflictError(f"{count} queries are too few for an answer; wait for all clients")
        queries, self._open = sorted(self._open, key=lambda query: query.client), []
        return self._answer(queries, None)

    def _answer(self, queries: Sequence[Query], frame: wire.Frame | None) -> Replies:
        """Answer queries on one batch; ``frame`` is that of the only one in asynchronous rounds."""
        side, ids = self.side, queries[0].ids
        for asked in queries if self.received else ():
            self.received[asked.client].learn(asked.ids, asked.embeddings.cpu())
        self.round += 1
        with np.errstate(all="ignore"):  # overflow is the plan's to clip, or the client's to refuse
            if self._graphed is None:
                replies = side.answer(queries, self.round)
            else:
                replies = self._by_graph(self._graphed, queries)
        answers = []
        for reply in replies:
            query = self._peers[reply.client].query if frame is None else frame
            assert query is not None, "it waited"
            coded = self._coded(reply, ids) if self.feedback else self.encode(reply, self.down)
            answers.append(Answer(reply.client, reply.number, query, ids, coded))
        try:  # on record, with its reply, before anything leaves
            side.plan.commit(answers)
        except RefusedError as error:
            raise RunError(f"an answer that was computed cannot be charged: {error}") from None
        sent: Replies = []
        for answer in answers:
            peer = Peer(answer.number + 1, answer.query, answer.reply)
            peer.full = self._peers[answer.client].full
            self._peers[answer.client] = peer
            sent.append((answer.client, answer.reply))
        return sent

    def _by_graph(self, graphed: Graphed[tuple[int, ...]], queries: Sequence[Query]) -> list[Reply]:
        """Answer on a card, by a graph for those clients and the sizes of their queries."""
        clients, tensors = tuple(query.client for query in queries), [queries[0].ids]
        numbers = [self.round, *(query.number for query in queries)]
        found = graphed(clients, numbers, tensors + [query.embeddings for query in queries])
        pairs = zip(queries, found, strict=True)
        return [Reply(query.client, query.number, values) for query, values in pairs]

    def _graph(
        self, clients: tuple[int, ...], numbers: Sequence[int], tensors: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        ids, *embeddings = tensors
        asked = zip(clients, numbers[1:], embeddings, strict=True)
        queries = []
        for client, number, sent in asked:
            name = f"the embeddings of client {client}"
            queries.append(Query(client, number, ids, self._checks.bounded(name, sent, self.bound)))
        return tuple(reply.values for reply in self.side.answer(queries, numbers[0]))

    @property
    def largest_frame(self) -> int:
        """The most bytes in the frame of a query that can be acceptable."""
        return wire.HEADER.size + self._max_body

    def next_number(self, client: int) -> int:
        """The number that a client's next query must have."""
        return self._peers[client].next_number

    def renew(self) -> None:
        """Drop noise that was drawn ahead: its bits come from elsewhere from now on."""
        for noise in self.noises:
            noise.forget()

    def train_between_queries(self) -> None:
        """Draw noise ahead, and train on secret samples as the public round counter says.

        For the driver to call before the first query and after each round, when no query waits;
        BudgetError for more steps than were agreed on.
        """
        side, schedule = self.side, self.schedule
        for noise in self.noises:
            noise.fill()
        if schedule is None:
            return
        update, records = side.update, len(side.table.values)
        assert isinstance(update, SecretSgd)
        while self._secret_steps < schedule.due(self.round):
            number = self._secret_steps
            side.plan.begin_step(number)
            self._secret_steps += 1
            ids, count = update.sample(number, records)
            joined, labels = side.table.points(ids).rows, arrays.rows(side.labels, ids)
            weights = side.weights_of(ids)
            with np.errstate(all="ignore"):
                update.between(number, side.model, joined, labels, count, records, weights)

    def resume_answered(self) -> None:
        """Take over from the ledger what was answered after this party's state was saved.

        A query that was answered before this process died then gets the stored reply, and no step
        on a secret sample takes the number of one that was charged.
        """
        self.side.plan.settle()
        self._secret_steps = max(self._secret_steps, self.side.plan.steps)
        for client, peer in enumerate(self._peers):
            stored = self.side.plan.answered(client)
            if stored is not None and stored.number >= peer.next_number:
                self._peers[client] = Peer(
                    stored.number + 1, None, stored.reply, stored.digest, peer.brought
                )

    def _coded(self, reply: Reply, ids: Tensor) -> wire.Frame:
        """Frame a reply with error feedback: what is owed to its records is added and updated."""
        feedback = self.feedback[reply.client]
        wanted = feedback.corrected(ids, reply.values.cpu())
        frame = wire.encode(replace(reply, values=wanted), self.down)
        feedback.absorb(ids, wanted, wire.decode(frame, self.down, Reply).values)
        return frame

    def announce(self, client: int) -> wire.Frame:
        """The records of the next synchronous round, as that client's next query."""
        if self.batches is None:
            raise ConflictError("this federation is asynchronous; clients choose their batches")
        number = self.next_number(client)
        batch = self.round if self.known else None
        return self.encode(Batch(number, self.batches.ids(self.round), batch), self.down)

    def receive_upload(
        self, frame: bytes, sender: int | None = None, wanted: Sequence[Purpose] = ()
    ) -> bool:
        """Take in plain embeddings: into the table, or set aside for `score`.

        Returns whether any of its rows was missing. Where the driver knows, ``sender`` is who it
        came from and ``wanted`` what it may be for. Raises as `receive`.
        """
        upload = wire.decode(frame, NoCompression() if self.received else self.up, Upload)
        self._peer(upload, sender)
        teaches = upload.purpose == "teacher"
        uploads = self._teaching if teaches else self._uploads
        if uploads is None:
            raise ConflictError("an upload for a teacher, which is not wanted")
        rows = self.labels["train" if teaches else upload.purpose].shape[0]
        uploads.check(upload, rows)
        if wanted and upload.purpose not in wanted:
            raise ConflictError(
                f"an upload for {upload.purpose} where one for {wanted[0]} is wanted"
            )
        to_table = upload.purpose == "train" and not self._is_final
        if to_table:
            if self.round:
                raise ConflictError(f"a table upload after round {self.round}; it comes first")
            self.side.table.store(upload.client, upload.ids, upload.embeddings[0], self.round)
        return uploads.take_in(upload, rows, keep=not to_table)

    @property
    def wants_teaching(self) -> bool:
        """Whether private labels are still to be made, from numbers that clients upload for it."""
        maker = self.private_labels
        return maker is not None and maker.width > 0 and not len(self.side.labels)

    def make_labels(self) -> None:
        """Make the private labels to train on, once, where training is to read such."""
        maker = self.private_labels
        if maker is None or len(self.side.labels):
            return
        rows = None if self._teaching is None else self._teaching.take("teacher")
        self.side.learn(maker.make(self.labels["train"], rows))
        self._teaching = None

    def await_final(self) -> None:
        """From now on keep uploaded embeddings of training records apart from the table."""
        self._is_final = True
        self._uploads.forget("train")

    def has_uploaded(self, client: int, purpose: Purpose) -> bool:
        """Whether all of a client's embeddings of a partition came, since they were last used."""
        uploads = self._teaching if purpose == "teacher" else self._uploads
        return uploads is None or uploads.is_complete(client, purpose)

    def logits(self, purpose: Purpose, by: Head = "private") -> Tensor:
        """Logits of the uploaded records by one of the heads; the upload is used up."""
        return self.scoring.logits(purpose, self._uploads.take(purpose), by)

    def score(self, purpose: Purpose, *, whole: bool = False) -> Scores:
        """See `Scoring.score`; for the uploaded records."""
        return self.scoring.score(purpose, self.used(purpose), whole=whole)

    def used(self, purpose: Purpose) -> Tensor:
        """Return a partition's uploaded rows, and forget them but for what a raw head needs.

        For a driver to call where the score is known, and what was uploaded is to be used up.
        """
        rows = self._uploads.take(purpose)
        if purpose != "train" and self.head is not None:
            self._seen[purpose] = rows
        return rows

    def score_head(self) -> Scores:
        """Fit the head on the raw labels of the records uploaded last, and score the tests by it.

        Returns nothing where there are no test records.
        """
        self.scoring.fit_head(self.used("train"), self._seen.get("validation"))
        return self.scoring.score("test", self._seen["test"], "raw") if "test" in self._seen else {}

    @property
    def _final_rows(self) -> Mapping[Purpose, Tensor]:
        """The uploaded rows that a raw head needs again, once nothing else will come."""
        return self._seen if self._is_final else {}

    @_final_rows.setter
    def _final_rows(self, rows: Mapping[Purpose, Tensor]) -> None:
        self._seen = dict(rows)

    @property
    def _private_labels(self) -> Tensor | None:
        """The private labels, once they were made."""
        made = self.private_labels is not None and len(self.side.labels)
        return self.side.labels if made else None

    @_private_labels.setter
    def _private_labels(self, labels: Tensor | None) -> None:
        if labels is not None:
            self.side.learn(labels)

    def restored(self) -> None:
        """Take in again the queries that wait for others of their synchronous round.

        Graphs are forgotten: the state may have replaced tensors that they use.
        """
        if self._graphed is not None:
            self._graphed.forget()
        self._open = [
            self._checks.accept(wire.decode(peer.query, self.up, Query, order=self._order))
            for peer in self._peers
            if peer.query is not None and peer.reply is None
        ]
