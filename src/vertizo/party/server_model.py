"""The server's training: its model, how that moves, and the round that every method shares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vertizo.core import arrays
from vertizo.core.arrays import Scalar, graphs
from vertizo.core.arrays.tally import Tally
from vertizo.core.errors import ConfigError
from vertizo.core.randomness import Stream
from vertizo.core.state import Stateful
from vertizo.methods.base import Method, Outcome
from vertizo.models import base
from vertizo.models.base import DifferentiableModel, Model, Points, RecordGradients
from vertizo.models.losses import RecordLosses, Task, WeightedLosses
from vertizo.models.optimizers import Dense, Optimizer
from vertizo.party.table import EmbeddingTable, Staleness
from vertizo.privacy.plan import Plan
from vertizo.protocol.messages import Query, Reply
from vertizo.zeroth_order.directions import Direction, Directions
from vertizo.zeroth_order.estimators import estimate, forward_difference, outputs, two_point


class ServerModel:
    """Server model and task: ``f_i = L(w_0, h_{1,i}, …, h_{M,i}; y_i)``.

    Defined in docs/mathematics.md, Notation and roles.

    A *point* is one value of the joined embeddings of a batch, shape [batch, width]; a zeroth-order
    query asks for the losses at two or three of them. All are evaluated on the same weights, and
    the last is where the server may differentiate.
    """

    def __init__(self, model: Model, task: Task) -> None:
        self.model, self.task = model, task
        self.parameters = model.parameters
        """w_0, shape [d_0]."""
        self._differentiable = model if isinstance(model, DifferentiableModel) else None

    def state(self) -> base.State:
        """The model's state, live."""
        return self.model.state()

    def load(self, state: base.State) -> None:
        """Restore a state; raises as `Model.load`."""
        self.model.load(state)

    def logits(self, joined: Tensor) -> Tensor:
        """Logits of joined embeddings, [batch, width] → [batch, outputs]."""
        return self.model(joined)

    def evaluate(
        self, points: Points, labels: Tensor, number: int = 0, weights: Tensor | None = None
    ) -> Evaluation:
        """Losses at every point, and the means to differentiate at the last.

        ``number`` is that of the pass, for a model in training, ``weights`` [batch] say how much
        each record's loss counts; ConfigError where the model is not differentiable.
        """
        if self._differentiable is None:
            raise ConfigError(
                f"the server model ({type(self.model).__name__}) is not differentiable; "
                "it must be a torch.nn.Module"
            )
        logits, pullback = self._differentiable.forward(points, number)
        losses = self._losses(logits, labels, weights)
        rows, batch = logits.shape[0], labels.shape[0]
        last = slice(rows - batch, rows)
        return Evaluation(losses.values.view(-1, batch), last, losses, pullback, weights)

    def zero_logit_slopes(self, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        """``∂f_i/∂logits_i`` at logits of zero, [batch, outputs], whatever the model is."""
        logits = torch.zeros(len(labels), self.task.outputs, device=labels.device)
        return self._losses(logits, labels, weights).slopes(slice(0, len(labels)), 1.0)

    def losses_along(
        self,
        joined: Tensor,
        labels: Tensor,
        direction: Direction,
        offsets: Sequence[float],
        weights: Tensor | None = None,
    ) -> list[Tensor]:
        """Each record's losses at ``w_0 + offset · u``, [batch] for every offset."""
        logits = outputs(self.model, joined, direction, offsets)
        return [self._losses(each, labels, weights).values for each in logits]

    def _losses(self, logits: Tensor, labels: Tensor, weights: Tensor | None) -> RecordLosses:
        if not logits.is_cpu:
            labels = arrays.here(labels, logits.device)
            weights = None if weights is None else arrays.here(weights, logits.device)
        losses = self.task.losses(logits, labels)
        return losses if weights is None else WeightedLosses(losses, weights)

    def settle(self) -> None:
        """Keep what the last evaluation changed of the model beside its outputs."""
        if self._differentiable is not None:
            self._differentiable.settle()


@dataclass(frozen=True)
class Evaluation:
    """Losses at some points, and gradients of ``Σ_i weights_i · f_i`` at the last."""

    losses: Tensor
    """Per-record losses, [points, batch]."""
    _rows: slice
    """The rows of the last point among those of all."""
    _records: RecordLosses
    _pullback: base.Pullback
    weights: Tensor | None = None
    """How much each record's loss counts, [batch]; all the other fields have it in already."""

    def correct(self) -> int | Tensor:
        """How many records are predicted right at the last point; on a card, which ones."""
        return self._records.correct(self._rows)

    def gradient(self, weights: Tensor | float) -> Tensor:
        """Gradient of the server's parameters, [d_0]; the next call may overwrite it."""
        return self._pullback(self._records.slopes(self._rows, weights))

    @cached_property
    def record_slopes(self) -> Tensor:
        """``∂f_i/∂h_i`` of every record, [batch, width]."""
        return self.input_gradient(1.0)

    def input_gradient(self, weights: Tensor | float) -> Tensor:
        """Gradient of the joined embeddings, [batch, width]."""
        return self._pullback.inputs(self._records.slopes(self._rows, weights))

    def record_gradients(self) -> Iterator[tuple[slice, RecordGradients]]:
        """Each record's own gradient of the server's parameters: some records at a time."""
        slopes = self._records.slopes(self._rows, 1.0)
        step = self._pullback.at_once
        for first in range(0, len(slopes), step):
            records = slice(first, min(first + step, len(slopes)))
            yield records, self._pullback.record_gradients(slopes, records)


@dataclass
class TrainingMeter(Stateful):
    """Running sums over rounds, for the server's owner; nothing of it is ever sent."""

    STATE = ("records", "loss", "correct")

    records: int = 0
    loss: float = 0.0
    correct: int = 0

    def __post_init__(self) -> None:
        self.restored()

    def add(self, evaluation: Evaluation) -> None:
        """Count the batch at the last point, which is the one the server trains at."""
        losses, correct = evaluation.losses[-1], evaluation.correct()
        if losses.is_cpu:
            self.records += losses.shape[0]
            self.loss += float(np.add.reduce(losses.numpy()))
        else:
            graphs.each_call(partial(self._count, len(losses)))
            self._losses.take(losses)
        if isinstance(correct, Tensor):
            self._right.take(correct)
        else:
            self.correct += correct

    def _count(self, count: int) -> None:
        self.records += count

    def state(self) -> dict[str, Any]:
        """The sums, with what is on a card; this waits for it."""
        return super(TrainingMeter, self.read()).state()

    def restored(self) -> None:
        """Begin with nothing unread on a card: it is not of the state."""
        self._losses = Tally(torch.add, torch.float64)
        self._right = Tally(torch.add, torch.int64)

    def read(self) -> TrainingMeter:
        """Add what is on a card to the sums, and return them; this waits for it."""
        self.loss += sum(float(losses.sum()) for losses in self._losses.read())
        self.correct += sum(int(right.sum()) for right in self._right.read())
        return self

    def reset(self) -> None:
        """Start new sums."""
        self.read()
        self.records, self.loss, self.correct = 0, 0.0, 0


class ServerUpdate(Stateful):
    """A way to train the server model on the batch just answered; this base does nothing."""

    is_private = False
    """Whether its steps protect labels, so that later replies reveal no more about them."""
    is_shared = False
    """Whether each query of a round is charged a share of the step."""
    evaluations = 0
    """Evaluations of the server model, beside those that answer the query."""

    def step(
        self, model: ServerModel, evaluation: Evaluation, joined: Tensor, labels: Tensor, /
    ) -> None:
        """Move the model. ``joined`` is where perturbed losses are taken: the point that
        ``evaluation`` differentiates at, but for `Method.server_perturbs_clients`."""


class NoUpdate(ServerUpdate):
    """The server model stays as it was initialised: replies are all that depends on labels."""

    is_private = True


@dataclass(eq=False)
class Optimised(ServerUpdate):
    """An update by an optimiser, whose state is all that a checkpoint needs of it."""

    STATE = ("optimizer",)

    optimizer: Optimizer


class StepCountingUpdate(Optimised):
    """An update that draws a direction, or noise, by the number of its step."""

    STATE = ("steps",)
    steps = 0

    def _next_step(self) -> int:
        """The number of the next step, which begins here."""
        return graphs.each_call(self._count_step)

    def _count_step(self) -> int:
        self.steps += 1
        return self.steps - 1


@dataclass(eq=False)
class FirstOrder(Optimised):
    """Stochastic gradient descent on the raw labels."""

    batch_size: int
    """Nominal B, by which the summed gradient is divided."""

    def step(self, model: ServerModel, evaluation: Evaluation, *_: Tensor) -> None:
        """One step along the gradient of the batch."""
        gradient = evaluation.gradient(1.0 / self.batch_size)
        self.optimizer.step(model.parameters, Dense(gradient))


@dataclass(eq=False)
class ZerothOrder(StepCountingUpdate):
    """Steps on the raw labels, by losses alone.

    Two-point (DPZV eq. 3) on both sides of the weights, or the forward difference of ZOO-VFL from
    the loss that is known already, which is at the unperturbed embeddings.
    """

    directions: Directions
    """The server's own, of the dimension d_0."""
    smoothing: float
    """λ or μ."""
    batch_size: int
    """Nominal B."""
    forward: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        self.evaluations = 1 if self.forward else 2

    def step(
        self, model: ServerModel, evaluation: Evaluation, joined: Tensor, labels: Tensor, /
    ) -> None:
        """One step along a random direction, by the slope of the losses."""
        direction, smoothing = self.directions.draw(self._next_step()), self.smoothing
        offsets = (smoothing,) if self.forward else (smoothing, -smoothing)
        found = model.losses_along(joined, labels, direction, offsets, evaluation.weights)
        losses = [self._mean(each) for each in found]
        if self.forward:
            slope = forward_difference(losses[0], self._mean(evaluation.losses[-1]), smoothing)
        else:
            slope = two_point(losses[0], losses[1], smoothing)
        self.optimizer.step(model.parameters, estimate(direction, slope))

    def _mean(self, losses: Tensor) -> Scalar:
        return arrays.scalars(losses.sum().reshape(1))[0] / self.batch_size


@dataclass
class ServerSide:
    """The model, table, plan and update of the label holder, and the round that methods share."""

    method: Method
    model: ServerModel
    table: EmbeddingTable
    labels: Tensor
    """Labels of all training records, [records]."""
    plan: Plan
    update: ServerUpdate
    shared: Sequence[Stream]
    """Each client's stream that it shares (`vertizo.methods.base.ClientSide.shared`)."""
    learning_rate: float | None = None
    """η_0, given or chosen."""
    notes: tuple[str, ...] = ()
    """Notes on the server's model for people to read."""
    weights: Tensor | None = None
    """How much each training record's loss counts, [records]; None where all count alike. What a
    class counts is in the model's task."""
    head_weights: Tensor | None = None
    """How much each record counts in the fit of a raw head, by its class and its own weight."""
    meter: TrainingMeter = field(default_factory=TrainingMeter)
    staleness: Staleness = field(default_factory=Staleness)

    def __post_init__(self) -> None:
        self._steps = self.method.server_steps
        self._perturbs_clients = self.method.server_perturbs_clients
        self._is_per_record = self.method.reply_is_per_record
        self._entries = self.method.releases_per_query
        self.learn(self.labels)
        if self.weights is not None:
            self.weights = self.weights.to(self.table.device)

    def answer(self, queries: Sequence[Query], round_: int) -> list[Reply]:
        """One round, numbered from 1: store, join, evaluate, release, meter, step, note ages.

        On one query (asynchronous), or one of every client on one batch (synchronous).
        """
        method, model, ids = self.method, self.model, queries[0].ids
        stamp: int | Tensor = round_
        if self.table.is_on_card:
            ids, stamp = self.table.here(ids), self.table.stamp(round_)
        for query in queries:
            self.table.store(query.client, ids, method.stored(query.embeddings), stamp)
        evaluated, moved = [], []
        for query in queries:
            new = method.evaluated(query, self.shared[query.client])
            evaluated.append(0 if new is None else new.shape[0])
            if new is not None:
                moved.append((query.client, new))
        points = self.table.points(ids, moved)
        if self.labels.is_cpu:
            labels = torch.from_numpy(self.labels.numpy().take(ids.numpy(), 0))
        else:
            labels = self.labels.index_select(0, ids)
        first_pass, weights = round_ * self._steps, self.weights_of(ids)
        evaluation = model.evaluate(points, labels, first_pass, weights)
        replies, last, plain = [], 0, evaluation.losses[-1]
        for query, count in zip(queries, evaluated, strict=True):
            first, last = last, last + count
            gradient = partial(self._gradient, evaluation, query.client)
            resting = partial(model.zero_logit_slopes, labels, weights)
            told = method.told(
                Outcome(evaluation.losses[first:last], plain, gradient, query, resting)
            )
            answer = method.answered(query, self._released(told), self.plan.noise_std)
            replies.append(Reply(query.client, query.number, answer.values))
            if answer.moved is not None:
                self.table.store(query.client, ids, answer.moved, stamp)
        self.meter.add(evaluation)
        joined = points.together() if self._perturbs_clients else points.rows
        for step in range(self._steps):
            if step:
                evaluation = model.evaluate(points, labels, first_pass + step, weights)
            self.update.step(model, evaluation, joined, labels)
            if method.as_pytorch:
                model.settle()
        self.staleness.add_ages(*self.table.ages(ids, stamp))
        return replies

    def learn(self, labels: Tensor) -> None:
        """Set the labels to train on from now on, [records]."""
        self.labels = labels.to(self.table.device)

    def weights_of(self, ids: Tensor) -> Tensor | None:
        """How much those records' losses count, [batch]; None where all count alike."""
        return None if self.weights is None else arrays.rows(self.weights, ids)

    def _gradient(self, evaluation: Evaluation, client: int) -> Tensor:
        """``∂f_i/∂h_m`` of every record, [batch, d_h]."""
        return self.table.part(client, evaluation.record_slopes)

    def _released(self, told: Tensor) -> Tensor:
        """The privacy plan's release of `Method.told`."""
        if self._is_per_record:
            return self.plan.each(told)
        if told.dim() == 1 or told.shape[1] != self._entries:
            return self.plan.total(told)
        if self._entries == 1:
            return self.plan.total(told.squeeze(1))
        return torch.cat([self.plan.total(column) for column in told.unbind(1)])
