"""Private labels of a served job: made once for its people, whoever dies and whatever follows."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import deployments as dep
from tests.network.by_hand import begin, live, query, replied
from tests.network.test_faults import run_house
from tests.rows import each

from vertizo.core.errors import ConfigError, RunError
from vertizo.network.serving.job import budget_for_jobs, charged_data
from vertizo.network.serving.options import ServeConfig
from vertizo.network.serving.serving import FederationService
from vertizo.privacy.labels import label_file
from vertizo.run.loop.ledger_session import create
from vertizo.run.results import checkpoint
from vertizo.run.results.folder import RunFolder

RESPONSE = {"mechanism": "randomised-response", "epsilon": 1.0}
TEACHER = {"mechanism": "teacher", "epsilon": 1.0, "teacher": {"components": 5}}


def job(folder: Path, name: str = "server", **privacy: Any) -> ServeConfig:
    served = {"trial": False, "folder": folder / name}
    config: ServeConfig = dep.serve_config(
        folder, federation=served, privacy={**RESPONSE, **privacy}, simulation={"table": "upload"}
    )
    return config


@pytest.mark.full
@each("privacy", [RESPONSE, TEACHER])
def test_they_are_made_once_whoever_dies(
    privacy: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[bytes] = []
    write = label_file.write_whole

    def noted(path: Path, content: bytes) -> None:
        written.append(content)
        write(path, content)

    folder = tmp_path / privacy["mechanism"]
    with monkeypatch.context() as patch:
        patch.setattr(label_file, "write_whole", noted)
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        house = run_house(folder, job(folder, **privacy), 1, deaths=20, trial=False)
    assert house.deaths > 8
    (only,) = written
    assert (folder / "server" / "labels").read_bytes() == only
    ended = checkpoint.load(folder / "server" / "checkpoints" / "last.safetensors")
    kept = ended["state"]["course"]["party"]["private_labels"]
    assert kept.numpy().astype("<i8").tobytes() in only
    summary = RunFolder(folder / "server").summary()
    assert summary is not None
    assert summary["privacy"]["guarantee"] == "exact"
    assert summary["privacy"]["covers"] == ["labels"]


def serve(config: ServeConfig) -> tuple[str, torch.Tensor]:
    with FederationService(config) as service:
        begin(service)
        if service.failure is not None:
            raise service.failure
        party = live(service).job.party
        return live(service).job.statement.words, party.side.labels


def test_a_second_job_uses_those_of_the_first_or_does_not_begin(tmp_path: Path) -> None:
    words, labels = serve(job(tmp_path, "first"))
    assert "all runs on the private labels in 'labels' together" in words
    kept = tmp_path / "first" / "labels"
    _, shared = serve(job(tmp_path, "second", ledger=kept))
    assert torch.equal(labels, shared)
    with pytest.raises(RunError, match=f"are charged to the ledger {kept} already"):
        serve(job(tmp_path, "third"))
    with pytest.raises(RunError, match=f"are charged to the ledger {kept} already"):
        serve(ServeConfig.model_validate(job(tmp_path, "fourth").model_dump() | dep.PRIVATE))
    with pytest.raises(ConfigError, match=r"privacy.epsilon is 3.0 but .* made with 1.0"):
        serve(job(tmp_path, "fifth", ledger=kept, epsilon=3.0))
    further, beside = tmp_path / "further", job(tmp_path, "more", ledger=tmp_path / "further")
    records = charged_data(beside)
    budget = partial(budget_for_jobs, beside, records, 1)
    create(further, beside.experiment(), records, budget, further=True)
    assert "same records ('labels') ε = 2 at δ = 0" in serve(beside)[0]
    kept.unlink()
    with pytest.raises(RunError, match="are charged to the ledger"):
        serve(job(tmp_path, "sixth", ledger=kept))


def test_a_trial_promises_nothing(tmp_path: Path) -> None:
    with FederationService(dep.serve_config(tmp_path, privacy=RESPONSE)) as service:
        begin(service)
        assert live(service).job.statement.guarantee == "none"
        replied(service, "north", query(0, 0))
    assert not (tmp_path / "server" / "labels").exists()
