"""VFL-CZOFO's intrinsic figures of a finished run: T counts the replies to every client."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import yaml
from torch import Tensor

import vertizo.lab.reproduction
from vertizo.config.schema import parse
from vertizo.data.vertical import VerticalData
from vertizo.lab.intrinsic import Frozen, Intrinsic, intrinsic, measure
from vertizo.run.build.privacy import planned_rounds
from vertizo.run.experiment import Experiment
from vertizo.run.results.folder import RunFolder


def test_the_papers_setting_has_the_papers_figures() -> None:
    """Table 2: two clients, 50 epochs of 60,000 records in batches of 64."""
    studies = Path(vertizo.lab.reproduction.__file__).parent / "studies"
    settings = yaml.safe_load((studies / "czofo-table2.yaml").read_text())["settings"]
    config = parse({**settings, "method": {"name": "czofo"}})
    data = cast(VerticalData, SimpleNamespace(records=60_000, parties=("upper", "lower")))
    steps = planned_rounds(config, data)
    assert steps == 93_800
    figures = Intrinsic.of([Frozen(1.61, 20.1, 100, 128)], steps=steps, records=60_000)
    assert f"{figures.epsilon_as_printed:.1f}" == "85.9"
    assert f"{figures.epsilon_as_cited:.2f}" == "5.24"
    assert f"{figures.total_delta:.3f}" == "0.094"


def test_t_counts_the_replies_to_all_clients(tmp_path: Path) -> None:
    tree = {
        "epochs": 2,
        "batch_size": 16,
        "data": {"limit": 100, "parties": 3},
        "method": {"name": "czofo", "num_directions": 4},
    }
    for rounds in (None, 5):
        folder = tmp_path / str(rounds)
        config = parse(tree if rounds is None else {**tree, "rounds": rounds})
        result = Experiment(config).run(folder)
        found = intrinsic(RunFolder(folder), repeats=3)
        assert found.steps == result.summary["rounds"]
        assert found.total_delta == pytest.approx(found.steps * 1e-6 + 1e-6)
        if rounds is None:
            assert found.steps == 3 * 2 * -(-found.records // 16)


@pytest.mark.parametrize("join", ["concat", "sum", "mean"])
def test_each_client_is_measured_at_its_own_embeddings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, join: str
) -> None:
    """Not at what the table joins them to; and the gradient is that of the losses there."""
    config = parse(
        {
            "epochs": 1,
            "batch_size": 16,
            "data": {"limit": 100, "parties": 3, "validation": 0},
            "method": {"name": "czofo", "num_directions": 4},
            "server": {"join": join},
        }
    )
    federation = Experiment(config).run(tmp_path / "run").federation
    wanted = []
    for model, client in zip(federation.models, federation.clients, strict=True):
        wanted.append(model(federation.data.features[client.index]["train"][client.batches.ids(0)]))

    def check(losses: Any, embeddings: Tensor, gradients: Tensor, **more: Any) -> Frozen:
        torch.testing.assert_close(embeddings, wanted.pop(0))
        step = 3e-3 * torch.randn(embeddings.shape, generator=torch.Generator().manual_seed(0))
        there, back = losses(torch.stack([embeddings + step, embeddings - step]))
        slopes, wrong = (there - back) / 2, (there - back) / 2 - (gradients * step).sum(1)
        assert wrong.norm() < 0.2 * slopes.norm()
        return measure(losses, embeddings, gradients, **more)

    monkeypatch.setattr("vertizo.lab.intrinsic.measure", check)
    intrinsic(RunFolder(tmp_path / "run"), repeats=2)
    assert not wanted
