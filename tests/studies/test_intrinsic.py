"""VFL-CZOFO's intrinsic figures of a finished run: T counts the replies to every client."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import yaml

import vertizo.studies.reproduction
from vertizo.config.schema import parse
from vertizo.data.vertical import VerticalData
from vertizo.privacy.intrinsic import Frozen, Intrinsic
from vertizo.run.build_privacy import planned_rounds
from vertizo.run.experiment import Experiment
from vertizo.run.folder import RunFolder
from vertizo.studies.intrinsic import intrinsic


def test_the_papers_setting_has_the_papers_figures() -> None:
    """Table 2: two clients, 50 epochs of 60,000 records in batches of 64."""
    studies = Path(vertizo.studies.reproduction.__file__).parent / "studies"
    settings = yaml.safe_load((studies / "czofo-table2.yaml").read_text())["settings"]
    config = parse({**settings, "method": {"name": "czofo"}})
    data = cast(VerticalData, SimpleNamespace(records=60_000, parties=("upper", "lower")))
    steps = planned_rounds(config, data)
    assert steps == 93_800
    figures = Intrinsic.of([Frozen(1.61, 20.1, 100, 128)], steps=steps, records=60_000)
    assert f"{figures.epsilon_as_printed:.1f}" == "85.9"
    assert f"{figures.epsilon_as_cited:.2f}" == "5.24"
    assert f"{figures.total_delta:.3f}" == "0.094"


@pytest.mark.parametrize("given", [{}, {"rounds": 5}])
def test_t_counts_the_replies_to_all_clients(tmp_path: Path, given: dict[str, int]) -> None:
    config = parse(
        {
            "epochs": 2,
            "batch_size": 16,
            "data": {"limit": 100, "parties": 3},
            "method": {"name": "czofo", "num_directions": 4},
            **given,
        }
    )
    result = Experiment(config).run(tmp_path / "run")
    found = intrinsic(RunFolder(tmp_path / "run"), repeats=3)
    assert found.steps == result.summary["rounds"]
    assert found.total_delta == pytest.approx(found.steps * 1e-6 + 1e-6)
    if not given:
        assert found.steps == 3 * 2 * -(-found.records // 16)
