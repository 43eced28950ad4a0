"""One round of several runs at once: what `Simulator.step` does for one of them.

The runs' arrays have the runs in front, ordered by the client that asks: record IDs [runs, batch],
rows of the tables [runs, batch, Σ d_h]. Parameters, optimisers, counters and clocks are those of
the runs' own parties.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertizo import kernels, validate, wire
from vertizo.batched import updates
from vertizo.batched.answers import Answering, by_gradient, each_record, totals
from vertizo.batched.asking import Asked, Asking, Failures, Ids, Part
from vertizo.batched.clients import ClientHalves, parameters
from vertizo.batched.members import Member
from vertizo.batched.updates import Evaluated
from vertizo.codecs.none import NoCompression
from vertizo.errors import NonFiniteError
from vertizo.models.layers import Layers, Moved
from vertizo.models.linear_stack import LinearStack
from vertizo.party.client import REPLY_BOUND
from vertizo.privacy.plan import Answer
from vertizo.server.losses import Regression

FLOAT32 = NoCompression()


@dataclass(frozen=True)
class Span:
    """Items whose query's points lie at the same places among those that are evaluated."""

    runs: slice
    first: int


class Rounds:
    """Makes rounds of runs of one kind.

    Args:
        members: all runs; their tables move into one memory.
        clients: every client's layers; clients of the same have the same object.
        server: the servers' layers.
        halves: makes the client halves of clients of some layers.
        answering: the server halves.
    """

    def __init__(
        self,
        members: Sequence[Member],
        clients: Sequence[Layers],
        server: Layers,
        halves: Callable[[Layers], ClientHalves],
        answering: Answering,
    ) -> None:
        config, first = members[0].config, members[0].federation
        table = first.server.side.table
        self._members = members
        self._asking = Asking(clients, halves, config.server.embedding_bound)
        self._server = server
        self._answering = answering
        self._method = config.method
        self._batch_size = config.batch_size
        task = first.server.side.head.task
        self._task = Regression() if isinstance(task, Regression) else task
        self._columns = [
            slice(sum(table.dims[:client]), sum(table.dims[: client + 1]))
            for client in range(len(table.dims))
        ]
        self._records = first.data.records
        values = torch.zeros(len(members), *table.values.shape)
        refreshed = torch.zeros(len(members), *table.refreshed.shape, dtype=torch.int32)
        for member, own, stored_in in zip(members, values, refreshed, strict=True):
            member.federation.server.side.table.move_to(own, stored_in)
        self._values = values.flatten(0, 1).numpy()
        self._refreshed = refreshed.flatten(0, 1).numpy()
        self._labels = torch.cat([_labels(member) for member in members]).numpy()

    def make(self, runs: Sequence[int], clients: Sequence[int] | None) -> Failures:
        """One round of some runs, all of as many records.

        Args:
            runs: which, ordered by client.
            clients: who asks in each; None where all its clients do.

        Returns:
            Those that cannot go on.
        """
        members = [self._members[run] for run in runs]
        failures: Failures = {}
        asked = self._asking.ask(members, clients)
        self._asking.check(asked, members, failures)
        flat = asked.ids + np.array(runs)[:, None] * self._records
        going = [place for place in range(len(runs)) if place not in failures]
        for place in going:
            members[place].federation.server.round += 1
        rounds = np.array([member.federation.server.round for member in members], np.int32)
        for part in asked.parts:
            self._store(part, flat, rounds)
        found = self._evaluate(asked, members, flat, together=clients is None)
        spans = self._spans(asked, len(members), together=clients is None)
        replies = self._replies(asked, spans, members, found)
        self._commit(asked, members, going)
        sides = [member.federation.server.side for member in members]
        updates.step([s.head for s in sides], [s.update for s in sides], found, going)
        self._count(members, found, flat, rounds, going)
        self._tell(asked, members, replies, failures)
        for place in going:
            members[place].federation.server.tend()
        return {runs[place]: error for place, error in failures.items()}

    def _store(self, part: Part, flat: Ids, rounds: NDArray[np.int32]) -> None:
        """Into the tables."""
        rows = flat[part.runs].reshape(-1)
        embeddings = self._answering.stored(part.embeddings)
        new = np.ascontiguousarray(embeddings.reshape(len(rows), -1).numpy())
        first = 4 * self._columns[part.client].start
        kernels.scatter(self._values, rows, new, len(self._values), first)
        self._refreshed[rows, part.client] = rounds[part.runs].repeat(flat.shape[1])

    def _spans(self, asked: Asked, runs: int, *, together: bool) -> list[Span]:
        """Where among the points that are evaluated the items' own lie."""
        if not together:
            return [Span(slice(0, runs), 0)]
        count = len(self._answering.evaluated(asked.parts[0].embeddings))
        return [Span(part.runs, count * place) for place, part in enumerate(asked.parts)]

    def _evaluate(
        self, asked: Asked, members: Sequence[Member], flat: Ids, *, together: bool
    ) -> Evaluated:
        """The servers' models at the tables' rows, and at the points that were asked about."""
        rows = np.empty((*flat.shape, self._values.shape[1]), np.float32)
        kernels.gather(rows, self._values, flat, len(self._values))
        labels = torch.from_numpy(self._labels.take(flat))
        models = [member.federation.server.side.head.model for member in members]
        own = parameters([m for m in models if isinstance(m, LinearStack)])
        moved: list[Moved] = []
        points = 1
        for part in asked.parts:
            embeddings = self._answering.evaluated(part.embeddings)
            if len(embeddings):
                columns = self._columns[part.client]
                shift = embeddings.numpy() - rows[part.runs, :, columns]
                first = points - 1 if together else 0
                moved.append(Moved(columns.start, shift, first, part.runs))
                points = first + len(embeddings) + 1
        steps, outputs = self._server.forward(own, rows, moved, points)
        return updates.evaluated(self._server, own, steps, outputs, labels, self._task)

    def _replies(
        self, asked: Asked, spans: Sequence[Span], members: Sequence[Member], found: Evaluated
    ) -> list[Tensor]:
        """What every item is told, [items, …], by block."""
        if self._answering.by_gradient:
            gradient = by_gradient(found)
            return [
                torch.cat([self._gradients(part, members, gradient) for part in block.parts])
                for block in asked.blocks
            ]
        count = len(self._answering.evaluated(asked.parts[0].embeddings))
        smoothing = torch.tensor([[member.smoothing] for member in members])
        told = []
        for span in spans:
            plans = [member.plan for member in members[span.runs]]
            shifted = found.losses[span.first : span.first + count, span.runs]
            plain = found.losses[-1, span.runs]
            values = self._answering.told(shifted, plain, smoothing[span.runs])
            told.append(totals(plans, values, self._batch_size))
        if len(told) == 1:
            return told
        return list(torch.split(torch.cat(told), [len(block.askers) for block in asked.blocks]))

    def _gradients(self, part: Part, members: Sequence[Member], gradient: Tensor) -> Tensor:
        """The replies of a method that tells the gradient of each record's embedding."""
        plans = [member.plan for member in members[part.runs]]
        own = gradient[part.runs, :, self._columns[part.client]]
        return each_record(plans, own, self._batch_size)

    def _commit(self, asked: Asked, members: Sequence[Member], going: Sequence[int]) -> None:
        """Charge the records for their replies, where that is counted."""
        if members[0].plan.releases is None:
            return
        for place in going:
            member, ids = members[place], torch.from_numpy(asked.ids[place])
            clients = member.federation.clients
            asking = [p.client for p in asked.parts if p.runs.start <= place < p.runs.stop]
            member.plan.commit([Answer(c, clients[c].answered, b"", ids, b"") for c in asking])

    def _count(
        self,
        members: Sequence[Member],
        found: Evaluated,
        flat: Ids,
        rounds: NDArray[np.int32],
        going: Sequence[int],
    ) -> None:
        """What the servers' owners are shown: losses, and how old the tables' entries were."""
        losses = found.losses[-1].numpy().sum(1).tolist()
        right = found.right()
        stored = self._refreshed.take(flat, 0).reshape(len(members), -1)
        sums = stored.sum(1, dtype=np.int64).tolist()
        oldest = (rounds - stored.min(1)).tolist()
        batch, entries = flat.shape[1], stored.shape[1]
        for place in going:
            server = members[place].federation.server
            meter = server.side.meter
            meter.records += batch
            meter.loss += losses[place]
            meter.correct += right[place]
            ages = server.round * entries - sums[place]
            server.staleness.add_ages(ages, entries - batch, oldest[place])

    def _tell(
        self,
        asked: Asked,
        members: Sequence[Member],
        replies: Sequence[Tensor],
        failures: Failures,
    ) -> None:
        """Every client's update, and the bytes and times of both ways."""
        batch, largest = asked.ids.shape[1], asked.ids.max(1).tolist()
        for member in members:
            simulator = member.federation.simulator
            for _ in range(len(asked.parts) if member.is_synchronous else 1):
                simulator.arrive()
        for block, values in zip(asked.blocks, replies, strict=True):
            gradients = block.halves.gradients(values)
            bounded = validate.is_bounded(values, REPLY_BOUND)
            points, _, _, dim = block.embeddings.shape
            reply_shape = self._method.reply_shape(batch, dim)
            for item, (client, place) in enumerate(block.askers):
                if place in failures:
                    continue
                member = members[place]
                party = member.federation.clients[client]
                if not bounded:
                    try:
                        validate.bounded("the reply", values[item], REPLY_BOUND)
                    except NonFiniteError as error:
                        failures[place] = error
                        continue
                member.federation.optimizers[client].step(
                    member.models[client].parameters, gradients[item]
                )
                number = party.answered
                party.go_on(number + 1)
                member.federation.simulator.passed(
                    client,
                    wire.query_size(client, number, largest[place], (points, batch, dim), FLOAT32),
                    wire.reply_size(client, number, reply_shape, FLOAT32),
                    member.announcement_size() if member.is_synchronous else 0,
                )


def _labels(member: Member) -> Tensor:
    """Of all training records; those of a regression as far off the mean as the model says it."""
    side = member.federation.server.side
    task = side.head.task
    return (side.labels - task.mean) / task.spread if isinstance(task, Regression) else side.labels
