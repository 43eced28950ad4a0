"""Losses against torch.nn.functional, slopes against autograd."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from tests.cards import DEVICES, TRITON, placed
from torch import Tensor
from torch.nn import functional as F

from vertizo.core.arrays import card
from vertizo.models.losses import Classification, Huber, MultiLabel, Quantile, Regression, Task

RECORDS = 7


def logits_of(points: int, outputs: int, scale: float = 2.0, records: int = RECORDS) -> Tensor:
    generator = torch.Generator().manual_seed(points + 10 * outputs)
    return scale * torch.randn(points * records, outputs, generator=generator)


def classes(count: int, records: int = RECORDS) -> Tensor:
    return torch.randint(0, count, (records,), generator=torch.Generator().manual_seed(1))


def values(records: int = RECORDS) -> Tensor:
    return torch.randn(records, generator=torch.Generator().manual_seed(1))


def reference(task: Task, logits: Tensor, labels: Tensor) -> Tensor:
    labels = labels.repeat(len(logits) // len(labels), *[1] * (labels.dim() - 1))
    if isinstance(task, MultiLabel):
        return F.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(1)
    if isinstance(task, Classification):
        return F.cross_entropy(logits, labels, reduction="none")
    if isinstance(task, Huber):
        return F.huber_loss(logits.squeeze(1), labels, reduction="none", delta=task.delta)
    if isinstance(task, Quantile):
        error = labels - logits.squeeze(1)
        return torch.where(error > 0, task.level * error, (task.level - 1) * error)
    return 0.5 * F.mse_loss(logits.squeeze(1), labels, reduction="none")


CASES: list[tuple[Task, Tensor]] = [
    (Classification(2), classes(2)),
    (Classification(5), classes(5)),
    (Classification(40), classes(40)),
    (Regression(), values()),
    (Huber(delta=0.7), values()),
    (Quantile(level=0.9), values()),
    (MultiLabel(("a", "b", "c")), (values(3 * RECORDS) > 0).float().view(RECORDS, 3)),
]


def test_losses_and_slopes_equal_pytorch() -> None:
    """In rows or columns of memory; logits and labels are left alone."""
    scales = (0.0, 1.0, 2.0, 50.0, 1e4)
    for (task, labels), points, scale, records in product(
        CASES, (1, 2, 3), scales, (1, 2, RECORDS)
    ):
        case, own = (task, points, scale, records), labels[:records]
        logits = logits_of(points, task.outputs, scale, records)
        kept, labelled = logits.clone(), own.clone()
        expected = reference(task, logits, own)
        for given in (logits, logits.T.contiguous().T):
            losses = task.losses(given, own)
            assert losses.values.shape == (points * records,), case
            assert losses.values.dtype == torch.float32, case
            assert torch.allclose(losses.values, expected, rtol=1e-5, atol=1e-6), case
            for point, weights in product(range(points), (1.0, -0.25, values()[:records])):
                rows = slice(point * records, (point + 1) * records)
                variable = kept[rows].clone().requires_grad_()
                total = (reference(task, variable, own) * weights).sum()
                (slopes,) = torch.autograd.grad(total, [variable])
                found = losses.slopes(rows, weights)
                assert (found.shape, found.dtype) == (slopes.shape, torch.float32), case
                assert torch.allclose(found, slopes, rtol=1e-5, atol=1e-6), case
                assert torch.equal(losses.slopes(rows, weights), found), case
                losses.correct(rows)
            task.predict(given)
            assert torch.equal(given, kept), case
        assert torch.equal(own, labelled), case


def test_a_row_and_a_label_leave_the_others_alone() -> None:
    for (task, labels), bad in product(CASES, [5.0, 1e30, torch.inf, torch.nan]):
        logits = logits_of(2, task.outputs)
        other, changed = logits.clone(), labels.clone()
        other[3] = bad * torch.linspace(0.5, 1.0, task.outputs)
        changed[2] = 1 - changed[2] if labels.dtype == torch.int64 and labels[2] < 2 else 0
        rows = [row for row in range(2 * RECORDS) if row % RECORDS not in (2, 3)]
        one, two = task.losses(logits, labels), task.losses(other, changed)
        assert torch.equal(one.values[rows], two.values[rows]), (task, bad)
        first, rows = slice(0, RECORDS), rows[: RECORDS - 2]
        assert torch.equal(one.slopes(first, 1.0)[rows], two.slopes(first, 1.0)[rows]), (task, bad)


def test_infinite_logits_say_nothing_aloud() -> None:
    """Losses may then be infinite or NaN; a warning would tell of data, and stops strict runs."""
    inf = torch.inf
    logits = torch.tensor([[-inf, 0.0], [0.0, -inf], [inf, 0.0], [inf, inf], [-inf, -inf]])
    for label in (0, 1):
        losses = Classification(2).losses(logits, torch.full((5,), label))
        losses.slopes(slice(0, 5), 1.0)
        losses.correct(slice(0, 5))
        assert losses.values[:2].tolist() == ([inf, 0.0] if label == 0 else [0.0, inf])
    Regression().losses(torch.tensor([[inf], [-inf]]), torch.tensor([0.0, inf]))


def test_predictions() -> None:
    for count in [2, 3, 10]:
        logits = logits_of(3, count, scale=5.0)
        found = Classification(count).predict(logits)
        assert torch.allclose(found, logits.softmax(1)), count
    assert torch.equal(Regression().predict(logits[:1, :1]), logits[:1, 0])


def test_a_regression_in_units_of_the_labels_spread() -> None:
    logits, labels = logits_of(2, 1), torch.linspace(900, 1300, RECORDS)
    task, plain = Regression(mean=1000.0, spread=50.0), Regression()
    assert torch.allclose(task.predict(logits), logits[:, 0] * 50 + 1000)
    found = task.losses(logits, labels)
    expected = plain.losses(logits, (labels - 1000) / 50)
    assert torch.equal(found.values, expected.values)
    rows = slice(RECORDS, 2 * RECORDS)
    assert torch.equal(found.slopes(rows, 0.5), expected.slopes(rows, 0.5))


def test_correct() -> None:
    """Nothing is right or wrong of a regression."""
    for points, count in product([1, 2, 3], [2, 5]):
        case = points, count
        logits, labels = logits_of(points, count), classes(count)
        losses = Classification(count).losses(logits, labels)
        for point in range(points):
            rows = slice(point * RECORDS, (point + 1) * RECORDS)
            assert losses.correct(rows) == int((logits[rows].argmax(1) == labels).sum()), case
        assert Regression().losses(logits[:, :1], values()).correct(slice(None)) == 0, case


@pytest.mark.parametrize("device", [*DEVICES, TRITON])
def test_a_cards_losses(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By Triton and by PyTorch they are autograd's; infinite logits are no number, or none."""
    place = placed(device, monkeypatch)
    for points, count in product([1, 3], [2, 5, 16]):
        case, rows = (points, count), points * RECORDS
        logits = logits_of(points, count, scale=5.0)
        labels = classes(count)
        variable = logits.clone().requires_grad_()
        wanted = reference(Classification(count), variable, labels)
        wanted.sum().backward()
        found = card.softmax(logits.to(place), labels.to(place))
        values, slopes, right = (each.cpu() for each in found)
        assert torch.allclose(values, wanted.detach(), rtol=1e-5, atol=1e-6), case
        assert variable.grad is not None
        assert torch.allclose(slopes, variable.grad, rtol=1e-5, atol=1e-6), case
        assert torch.equal(right, logits.argmax(1) == labels.repeat(points)), case
        assert values.shape == (rows,), case
    inf, labels = torch.inf, torch.zeros(2, dtype=torch.int64)
    logits = torch.tensor([[-inf, 0.0], [0.0, -inf], [torch.nan, 0.0], [0.0, torch.nan]])
    values, slopes, _ = card.softmax(logits.to(place), labels.to(place))
    assert values[:2].tolist() == [inf, 0.0]
    assert bool(values[2:].isnan().all()) and bool(slopes[2:].isnan().all())  # noqa: PT018
