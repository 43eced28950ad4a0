"""Where a member's model lives is the member's to say; a finished run predicts on the processor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.deployments import join_config

from vertizo.config.schema import ExperimentConfig, parse
from vertizo.core.errors import ConfigError
from vertizo.network.frames import Terms
from vertizo.network.terms import accepted
from vertizo.run.prediction import for_predicting


def terms(settings: dict[str, object]) -> Terms:
    return Terms(
        job="job",
        index=0,
        members=("north", "south"),
        settings=json.dumps(settings),
        own_tables=False,
        choice=0,
        shared=bytes(32),
        trial=True,
    )


def agreed(folder: Path, theirs: str, **own: object) -> ExperimentConfig:
    settings: dict[str, object] = {"client": {"device": theirs}}
    return accepted(terms(settings), join_config(folder, "north", client=own))


def test_the_label_holder_does_not_decide(tmp_path: Path) -> None:
    assert agreed(tmp_path, "cuda").client.device == "cpu"
    assert agreed(tmp_path, "cpu", device="cuda").client.device == "cuda"


def test_other_keys_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"client\.speed is no key; .*\.optimizer and \.device"):
        agreed(tmp_path, "cpu", speed=3)


def test_predicting_needs_no_card() -> None:
    assert for_predicting(parse({"client": {"device": "cuda"}})).client.device == "cpu"
