"""The joined model at the server: losses at several points, gradients at one, and how it moves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from vertizo.core.errors import ConfigError
from vertizo.models.base import (
    DifferentiableModel,
    Model,
    Points,
    Pullback,
    RecordGradients,
    State,
)
from vertizo.models.losses import RecordLosses, Task
from vertizo.models.optimizers import Dense, Optimizer
from vertizo.zeroth_order.directions import Directions
from vertizo.zeroth_order.estimators import estimate, forward_difference, outputs, two_point


class ServerModel:
    """Server model and task: ``f_i = L(w_0, h_{1,i}, …, h_{M,i}; y_i)``.

    Defined in docs/mathematics.md, Notation and roles.

    A *point* is one value of the joined embeddings of a batch, shape [batch, width]; a zeroth-order
    query asks for the losses at two or three of them. All are evaluated on the same weights, and
    the last is where the server may differentiate.
    """

    def __init__(self, model: Model, task: Task) -> None:
        self.model = model
        self.task = task
        self.parameters = model.parameters
        """w_0, shape [d_0]."""
        self._differentiable = model if isinstance(model, DifferentiableModel) else None

    def state(self) -> State:
        """The model's, live."""
        return self.model.state()

    def load(self, state: State) -> None:
        """Go on from ``state``; raises as `Model.load`."""
        self.model.load(state)

    def logits(self, joined: Tensor) -> Tensor:
        """Logits of joined embeddings, [batch, width] → [batch, outputs]."""
        return self.model(joined)

    def evaluate(self, points: Points, labels: Tensor, number: int = 0) -> Evaluation:
        """Losses at every point, and the means to differentiate at the last.

        Args:
            points: inputs of the model.
            labels: [batch].
            number: of the training pass, for a model in training.

        Raises:
            ConfigError: the model is not differentiable.
        """
        if self._differentiable is None:
            raise ConfigError(
                f"the server model ({type(self.model).__name__}) is not differentiable; "
                "it must be a torch.nn.Module"
            )
        logits, pullback = self._differentiable.forward(points, number)
        losses, rows, batch = self.task.losses(logits, labels), len(logits), len(labels)
        last = slice(rows - batch, rows)
        return Evaluation(losses.values.view(-1, batch), last, losses, pullback)

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
    _pullback: Pullback

    def correct(self) -> int:
        """How many records are predicted right at the last point."""
        return self._records.correct(self._rows)

    def gradient(self, weights: Tensor | float) -> Tensor:
        """With respect to the server's parameters, [d_0]; the next call may overwrite it."""
        return self._pullback(self._records.slopes(self._rows, weights))

    @cached_property
    def record_slopes(self) -> Tensor:
        """``∂f_i/∂h_i`` of every record, [batch, width]."""
        return self.input_gradient(1.0)

    def input_gradient(self, weights: Tensor | float) -> Tensor:
        """With respect to the joined embeddings, [batch, width]."""
        return self._pullback.inputs(self._records.slopes(self._rows, weights))

    def record_gradients(self) -> Iterator[tuple[slice, RecordGradients]]:
        """Each record's own gradient of the server's parameters: some records at a time."""
        slopes = self._records.slopes(self._rows, 1.0)
        step = self._pullback.at_once
        for first in range(0, len(slopes), step):
            records = slice(first, min(first + step, len(slopes)))
            yield records, self._pullback.record_gradients(slopes, records)


@dataclass
class TrainingMeter:
    """Running sums over rounds, for the server's owner; nothing of it is ever sent."""

    records: int = 0
    loss: float = 0.0
    correct: int = 0

    def add(self, evaluation: Evaluation) -> None:
        """Count the batch at the last point, which is the one the server trains at."""
        self.records += evaluation.losses.shape[1]
        self.loss += float(np.add.reduce(evaluation.losses.numpy()[-1]))
        self.correct += evaluation.correct()

    def reset(self) -> None:
        """Start new sums."""
        self.records, self.loss, self.correct = 0, 0.0, 0


class ServerUpdate(Protocol):
    """One way to train the server model on the batch that was just answered."""

    is_private: bool
    """Whether later replies say nothing more about labels because of it."""

    @property
    def evaluations(self) -> int:
        """Evaluations of the server model it needs beside those that answer the query."""

    def step(
        self, model: ServerModel, evaluation: Evaluation, joined: Tensor, labels: Tensor
    ) -> None:
        """Move the model; ``joined`` is the point that ``evaluation`` differentiates at."""

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must hold."""

    def load(self, state: dict[str, Tensor]) -> None:
        """Go on from ``state``."""


class FirstOrder:
    """Stochastic gradient descent on the raw labels.

    Args:
        optimizer: makes the steps.
        batch_size: nominal B, by which the summed gradient is divided.
    """

    is_private = False
    evaluations = 0

    def __init__(self, optimizer: Optimizer, batch_size: int) -> None:
        self._optimizer = optimizer
        self._weight = 1.0 / batch_size

    def step(
        self, model: ServerModel, evaluation: Evaluation, joined: Tensor, labels: Tensor
    ) -> None:
        """One step along the gradient of the batch."""
        self._optimizer.step(model.parameters, Dense(evaluation.gradient(self._weight)))

    def state(self) -> dict[str, Tensor]:
        """The optimiser's."""
        return self._optimizer.state()

    def load(self, state: dict[str, Tensor]) -> None:
        """Go on from ``state``."""
        self._optimizer.load(state)


class ZerothOrder:
    """Steps on the raw labels, by losses alone.

    Two-point (DPZV eq. 3) on both sides of the weights, or the forward difference of ZOO-VFL from
    the loss that is known already; both at the unperturbed embeddings.

    Args:
        optimizer: makes the steps.
        directions: the server's own, of the dimension d_0.
        smoothing: λ or μ.
        batch_size: nominal B.
        forward: by forward difference.
    """

    is_private = False

    def __init__(
        self,
        optimizer: Optimizer,
        directions: Directions,
        smoothing: float,
        batch_size: int,
        *,
        forward: bool = False,
    ) -> None:
        self._optimizer = optimizer
        self.directions = directions
        self._smoothing = smoothing
        self._batch_size = batch_size
        self._forward = forward
        self.steps = 0

    @property
    def evaluations(self) -> int:
        """On both sides, or on one."""
        return 1 if self._forward else 2

    def step(
        self, model: ServerModel, evaluation: Evaluation, joined: Tensor, labels: Tensor
    ) -> None:
        """One step along a random direction, as far as the losses say."""
        direction = self.directions.draw(self.steps)
        self.steps += 1
        smoothing = self._smoothing
        offsets = (smoothing,) if self._forward else (smoothing, -smoothing)
        losses = [
            float(model.task.losses(logits, labels).values.sum()) / self._batch_size
            for logits in outputs(model.model, joined, direction, offsets)
        ]
        if self._forward:
            plain = float(evaluation.losses[-1].sum()) / self._batch_size
            slope = forward_difference(losses[0], plain, smoothing)
        else:
            slope = two_point(losses[0], losses[1], smoothing)
        self._optimizer.step(model.parameters, estimate(direction, slope))

    def state(self) -> dict[str, Tensor]:
        """The optimiser's, and how many directions were drawn."""
        return {**self._optimizer.state(), "steps": torch.tensor(self.steps)}

    def load(self, state: dict[str, Tensor]) -> None:
        """Go on from ``state``."""
        self.steps = int(state["steps"])
        self._optimizer.load(state)


class NoUpdate:
    """The server model stays as it was initialised: replies are all that depends on labels."""

    is_private = True
    evaluations = 0

    def step(
        self, model: ServerModel, evaluation: Evaluation, joined: Tensor, labels: Tensor
    ) -> None:
        """Nothing."""

    def state(self) -> dict[str, Tensor]:
        """Nothing."""
        return {}

    def load(self, state: dict[str, Tensor]) -> None:
        """Nothing."""
