"""How the server model moves."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import torch
from tests.rows import each
from torch import Tensor, nn
from torch.nn import functional as F

from vertizo.core.randomness import Stream
from vertizo.models.array import ArrayModel
from vertizo.models.base import Points
from vertizo.models.losses import Classification
from vertizo.models.networks import mlp
from vertizo.models.optimizers import Sgd
from vertizo.models.torch import wrap
from vertizo.party.server_model import (
    Evaluation,
    FirstOrder,
    NoUpdate,
    ServerModel,
    ServerUpdate,
    ZerothOrder,
)
from vertizo.zeroth_order.directions import LAWS, Directions

WIDTH, BATCH, CLASSES = 4, 8, 3


def data(records: int = BATCH, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Joined embeddings and labels that they tell."""
    generator = torch.Generator().manual_seed(seed)
    joined = torch.randn(records, WIDTH, generator=generator)
    return joined, joined[:, :CLASSES].argmax(1)


def network(kind: str = "stack") -> nn.Module:
    torch.manual_seed(2)
    if kind == "stack":
        return mlp(WIDTH, [6], CLASSES, final_relu=False)
    return nn.Sequential(nn.Linear(WIDTH, 6), nn.Tanh(), nn.Linear(6, CLASSES))


def head_of(module: nn.Module) -> ServerModel:
    return ServerModel(wrap(module), Classification(CLASSES))


def take(update: ServerUpdate, head: ServerModel, joined: Tensor, labels: Tensor) -> None:
    """One step as a method makes it: at the last of three points."""
    shift = torch.full((2, *joined.shape), 0.1) * torch.tensor([1.0, -1.0]).view(2, 1, 1)
    points = Points(joined, ((0, shift),))
    evaluation: Evaluation = head.evaluate(points, labels)
    update.step(head, evaluation, joined, labels)


def mean_loss(head: ServerModel, joined: Tensor, labels: Tensor) -> float:
    return float(head.task.losses(head.logits(joined), labels).values.mean())


def directions(dimension: int, law: str = "scaled-sphere", seed: int = 3) -> Directions:
    return Directions(law, dimension, Stream.from_seed(seed).child("server"))


def zeroth_order(
    head: ServerModel, rate: float, momentum: float = 0.0, *, forward: bool = False, **keys: str
) -> ZerothOrder:
    drawn = directions(head.parameters.numel(), **keys)
    return ZerothOrder(Sgd(rate, momentum), drawn, 1e-3, BATCH, forward=forward)


@each("kind", ["stack", "autograd"])
@each("momentum", [0.0, 0.9])
def test_first_order_equals_pytorch(kind: str, momentum: float) -> None:
    reference = network(kind)
    head = head_of(copy.deepcopy(reference))
    update = FirstOrder(Sgd(0.1, momentum), BATCH)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=momentum)
    for step in range(15):
        joined, labels = data(BATCH if step % 3 else 3, seed=step)  # some batches are short
        take(update, head, joined, labels)
        optimizer.zero_grad()
        loss = F.cross_entropy(reference(joined), labels, reduction="sum") / BATCH
        loss.backward()
        optimizer.step()
        expected = torch.cat([p.detach().reshape(-1) for p in reference.parameters()])
        assert torch.allclose(head.parameters, expected, rtol=1e-4, atol=1e-5)


@each("forward", [False, True])
@each("law", LAWS)
def test_zeroth_order_reduces_the_loss(law: str, forward: bool) -> None:
    head, (joined, labels) = head_of(network()), data(64)
    update = zeroth_order(head, 0.003, law=law, forward=forward)
    before = mean_loss(head, joined, labels)
    for _ in range(600):
        take(update, head, joined, labels)
    assert mean_loss(head, joined, labels) < 0.6 * before


def test_zeroth_order_trains_what_has_no_gradient() -> None:
    """Logits from a rule; the step goes through the same directions."""

    def rule(w: np.ndarray, x: np.ndarray) -> np.ndarray:
        return np.round((x @ w.reshape(WIDTH, CLASSES)) * 1e4) / 1e4

    joined, labels = data(64)
    head = ServerModel(ArrayModel(rule, torch.zeros(WIDTH * CLASSES)), Classification(CLASSES))
    update = ZerothOrder(Sgd(0.05), directions(WIDTH * CLASSES), 0.01, 64)
    evaluation = head_of(network()).evaluate(Points(joined), labels)
    before = mean_loss(head, joined, labels)
    for _ in range(300):
        update.step(head, evaluation, joined, labels)
    assert mean_loss(head, joined, labels) < 0.6 * before


@each("law", LAWS)
@each("rows", [3, BATCH])
def test_a_zeroth_order_step_is_the_formula(law: str, rows: int) -> None:
    """``w ← w − η φ (f(w + λu) − f(w − λu)) / 2λ · u``, f the sum over the batch by nominal B."""
    head, (joined, labels) = head_of(network()), data(rows)
    size = head.parameters.numel()
    start = head.parameters.clone()
    sums = []
    u = torch.zeros(size)
    direction = directions(size, law).draw(0)
    direction.add_to(u, 1.0)
    for offset in (1e-3, -1e-3):
        head.parameters.copy_(start + offset * u)
        sums.append(mean_loss(head, joined, labels) * rows / BATCH)
    head.parameters.copy_(start)
    take(zeroth_order(head, 0.3, law=law), head, joined, labels)
    step = -0.3 * direction.factor * (sums[0] - sums[1]) / 2e-3 * u
    assert float(step.norm()) > 1e-3
    difference = (head.parameters - start - step).norm()
    assert float(difference) < 0.02 * float(step.norm()) + 1e-3 * direction.factor**0.5


def test_every_zeroth_order_step_has_a_direction_of_its_own() -> None:
    head, (joined, labels) = head_of(network()), data()
    update, steps = zeroth_order(head, 0.01), []
    for _ in range(6):
        before = head.parameters.clone()
        take(update, head, joined, labels)
        steps.append(head.parameters - before)
    correlations = torch.corrcoef(torch.stack(steps)) - torch.eye(6)
    assert float(correlations.abs().max()) < 0.6


@each("name", ["zeroth-order", "first-order"])
def test_a_loaded_update_goes_on_the_same_way(name: str) -> None:
    def make(head: ServerModel) -> ServerUpdate:
        if name == "first-order":
            return FirstOrder(Sgd(0.1, 0.9), BATCH)
        return zeroth_order(head, 0.01, 0.9)

    joined, labels = data()
    head = head_of(network())
    update = make(head)
    for _ in range(5):
        take(update, head, joined, labels)
    saved = {key: value.clone() for key, value in update.state().items()}
    other = head_of(network())
    other.parameters.copy_(head.parameters)
    resumed = make(other)
    resumed.load(saved)
    for _ in range(5):
        take(update, head, joined, labels)
        take(resumed, other, joined, labels)
    assert torch.equal(head.parameters, other.parameters)
    assert not torch.equal(head.parameters, head_of(network()).parameters)


@each("law", LAWS)
@each("rows", [3, BATCH])
def test_a_forward_difference_step_is_the_formula(law: str, rows: int) -> None:
    """``w ← w − η φ (f(w + μu) − f(w)) / μ · u``, where f(w) is the last point's loss."""
    head, (joined, labels) = head_of(network()), data(rows)
    size, mu = head.parameters.numel(), 0.1
    start = head.parameters.clone()
    u = torch.zeros(size)
    direction = directions(size, law).draw(0)
    direction.add_to(u, 1.0)
    module = network().double()

    def loss(parameters: Tensor) -> float:
        nn.utils.vector_to_parameters(parameters.double(), module.parameters())
        logits = module(joined.double()).detach()
        return float(F.cross_entropy(logits, labels, reduction="sum")) / BATCH

    update = ZerothOrder(Sgd(0.3), directions(size, law), mu, BATCH, forward=True)
    take(update, head, joined, labels)
    slope = (loss(start + mu * u) - loss(start)) / mu
    step = -0.3 * direction.factor * slope * u
    other = -0.3 * direction.factor * (loss(start + mu * u) - loss(start - mu * u)) / (2 * mu) * u
    assert float(step.norm()) > 1e-3
    assert float((head.parameters - start - step).norm()) < 1e-3 * float(step.norm()) + 1e-5
    assert float((other - step).norm()) > 1e-3 * float(step.norm()) + 1e-5  # no two-point step


def test_a_forward_difference_takes_the_loss_that_is_known() -> None:
    """At the weights before the step: it is the evaluation's, whatever that was made of."""
    head, (joined, labels) = head_of(network()), data()
    start = head.parameters.clone()
    evaluation = head.evaluate(Points(joined), labels)
    moved = []
    for shift in (0.0, 1e-3):
        head.parameters.copy_(start)
        known = replace(evaluation, losses=evaluation.losses + shift)
        update = zeroth_order(head, 0.3, forward=True)
        update.step(head, known, joined, labels)
        moved.append(head.parameters - start)
    u = torch.zeros(start.numel())
    directions(start.numel()).draw(0).add_to(u, 1.0)
    assert torch.allclose(moved[1] - moved[0], 0.3 * u, atol=1e-3)  # a slope less by 1e-3 / μ


def test_no_update_changes_nothing() -> None:
    head, (joined, labels) = head_of(network()), data()
    before = head.parameters.clone()
    update = NoUpdate()
    for _ in range(3):
        take(update, head, joined, labels)
    assert torch.equal(head.parameters, before)
    assert update.state() == {}


def test_only_no_update_is_private() -> None:
    head = head_of(network())
    assert NoUpdate().is_private
    assert not FirstOrder(Sgd(0.1), BATCH).is_private
    assert not zeroth_order(head, 0.1).is_private
    assert not zeroth_order(head, 0.1, forward=True).is_private


class Counting:
    """A model that counts the rows it is asked for."""

    def __init__(self, head: ServerModel) -> None:
        self.inner = head.model
        self.parameters = head.parameters
        self.rows = 0

    def __call__(self, inputs: Tensor) -> Tensor:
        self.rows += len(inputs)
        return self.inner(inputs)

    def along(self, direction: Tensor, offsets: list[float], inputs: Tensor) -> Tensor:
        self.rows += len(offsets) * len(inputs)
        return self.inner.along(direction, offsets, inputs)


def test_evaluations_are_counted() -> None:
    plain, (joined, labels) = head_of(network()), data()
    model = Counting(plain)
    head = ServerModel(model, Classification(CLASSES))
    evaluation = plain.evaluate(Points(joined), labels)
    updates: list[ServerUpdate] = [
        NoUpdate(),
        FirstOrder(Sgd(0.1), BATCH),
        zeroth_order(plain, 0.1),
        zeroth_order(plain, 0.1, forward=True),
    ]
    assert [update.evaluations for update in updates] == [0, 0, 2, 1]
    for update in updates:
        model.rows = 0
        update.step(head, evaluation, joined, labels)
        assert model.rows == update.evaluations * BATCH
