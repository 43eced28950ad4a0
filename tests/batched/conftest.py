"""Runs made together, and the same runs made alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from vertizo import config
from vertizo.batched.together import Outcome, Wanted, train_together
from vertizo.config import ExperimentConfig
from vertizo.experiment import Experiment, Result

TINY = ("data.limit=100", "batch_size=16", "epochs=3")
"""90 training records in 6 batches, the last of 10; 4 clients: 24 rounds an epoch."""
Make = Callable[..., list[ExperimentConfig]]


@pytest.fixture(scope="session")
def configs() -> Make:
    """Configurations of some seeds: `TINY`, with what is overridden for all of them."""

    def make(*overrides: str, seeds: int = 3) -> list[ExperimentConfig]:
        return [config.load(None, (*TINY, *overrides, f"seed={seed}")) for seed in range(seeds)]

    return make


@pytest.fixture
def together(tmp_path: Path) -> Callable[[list[ExperimentConfig]], list[Outcome]]:
    """Makes runs at once, in folders of their own: together/0, together/1, …"""

    def make(wanted: list[ExperimentConfig]) -> list[Outcome]:
        places = [tmp_path / "together" / str(place) for place in range(len(wanted))]
        return train_together([Wanted(*each) for each in zip(wanted, places, strict=True)])

    return make


@pytest.fixture
def alone(tmp_path: Path) -> Callable[[list[ExperimentConfig]], list[Result]]:
    """Makes them one after another: alone/0, alone/1, …"""

    def make(wanted: list[ExperimentConfig]) -> list[Result]:
        return [
            Experiment(each).run(tmp_path / "alone" / str(place))
            for place, each in enumerate(wanted)
        ]

    return make
