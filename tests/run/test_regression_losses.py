"""Huber losses and quantiles from the configuration to a run's folder, figures and predictions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.refusals import refused
from tests.rows import each

from vertizo.config import schema
from vertizo.core.errors import ConfigError
from vertizo.data.prepared import Preparation
from vertizo.models.losses import Huber, Quantile, Regression
from vertizo.party.closing_scores import closing_scores
from vertizo.run.experiment import Experiment
from vertizo.run.results.folder import RunFolder
from vertizo.run.trained.prediction import Predictor

DIABETES = ("data.name=diabetes", "epochs=30", "batch_size=30", "seed=0", "method.name=vafl")
NOISE = ("privacy={noise: seeded, clip: 0.5, epsilon: 5}", "data.label_range=[0,400]")


def experiment(*settings: str) -> Experiment:
    return Experiment(schema.load(None, (*DIABETES, *settings)))


@pytest.mark.full
def test_a_quantile_has_its_share_of_labels_below(tmp_path: Path) -> None:
    """Its folder predicts and scores as the run did."""
    made = {}
    for level in (0.1, 0.9):
        folder = tmp_path / str(level)
        config = ("data.loss=quantile", f"data.quantile={level}", "server.final_head=boosting")
        made[level] = experiment(*config).run(folder).summary
        task = RunFolder(folder).preparation().task
        assert isinstance(task, Quantile)
        assert task.level == level
        again = Predictor.load(folder).test().scores
        assert again["pinball"] == pytest.approx(made[level]["test_pinball"], rel=1e-5)
    assert made[0.1]["test_below"] < 0.35 < 0.65 < made[0.9]["test_below"]
    assert made[0.9]["raw_head"]["test_below"] > 0.6
    for figures in made.values():
        assert figures["test_pinball_low"] < figures["test_pinball"] < figures["test_pinball_high"]
        assert figures["metric"] == "loss"


def test_a_huber_loss_bears_a_label_far_out() -> None:
    """What one label can move is bounded by δ, so that its slope is."""
    labels = torch.tensor([0.0, 1.0, 1e6])
    found = Huber(delta=2.0).losses(torch.zeros(3, 1), labels).slopes(slice(0, 3), 1.0)
    assert found.flatten().tolist() == [0.0, -1.0, -2.0]
    scores = closing_scores(Huber(3.0, 2.0, 1.0), torch.zeros(2, 1), torch.tensor([5.0, 103.0]))
    assert scores["huber"] == pytest.approx((2**2 / 2 + 2 * (100 - 1)) / 2)


@each("loss", ["huber", "quantile"])
def test_what_holds_for_them_and_what_is_refused(loss: str) -> None:
    """Clipped replies are as private as ever; labels that are made private are classes."""
    config = (f"data.loss={loss}", "epochs=2")
    exact = (*config, *NOISE, "privacy.mechanism=gaussian", "method.name=tangent")
    summary = experiment(*exact).run().summary
    assert summary["privacy"]["guarantee"] == "simulated"
    assert summary["privacy"]["epsilon"] == pytest.approx(5, rel=1e-3)
    summary = experiment(*config, "control=label-free").run().summary
    assert summary["raw_head"]["test_loss"] > 0
    for mechanism in ("teacher", "randomised-response"):
        private = (*config, "privacy.epsilon=5", f"privacy.mechanism={mechanism}")
        match = f"{mechanism}' is for classes but .* is a regression; use 'gaussian'"
        refused(mechanism, ConfigError, experiment(*private).check, match=match)


def test_a_file_of_squares_says_nothing_of_losses() -> None:
    """So that folders of earlier versions are read, and theirs stay as they were."""
    for task in (Regression(1.0, 2.0), Huber(1.0, 2.0, 3.0), Quantile(1.0, 2.0, 0.25)):
        text = Preparation({}, "y", task, None).to_json()
        again = Preparation.from_json(text).task
        assert type(again) is type(task)
        assert vars(again) == vars(task)
        assert ("loss" in text) == (type(task) is not Regression)
