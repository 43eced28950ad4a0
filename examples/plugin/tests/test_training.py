"""The configuration of this folder, trained."""

from __future__ import annotations

from pathlib import Path

from vertizo import Experiment

RUN = Path(__file__).parents[1] / "run.yaml"


def test_clients_learn() -> None:
    """Held against the same run with clients that stay as they were initialised."""
    trained, frozen = (
        Experiment.from_yaml(RUN, [f"control={control}"]).run().summary
        for control in ("none", "frozen")
    )
    assert trained["test_accuracy"] > frozen["test_accuracy"] + 0.3


def test_a_run_states_its_guarantee() -> None:
    private = ["privacy.mechanism=gaussian", "privacy.epsilon=8", "server.update=none"]
    summary = Experiment.from_yaml(RUN, [*private, "epochs=2"]).run().summary
    assert summary["privacy"]["guarantee"] == "simulated"  # exact where the noise is secret
    assert summary["privacy"]["epsilon"] <= 8
