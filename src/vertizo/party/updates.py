"""How the server model moves once a query's losses are known."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from vertizo.models.base import Dense
from vertizo.models.optimizers import Optimizer
from vertizo.party.server_model import Evaluation, Head
from vertizo.zeroth_order.directions import Directions
from vertizo.zeroth_order.estimators import estimate, forward_difference, two_point
from vertizo.zeroth_order.perturbation import outputs


class ServerUpdate(Protocol):
    """One way to train the server model on the batch that was just answered."""

    is_private: bool
    """Whether later replies say nothing more about labels because of it."""

    @property
    def evaluations(self) -> int:
        """Evaluations of the server model it needs beside those that answer the query."""

    def step(self, head: Head, evaluation: Evaluation, joined: Tensor, labels: Tensor) -> None:
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

    def step(self, head: Head, evaluation: Evaluation, joined: Tensor, labels: Tensor) -> None:
        """One step along the gradient of the batch."""
        self._optimizer.step(head.parameters, Dense(evaluation.gradient(self._weight)))

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

    def step(self, head: Head, evaluation: Evaluation, joined: Tensor, labels: Tensor) -> None:
        """One step along a random direction, as far as the losses say."""
        direction = self.directions.draw(self.steps)
        self.steps += 1
        smoothing = self._smoothing
        offsets = (smoothing,) if self._forward else (smoothing, -smoothing)
        losses = [
            float(head.task.losses(logits, labels).values.sum()) / self._batch_size
            for logits in outputs(head.model, joined, direction, offsets)
        ]
        if self._forward:
            plain = float(evaluation.losses[-1].sum()) / self._batch_size
            slope = forward_difference(losses[0], plain, smoothing)
        else:
            slope = two_point(losses[0], losses[1], smoothing)
        self._optimizer.step(head.parameters, estimate(direction, slope))

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

    def step(self, head: Head, evaluation: Evaluation, joined: Tensor, labels: Tensor) -> None:
        """Nothing."""

    def state(self) -> dict[str, Tensor]:
        """Nothing."""
        return {}

    def load(self, state: dict[str, Tensor]) -> None:
        """Nothing."""
