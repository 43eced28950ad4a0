"""The closing figures, by hand and by brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lazy import Lazy
from tests.rows import examples

from vertizo.core.randomness import Stream
from vertizo.models.losses import Classification, MultiLabel, Regression
from vertizo.party.closing_scores import closing_scores, resampled, resamples

stats = Lazy("scipy.stats")
sklearn_metrics = Lazy("sklearn.metrics")

SEEDS = st.integers(0, 2**32 - 1)


def test_two_classes_by_hand() -> None:
    """Ten records, three positive; the two highest are one of each, and equal."""
    margin = torch.tensor([3.0, 3.0, 2, 1, 0.5, -1, -2, -3, -4, -5])
    labels = torch.tensor([1, 0, 1, 0, 0, 0, 1, 0, 0, 0])
    found = closing_scores(Classification(2), torch.stack([-margin / 2, margin / 2], 1), labels)
    assert found["auc"] == pytest.approx((6.5 + 6 + 3) / 21)
    assert found["gini"] == pytest.approx(2 * found["auc"] - 1)
    assert found["ks"] == pytest.approx(2 / 3 - 1 / 7)
    assert (found["lift_10"], found["recall_10"]) == (pytest.approx(5 / 3), pytest.approx(1 / 6))
    assert (found["precision"], found["recall"]) == (pytest.approx(2 / 5), pytest.approx(2 / 3))
    assert found["f1"] == pytest.approx(0.5)
    likely = torch.sigmoid(margin.double())
    assert found["brier"] == pytest.approx(float((likely - labels).square().mean()))
    assert found["auc_low"] < found["auc"] < found["auc_high"]


@given(seed=SEEDS, rows=st.integers(2, 60), levels=st.sampled_from([2, 5, 1000]))
@settings(deadline=None, max_examples=examples(25))
def test_two_classes_with_equal_scores(seed: int, rows: int, levels: int) -> None:
    draw = np.random.default_rng(seed)
    labels = torch.from_numpy(np.concatenate([[0, 1], draw.integers(0, 2, rows)]))
    logits = torch.from_numpy(draw.integers(0, levels, (rows + 2, 2)).astype(np.float32))
    task = Classification(2, positive=int(draw.integers(2)))
    found = closing_scores(task, logits, labels)
    assert found["gini"] == pytest.approx(2 * found["auc"] - 1, abs=1e-12)
    assert 0 <= found["auc_low"] <= found["auc_high"] <= 1
    margin = (logits[:, task.positive] - logits[:, 1 - task.positive]).numpy()
    seen, others = (margin[(labels == task.positive).numpy() == held] for held in (True, False))
    largest = stats.ks_2samp(seen, others, alternative="less").statistic
    assert found["ks"] == pytest.approx(largest, abs=1e-9)


@pytest.mark.full
def test_the_interval_is_as_wide_as_it_should_be() -> None:
    """Against the spread of the AUC over new test sets, and of an accuracy by its formula."""
    draw = np.random.default_rng(0)
    found = []
    for _ in range(200):
        labels = torch.from_numpy((np.arange(400) < 60).astype(np.int64))
        margin = torch.from_numpy(draw.normal(labels.numpy(), 1.0).astype(np.float32))
        found.append(closing_scores(Classification(2), torch.stack([-margin, margin], 1), labels))
    true = stats.norm.cdf(1 / math.sqrt(2))
    covered = np.mean([one["auc_low"] <= true <= one["auc_high"] for one in found])
    assert 0.88 <= covered <= 0.99
    width = np.mean([one["auc_high"] - one["auc_low"] for one in found])
    assert width == pytest.approx(2 * 1.96 * np.std([one["auc"] for one in found]), rel=0.2)


def test_more_classes_and_values() -> None:
    logits = torch.eye(3).repeat(40, 1) * 2
    labels = torch.arange(120) % 3
    labels[:30] = 0
    found = closing_scores(Classification(3), logits, labels)
    half = 1.96 * math.sqrt(found["accuracy"] * (1 - found["accuracy"]) / 120)
    assert found["accuracy_high"] - found["accuracy_low"] == pytest.approx(2 * half, rel=0.15)
    assert {"balanced_accuracy", "f1_macro", "auc_macro"} <= found.keys()
    assert "auc_macro" not in closing_scores(Classification(4), torch.randn(9, 4), labels[:9])
    values = torch.arange(50.0)
    found = closing_scores(Regression(), (values + 2).unsqueeze(1), values)
    assert (found["mae"], found["rmse_low"], found["rmse_high"]) == (2, 2, 2)


def test_what_cannot_be_ranked_or_is_too_much() -> None:
    alone = closing_scores(Classification(2), torch.randn(5, 2), torch.ones(5, dtype=torch.int64))
    assert set(alone) == {"loss", "accuracy"}
    logits = torch.tensor([[math.nan, 0.0], [0.0, 1.0]])
    assert "ks" not in closing_scores(Classification(2), logits, torch.tensor([0, 1]))
    assert [resamples(rows) for rows in (0, 10, 40_000, 10**7)] == [1000, 1000, 500, 100]


def test_several_labels_by_hand() -> None:
    """Of the third label one value does not occur: it has no AUC, and no part in the mean."""
    logits = torch.tensor([[2.0, -1, 1], [1, 3, 1], [-1, 2, 1], [-2, -3, 1]])
    labels = torch.tensor([[1.0, 0, 1], [0, 1, 1], [1, 0, 1], [0, 0, 1]])
    found = closing_scores(MultiLabel(("a", "b", "c")), logits, labels)
    assert (found["auc_1"], found["auc_2"]) == (0.75, 1.0)
    assert "auc_3" not in found
    assert found["auc"] == pytest.approx(0.875)
    assert found["accuracy"] == 0.5
    assert found["hamming"] == pytest.approx(3 / 12)
    likely = torch.sigmoid(logits.double())
    assert found["brier"] == pytest.approx(float((likely - labels).square().mean()))
    f1 = (2 * 1 / (2 * 1 + 2), 2 * 1 / (2 * 1 + 1), 1.0)
    assert found["f1_macro"] == pytest.approx(np.mean(f1))


@pytest.mark.full
@given(seed=SEEDS, rows=st.integers(3, 40), levels=st.sampled_from([2, 1000]))
@settings(deadline=None, max_examples=examples(10))
def test_several_labels_have_the_intervals_of_resamples(seed: int, rows: int, levels: int) -> None:
    draw = np.random.default_rng(seed)
    truth = draw.integers(0, 2, (rows, 2))
    truth[:2] = [[0, 1], [1, 0]]
    logits = draw.integers(0, levels, (rows, 2)).astype(np.float32)
    task, labels = MultiLabel(("a", "b")), torch.from_numpy(truth).float()
    found = resampled(task, torch.from_numpy(logits), labels)
    generator = Stream.from_seed(0).child("bootstrap of test records").generator()
    for mean, drawn in zip(found, generator.integers(0, rows, (len(found), rows)), strict=True):
        each = [
            sklearn_metrics.roc_auc_score(truth[drawn, place], logits[drawn, place])
            for place in range(2)
            if 0 < truth[drawn, place].sum() < rows
        ]
        assert mean == pytest.approx(np.mean(each) if each else 0.0)
