"""Private labels: made once, they take the place of the raw ones in all of training.

Defined in docs/mathematics.md, Private labels. Whatever a server does with them is post-processing:
any method, server update, number of rounds, seeds and trials cost nothing more. Features are not
covered, nor are the label holder's columns: replies depend on them, without noise.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vertizo.models.losses import log_weights
from vertizo.privacy.noise.discrete_gaussian import RandomBytes
from vertizo.privacy.noise.mechanisms import NoiseSource
from vertizo.privacy.plan import LABELS, NOT_COVERED, NoPrivacy, in_words
from vertizo.privacy.statement import Statement

LONGEST = 1.0
"""R, the norm that a teacher's rows are clipped to."""
TYPICAL_CURVATURE = 0.1
"""Curvature of a softmax along one class, for records whose class is hardly known."""
CONSTANT = 0.3
"""The constant in a teacher's rows, beside components of length 1."""
FLAT = 1e-6
"""Share of the largest variance below which a component is left out."""
STEPS = 60
"""Steps of a teacher's fit."""


class LabelMaker(ABC):
    """Makes private labels of raw ones."""

    @property
    def width(self) -> int:
        """Numbers of each record that each client uploads to make the labels; 0 for none."""
        return 0

    @abstractmethod
    def make(self, labels: Tensor, rows: Tensor | None) -> Tensor:
        """Private labels of raw ones, [records] → [records]; ``rows`` are the uploads or None."""


@dataclass(frozen=True)
class RandomisedResponse(LabelMaker):
    """Keeps each label with probability ``keep``, else draws one of the others, all alike.

    Warner (1965), for k classes. Pure ε for one label: ``keep / other ≤ e^ε``. That holds for the
    64-bit words that are drawn as well: they are rounded in favour of the other classes.
    """

    epsilon: float
    classes: int
    random_bytes: RandomBytes

    @property
    def other(self) -> float:
        """Probability of each other class, ``1 / (e^ε + k − 1)``."""
        return math.exp(-self.epsilon) / (1 + (self.classes - 1) * math.exp(-self.epsilon))

    @property
    def keep(self) -> float:
        """Probability that a label is kept, ``e^ε / (e^ε + k − 1)``."""
        return 1 - (self.classes - 1) * self.other

    @property
    def exchanged(self) -> int:
        """How many of the 2⁶⁴ words exchange a label for another."""
        return math.ceil(2**64 * (self.classes - 1) * self.other) + 1

    def make(self, labels: Tensor, rows: Tensor | None = None) -> Tensor:
        """See `LabelMaker.make`; int64."""
        count = len(labels)
        words = np.frombuffer(self.random_bytes(16 * count), np.uint64).reshape(2, count)
        exchanged = words[0] < np.uint64(self.exchanged)
        step = 1 + (words[1] % np.uint64(self.classes - 1)).astype(np.int64)
        drawn = (labels.numpy() + np.where(exchanged, step, 0)) % self.classes
        return torch.from_numpy(drawn)


@dataclass(frozen=True)
class Teacher(LabelMaker):
    """Predicts labels by a softmax regression that is fitted on one noised statistic.

    Rows u_i [K] of norm at most R are whitened, label-free numbers of the clients, a constant among
    them. ``U_c + N(0, σ² I)`` is released, where ``U_c`` is the sum of the rows of class c: another
    label takes its row from one sum to another, ``√2 R`` in all. A softmax's likelihood depends on
    labels through nothing else. ``noise`` has R as its clip and σ as its noise.
    """

    noise: NoiseSource
    classes: int
    components: int
    """Numbers of each record that each client uploads."""
    kept: int
    """Principal components of all these numbers together that it is fitted on, at most."""
    whitening: float
    """α: components of variance Λ are scaled by Λ^(−α/2)."""
    spread: float
    """τ, how large a coefficient is expected to be."""
    weights: Tensor | None = None
    """Public weights of the classes, [classes]; the largest weighted probability wins."""

    @property
    def width(self) -> int:
        """See `LabelMaker.width`: the components."""
        return self.components

    def make(self, labels: Tensor, rows: Tensor | None) -> Tensor:
        """See `LabelMaker.make`; int64."""
        assert rows is not None, "the clients' uploads"
        inputs = self.inputs(rows)
        return self._predicted(inputs, self.released(labels, inputs) / len(inputs))

    def inputs(self, rows: Tensor) -> Tensor:
        """The rows u_i that the regression is fitted on, [records, K]."""
        return whitened(rows, self.whitening, self.kept)

    def released(self, labels: Tensor, inputs: Tensor) -> Tensor:
        """The noised sum of each class's rows, [K, classes]: all that depends on labels."""
        sums = [self.noise.sum(label, inputs[labels == label]) for label in range(self.classes)]
        return torch.stack(sums, 1)

    def _predicted(self, inputs: Tensor, aim: Tensor) -> Tensor:
        """The classes of a ridge softmax regression with the statistic ``aim`` [K, classes].

        A direction's ridge is that of a Gaussian posterior, of prior variance τ². Newton steps with
        a bound of the curvature that never changes (Böhning 1992), accelerated.
        """
        variance = inputs.square().mean(0).clamp(min=1e-12)
        noise = self.noise.noise_std / len(inputs) / self.spread
        ridge = (noise**2 / (TYPICAL_CURVATURE * variance)).unsqueeze(1)
        curvature = (variance / 4).unsqueeze(1) + ridge
        weights = ahead = torch.zeros_like(aim)
        momentum = 1.0
        for _ in range(STEPS):
            slope = inputs.t() @ torch.softmax(inputs @ ahead, 1) / len(inputs) - aim
            before, weights = weights, ahead - (slope + ridge * ahead) / curvature
            last, momentum = momentum, (1 + math.sqrt(1 + 4 * momentum**2)) / 2
            ahead = weights + (last - 1) / momentum * (weights - before)
        logits = inputs @ weights
        return (logits if self.weights is None else logits + log_weights(self.weights)).argmax(1)


def whitened(rows: Tensor, power: float, kept: int) -> Tensor:
    """Rows [records, n] → ``kept`` principal components and a constant, of norm R, float64."""
    finite = rows.double().nan_to_num(0.0, 0.0, 0.0)
    centred = finite - finite.mean(0)
    values, vectors = torch.linalg.eigh(centred.t() @ centred / max(1, len(rows)))
    values, vectors = values[-kept:], vectors[:, -kept:]  # ascending
    largest = values[-1].clamp(min=1e-30)
    scale = (values.clamp(min=1e-30) / largest) ** (-power / 2) * (values > FLAT * largest)
    turned = centred @ (vectors * scale)
    length = turned.square().sum(1).mean().sqrt().clamp(min=1e-30)
    constant = torch.full((len(rows), 1), CONSTANT, dtype=torch.float64)
    return LONGEST * torch.nn.functional.normalize(torch.cat([turned / length, constant], 1))


@dataclass(frozen=True)
class Paid:
    """What private labels cost, and how they were made."""

    mechanism: str
    epsilon: float
    delta: float
    label_advantage: float
    mu: float | None
    """μ of the release if it is Gaussian, else None."""
    source: str
    """Where their randomness comes from."""
    is_secret: bool
    counted: str

    @property
    def words(self) -> str:
        """How the labels were made, in words."""
        if self.mechanism == "teacher":
            return "the classes that a model predicts which was fitted on one noised statistic"
        return "each label kept or exchanged for another one at random"


class PrivateLabelPlan(NoPrivacy):
    """A plan that passes replies unchanged, since training sees no labels but private ones."""

    def __init__(self, batch_size: int, paid: Paid) -> None:
        super().__init__(batch_size)
        self._paid = paid

    def statement(
        self, *, server_is_private: bool, covers: Sequence[str] = LABELS, records: int | None = None
    ) -> Statement:
        """State the ε of the labels alone, whatever the server does with the private ones."""
        paid = self._paid
        figures = Statement(
            guarantee="exact" if paid.is_secret else "simulated",
            words="",
            epsilon=paid.epsilon,
            delta=paid.delta,
            label_advantage=paid.label_advantage,
            mu=paid.mu,
            noise_source=paid.source,
            counted=paid.counted,
            covers=LABELS,
            records=records,
            not_covered=("the features of all parties", *NOT_COVERED),
        )
        how = (
            f"Training saw private labels alone ({paid.mechanism}: {paid.words}), made once: "
            "whatever is trained on them costs nothing more. "
        )
        return in_words(figures, about="the label of ", how=how, source="Randomness")
