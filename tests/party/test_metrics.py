from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tests.rows import each

from vertizo.models.losses import Classification, Regression
from vertizo.party.metrics import scores

SEEDS = st.integers(0, 2**32 - 1)
NAN = math.nan


def test_scores_of_a_small_example_by_hand() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0], [0.0, 0.5]])
    found = scores(Classification(2), logits, torch.tensor([0, 1, 1, 0]))
    losses = [math.log1p(math.exp(x)) for x in (-2, -1, 3, 0.5)]
    assert found["loss"] == pytest.approx(sum(losses) / 4, rel=1e-6)
    assert found["accuracy"] == 0.5
    # Scores are −2, 1, −3, 0.5; of the four pairs of unlike labels two are in order.
    assert found["auc"] == 0.5
    assert found["average_precision"] == pytest.approx((1 / 1 + 2 / 4) / 2)


def test_the_positive_class_is_the_one_that_is_ranked() -> None:
    logits, labels = torch.randn(30, 2), torch.arange(30) % 2
    plain = scores(Classification(2), logits, labels)
    first = scores(Classification(2, positive=0), logits, labels)
    swapped = scores(Classification(2), logits.flip(1), 1 - labels)
    assert first["average_precision"] == swapped["average_precision"]
    assert first["average_precision"] != plain["average_precision"]
    assert first["loss"] == plain["loss"]


@given(seed=SEEDS, classes=st.integers(2, 5), rows=st.integers(1, 40))
def test_classification_agrees_with_brute_force(seed: int, classes: int, rows: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, classes, generator=generator) * 3
    labels = torch.randint(classes, (rows,), generator=generator)
    found = scores(Classification(classes), logits, labels)
    loss = float(F.cross_entropy(logits.double(), labels))
    assert found["loss"] == pytest.approx(loss, rel=1e-5, abs=1e-6)
    assert found["accuracy"] == float((logits.argmax(1) == labels).double().mean())
    both = classes == 2 and labels.unique().numel() == 2
    assert set(found) == {"loss", "accuracy"} | ({"auc", "average_precision"} if both else set())
    if both:
        margin = (logits[:, 1] - logits[:, 0]).double()
        above = margin[labels == 1][:, None] - margin[labels == 0][None, :]
        auc = float((above > 0).double().mean() + 0.5 * (above == 0).double().mean())
        assert found["auc"] == pytest.approx(auc, abs=1e-12)
        ranked = labels[margin.argsort(descending=True)].double()
        precision = ranked.cumsum(0) / torch.arange(1, rows + 1)
        average = float((precision * ranked).sum() / ranked.sum())
        assert found["average_precision"] == pytest.approx(average, abs=1e-12)


@each("labels, classes", [([0] * 5, 2), ([1] * 5, 2), ([0, 1, 2, 0, 1], 3)])
def test_there_is_no_ranking_of_one_class_alone_or_of_three(labels: list, classes: int) -> None:
    found = scores(Classification(classes), torch.randn(5, classes), torch.tensor(labels))
    assert set(found) == {"loss", "accuracy"}


@given(seed=SEEDS, rows=st.integers(2, 40))
def test_regression_agrees_with_brute_force(seed: int, rows: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    predictions = torch.randn(rows, 1, generator=generator)
    labels = torch.randn(rows, generator=generator)
    found = scores(Regression(), predictions, labels)
    p, y = predictions[:, 0].double().numpy(), labels.double().numpy()
    mse = float(np.mean((p - y) ** 2))
    assert set(found) == {"loss", "rmse", "r2"}
    assert found["loss"] == pytest.approx(mse / 2, rel=1e-5)
    assert found["rmse"] == pytest.approx(math.sqrt(mse), rel=1e-5)
    assert found["r2"] == pytest.approx(1 - mse / float(np.var(y)), rel=1e-4, abs=1e-4)


def test_a_scaled_regression_is_measured_in_the_labels_own_units() -> None:
    labels = torch.tensor([1_000_001.0, 1_000_003.0, 1_000_008.0])
    outputs = torch.tensor([[-1.0], [0.0], [1.0]])
    found = scores(Regression(mean=1_000_004.0, spread=2.0), outputs, labels)
    residuals = np.array([1.0, 1.0, -2.0])
    assert found["rmse"] == pytest.approx(math.sqrt(np.mean(residuals**2)))
    assert found["loss"] == pytest.approx(np.mean((residuals / 2) ** 2) / 2)
    assert found["r2"] == pytest.approx(1 - np.mean(residuals**2) / np.var([1.0, 3.0, 8.0]))


def test_the_ends() -> None:
    """Perfect, without spread, of large logits, of a model that diverged."""
    labels = torch.tensor([1.0, 2.0, 4.0])
    found = scores(Regression(), labels.unsqueeze(1), labels)
    assert found == {"loss": 0.0, "rmse": 0.0, "r2": 1.0}
    found = scores(Regression(), torch.tensor([[1.0], [2.0]]), torch.tensor([3.0, 3.0]))
    assert math.isnan(found["r2"])
    assert found["rmse"] == pytest.approx(math.sqrt(2.5))
    logits = torch.tensor([[1e4, -1e4], [-1e4, 1e4]])
    found = scores(Classification(2), logits, torch.tensor([0, 0]))
    assert (found["loss"], found["accuracy"]) == (pytest.approx(1e4), 0.5)
    logits = torch.tensor([[NAN, 0.0], [0.0, 1.0], [1.0, 0.0]])
    found = scores(Classification(2), logits, torch.tensor([0, 1, 0]))
    assert math.isnan(found["loss"])
    assert 0 <= found["auc"] <= 1
