"""Scores against values that are known otherwise."""

from __future__ import annotations

import math

import pytest
import torch

from vertizo.lab.attacks.scores import (
    Figure,
    Guesses,
    Measurement,
    auc,
    most_allowed,
    relative_error,
    tpr_at,
)


def test_accuracy_and_chance() -> None:
    truth = torch.tensor([0, 0, 0, 1])
    score = Guesses(torch.tensor([0, 3, 3]), torch.tensor([0, 0, 1])).score(truth)
    assert score == Measurement(pytest.approx(2 / 3), 0.75, 3)
    assert Guesses.joined([]).score(torch.tensor([0, 1])).value == 0


def test_the_standard_error_is_that_of_the_mean() -> None:
    figure = Figure(tuple(Measurement(v, 0.5, 10) for v in (0.2, 0.4, 0.6)))
    assert figure.mean == pytest.approx(0.4)
    assert figure.standard_error == pytest.approx(0.2 / math.sqrt(3))
    assert Figure(figure.measurements[:1]).standard_error is None
    assert figure.as_dict()["trials"] == [0.2, 0.4, 0.6]


def test_auc_of_a_separating_score_its_mirror_and_a_constant() -> None:
    positive = torch.arange(10) >= 5
    scores = torch.arange(10.0)
    assert auc(scores, positive) == 1
    assert auc(-scores, positive) == 0
    assert auc(torch.zeros(10), positive) == 0.5
    assert auc(scores, torch.zeros(10, dtype=torch.bool)) == 0.5


def test_true_positives_at_few_false_ones() -> None:
    positive = torch.arange(200) >= 100
    scores = torch.arange(200.0)
    assert tpr_at(0.01, scores, positive) == 1
    assert tpr_at(0.01, torch.zeros(200), positive) == 0
    mixed = torch.cat([torch.arange(100.0), torch.full((100,), 98.5)])
    assert tpr_at(0.01, mixed, positive) == 1  # one of a hundred negatives may be above
    assert tpr_at(0.001, mixed, positive) == 0


def test_relative_error_of_the_mean_is_one_and_of_the_truth_zero() -> None:
    truth = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    mean = truth.mean(0)
    assert relative_error(mean.expand(50, 3), truth, mean) == pytest.approx(1)
    assert relative_error(truth, truth, mean) == 0


class TestMostAllowed:
    def test_two_classes_and_one_release_of_a_gaussian(self) -> None:
        """The best test between ±C with noise σ is right with probability Φ(C/σ), μ = 2C/σ."""
        rng = torch.Generator().manual_seed(1)
        clip, noise, count = 1.0, 2.0, 200_000
        sign = torch.where(torch.rand(count, generator=rng) < 0.5, 1.0, -1.0)
        seen = clip * sign + noise * torch.randn(count, generator=rng)
        share = float(((seen > 0) == (sign > 0)).double().mean())
        bound = most_allowed(0.5, 2 * clip / noise)
        assert share == pytest.approx(bound, abs=5 * 0.5 / math.sqrt(count))

    def test_no_release_is_chance_and_more_noise_is_less(self) -> None:
        assert most_allowed(0.1, 0) == pytest.approx(0.1)
        assert most_allowed(0.1, 0.5) < most_allowed(0.1, 1) < most_allowed(0.1, 4) < 1
        assert most_allowed(1.0, 1) == 1

    def test_ten_classes_on_the_corners_of_a_clipped_cube_stay_below(self) -> None:
        """The likeliest of ten orthogonal vectors of norm C: an attack that could be tried."""
        rng = torch.Generator().manual_seed(2)
        count, clip, noise = 100_000, 1.0, 1.0
        label = torch.randint(10, (count,), generator=rng)
        seen = clip * torch.eye(10)[label] + noise * torch.randn(count, 10, generator=rng)
        share = float((seen.argmax(1) == label).double().mean())
        assert 0.25 < share < most_allowed(0.1, 2 * clip / noise)
