"""Per-record losses at several points, and gradients at one of them."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from tests.rows import each
from torch import Tensor, nn
from torch.nn import functional as F

from vertizo.core.errors import ConfigError
from vertizo.models.architectures.networks import mlp
from vertizo.models.array import ArrayModel
from vertizo.models.base import Points
from vertizo.models.losses import Classification, Regression, Task
from vertizo.models.torch import wrap
from vertizo.party.server_model import Evaluation, ServerModel

WIDTH, BATCH, COUNT, CLASSES = 6, 5, 3, 4


def smooth() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def positive() -> nn.Module:
    """Outputs that a last ReLU lets through, most of them."""
    module = mlp(WIDTH, [8], CLASSES, final_relu=True)
    last = module[-2]
    assert isinstance(last, nn.Linear)
    last.bias.data += 1.0
    return module


MODULES = {
    "stack": lambda: mlp(WIDTH, [8], CLASSES, final_relu=False),
    "stack, relu last": positive,
    "autograd": smooth,
    "regression": lambda: mlp(WIDTH, [8], 1, final_relu=False),
}


Pair = tuple[nn.Module, ServerModel, Tensor]


def pairs() -> list[Pair]:
    """Modules with their own weights, a server model over a copy of each, labels."""
    found = []
    for name, make in MODULES.items():
        torch.manual_seed(2)
        module, labels = make(), torch.tensor([0, 1, 2, 3, 1])
        task: Task = Regression() if name == "regression" else Classification(CLASSES)
        labels = labels.float() if name == "regression" else labels
        found.append((module, ServerModel(wrap(copy.deepcopy(module)), task), labels))
    return found


every_pair = each("pair", pairs)


def points(count: int = COUNT, batch: int = BATCH) -> Tensor:
    return torch.randn(count, batch, WIDTH, generator=torch.Generator().manual_seed(1))


def evaluate(head: ServerModel, points: Tensor, labels: Tensor) -> Evaluation:
    rows, others = points[-1], points[:-1]
    return head.evaluate(Points(rows, ((0, others - rows),) if len(others) else ()), labels)


def losses_of(module: nn.Module, joined: Tensor, labels: Tensor) -> Tensor:
    logits = module(joined)
    if labels.is_floating_point():
        return (logits.squeeze(1) - labels).square() / 2
    return F.cross_entropy(logits, labels, reduction="none")


@each("count", [1, 2, COUNT])
@each("batch", [1, BATCH])
@each("weights", [1.0, 1 / 64, torch.linspace(-1, 2, BATCH)])
@every_pair
def test_it_says_what_autograd_says(
    pair: Pair, count: int, batch: int, weights: Tensor | float
) -> None:
    """Logits, losses at every point, gradients at the last; nothing is moved by it.

    One row of logits is contiguous either way round, and must be treated like any other.
    """
    module, head, labels = pair
    given, labels, before = points(count, batch), labels[:batch], head.parameters.clone()
    weights = weights[:batch] if isinstance(weights, Tensor) else weights
    assert head.parameters is head.model.parameters
    assert torch.equal(before, nn.utils.parameters_to_vector(module.parameters()).detach())
    assert torch.allclose(head.logits(given[0]), module(given[0]).detach(), atol=1e-6)
    evaluation = evaluate(head, given, labels)
    expected = torch.stack([losses_of(module, point, labels) for point in given]).detach()
    assert evaluation.losses.shape == (count, batch)
    assert torch.allclose(evaluation.losses, expected, rtol=1e-4, atol=1e-5)
    joined = given[-1].clone().requires_grad_()
    total = (losses_of(module, joined, labels) * weights).sum()
    first, *others = torch.autograd.grad(total, [joined, *module.parameters()])
    gradient = torch.cat([part.reshape(-1) for part in others])
    assert torch.allclose(evaluation.input_gradient(weights), first, rtol=1e-4, atol=1e-6)
    assert torch.allclose(evaluation.gradient(weights), gradient, rtol=1e-4, atol=1e-6)
    assert torch.equal(head.parameters, before)
    assert torch.equal(given, points(count, batch))


def test_correct_is_counted_at_the_last_point() -> None:
    torch.manual_seed(2)
    head = ServerModel(wrap(smooth()), Classification(CLASSES))
    labels = torch.tensor([0, 1, 2, 3, 1])
    for order in ([0, 1, 2], [0, 2, 1], [2, 1, 0]):
        given = points()[order]
        expected = int((head.logits(given[-1]).argmax(1) == labels).sum())
        assert evaluate(head, given, labels).correct() == expected


@each("record", [0, 2, BATCH - 1])
@each("value", [0.3, 1e25, torch.nan])
@every_pair
def test_a_record_leaves_the_others_alone(pair: Pair, record: int, value: float) -> None:
    """Its embedding and its label are replaced; every other loss stays bit for bit."""
    _, head, labels = pair
    replaced, other = points(), labels.clone()
    replaced[:, record] = value
    other[record] = 1 - min(other[record], 1)
    kept = [i for i in range(BATCH) if i != record]
    one, two = evaluate(head, points(), labels), evaluate(head, replaced, other)
    assert torch.equal(one.losses[:, kept], two.losses[:, kept])
    assert torch.equal(one.input_gradient(1.0)[kept], two.input_gradient(1.0)[kept])


def test_a_model_without_gradients_says_what_would_do() -> None:
    model = ArrayModel(lambda w, x: np.repeat(x[:, :1] * w, CLASSES, 1), torch.ones(1))
    head = ServerModel(model, Classification(CLASSES))
    assert head.logits(points()[0]).shape == (BATCH, CLASSES)
    with pytest.raises(ConfigError, match=r"ArrayModel\) is not differentiable"):
        head.evaluate(Points(points()[0]), torch.zeros(BATCH, dtype=torch.int64))
