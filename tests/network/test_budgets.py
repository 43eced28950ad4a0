"""Jobs on the same people are charged to one ledger, or the second one does not begin."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests import deployments as dep
from tests.network.by_hand import answer_to, begin, live, query, replied, upload_all

from vertizo.core.errors import ConfigError, RunError
from vertizo.core.names import PRIVATE
from vertizo.network.serving.job import budget_for_jobs, charged_data, records_of
from vertizo.network.serving.options import ServeConfig
from vertizo.network.serving.serving import FederationService
from vertizo.privacy.ledger.durable import DurableLedger
from vertizo.run.build.record_identity import names_of


def job(folder: Path, name: str, ledger: Path | None = None, **keys: Any) -> ServeConfig:
    """A job with an exact guarantee, in a folder of its own."""
    tree = {**dep.PRIVATE, **keys}
    if ledger is not None:
        tree["privacy"] = {**tree["privacy"], "ledger": ledger}
    config: ServeConfig = dep.serve_config(
        folder, federation={"trial": False, "folder": folder / name}, **tree
    )
    return config


def serve(config: ServeConfig, queries: int = 1) -> str:
    """Begin a job and answer a few queries of its first member; what it states."""
    with FederationService(config) as service:
        begin(service)
        if service.failure is not None:
            raise service.failure
        if live(service).phase == "uploading":
            upload_all(service)
        for number in range(queries):
            replied(service, "north", query(0, number, first=32 * number))
        return live(service).job.statement.words


def test_a_second_job_on_the_same_people_does_not_begin(tmp_path: Path) -> None:
    """Each of two would state its own ε as that of all runs together."""
    assert "together have ε = 2 at" in serve(job(tmp_path, "first"))
    ledger = tmp_path / "first" / "ledger.sqlite"
    for keys in (
        {},
        {"seed": 5},
        {"data": {**dep.SMALL["data"], "limit": 150}},
        {"data": {**dep.SMALL["data"], "validation": 0.3}},
    ):
        with pytest.raises(RunError, match="records are charged to the ledger") as error:
            serve(job(tmp_path, "second", **keys))
        assert str(ledger) in str(error.value)
        assert "set privacy.ledger to that file" in str(error.value)
        assert not (tmp_path / "second").exists()
    serve(job(tmp_path, "first"), 0)  # which goes on
    with pytest.raises(RunError, match=r"not covered.*--further|more secret steps"):
        serve(job(tmp_path, "second", ledger))


@pytest.mark.full
def test_jobs_without_a_guarantee_need_no_ledger(tmp_path: Path) -> None:
    serve(job(tmp_path, "first"))
    serve(job(tmp_path, "plain", server={"update": "sgd"}, privacy={}))
    raw = {"mechanism": "gaussian", "clip": 1.0, "noise_std": 5.0}
    serve(job(tmp_path, "raw labels", server={"update": "sgd"}, privacy=raw))
    trial = dep.serve_config(tmp_path, federation={"folder": tmp_path / "trial"}, **dep.PRIVATE)
    serve(trial)


def test_one_ledger_pays_for_several_jobs_and_no_more(tmp_path: Path) -> None:
    """As after a member lost its folder: another job, in new folders, from the same budget."""
    ledger = tmp_path / "people.sqlite"
    data = charged_data(job(tmp_path, "first"))
    budget = budget_for_jobs(job(tmp_path, "first"), data, 2)
    DurableLedger.create(ledger, budget, names=names_of(data))
    words = serve(job(tmp_path, "first", ledger))
    assert f"'people.sqlite' together have ε = {budget.epsilon:.4g}" in words
    assert 2 < budget.epsilon < 4
    other = job(tmp_path, "second", ledger, client={"model": {"hidden": [], "outputs": 4}}, seed=3)
    serve(other)
    summary = DurableLedger.inspect(ledger)
    assert len(summary.runs) == 2
    assert summary.replies == 2
    with pytest.raises(RunError, match="records are charged to the ledger"):
        serve(job(tmp_path, "third"))


@pytest.mark.full
@pytest.mark.parametrize("update", ["none", *PRIVATE])
def test_a_job_on_a_ledger_for_several_takes_no_more_than_it_states(
    update: str, tmp_path: Path
) -> None:
    """Whatever members ask: each names one record in every query that it may make."""
    ledger = tmp_path / "people.sqlite"
    config = job(tmp_path, "greedy", ledger, server={"update": update, "model": {"hidden": []}})
    data = charged_data(config)
    DurableLedger.create(ledger, budget_for_jobs(config, data, 10), names=names_of(data))
    for _ in range(2):  # and after a restart
        with FederationService(config) as service:
            if service.state is None:
                begin(service)
                upload_all(service)
            made = live(service).job
            releases, most = made.party.side.plan.releases, made.statement.max_participations
            for client, member in enumerate(dep.MEMBERS):
                for number in range(made.queries):
                    answer_to(service, member, query(client, number, count=1))
        tally = DurableLedger.inspect(ledger)
        assert releases is not None
        assert tally.spent == releases.share * releases.clients
        assert tally.replies == most == releases.queries * releases.clients
        assert tally.left > 0, "there is some for other jobs"


def test_a_job_whose_checkpoint_is_gone_is_not_begun_anew(tmp_path: Path) -> None:
    """Its replies left, and so did what its secret steps made of the records."""
    config = job(tmp_path, "first")
    serve(config, queries=0)
    shutil.rmtree(tmp_path / "first" / "checkpoints")
    serve(config, queries=2)  # nothing had left
    steps = DurableLedger.inspect(tmp_path / "first" / "ledger.sqlite").steps
    shutil.rmtree(tmp_path / "first" / "checkpoints")
    with pytest.raises(RunError, match="its checkpoint is gone; put the folder back"):
        serve(config)
    assert DurableLedger.inspect(tmp_path / "first" / "ledger.sqlite").steps == steps


@pytest.mark.full
def test_a_further_budget_is_stated_with_the_first(tmp_path: Path) -> None:
    serve(job(tmp_path, "first"))
    ledger = tmp_path / "further.sqlite"
    data = charged_data(job(tmp_path, "second"))
    budget = budget_for_jobs(job(tmp_path, "second"), data, 1)
    with pytest.raises(RunError, match="--further"):
        DurableLedger.create(ledger, budget, names=names_of(data))
    DurableLedger.create(ledger, budget, names=names_of(data), further=True)
    assert "ledgers of some of the same records" in serve(job(tmp_path, "second", ledger))
    for name, path in (("first", None), ("second", ledger)):
        words = serve(job(tmp_path, name, path), 0)
        assert "ε = 4 at δ = 0.002" in words, words
        assert "Label advantage: at most 0." in words
        assert str(tmp_path) not in words  # members hear them


def test_a_trial_has_no_budget(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no ledger is for that"):
        charged_data(dep.serve_config(tmp_path, **dep.PRIVATE))


@pytest.mark.full
def test_a_table_is_known_by_its_keys(tmp_path: Path) -> None:
    """Whatever the file is called, and whatever else is in it."""
    people = [f"p{number:03}" for number in range(60)]
    path = tmp_path / "people.csv"
    pl.DataFrame({"who": people[::-1], "ill": [n % 2 for n in range(60)]}).write_csv(path)
    data = {"name": "table", "path": path, "id": "who", "label": "ill", "classes": ["0", "1"]}
    config = job(tmp_path, "first", data=data)
    found = records_of(config.experiment(), config.federation).data
    assert found.keys is not None
    keys = found.keys()
    assert len(keys) == found.records
    assert keys == sorted(keys)
    assert set(keys) < set(people)
    ills = dict(zip(people[::-1], [n % 2 for n in range(60)], strict=True))
    assert found.labels["train"].tolist() == [ills[key] for key in keys]
    records = charged_data(config)
    budget = budget_for_jobs(config, records, 1)
    names = names_of(records)
    assert names is not None
    assert names.keys == keys
    DurableLedger.create(tmp_path / "ledger.sqlite", budget, names=names)
    renamed, tests = tmp_path / "others.csv", tmp_path / "tests.csv"
    renamed.write_text(f"who,ill\n{keys[0]},1\nnew,0\nn2,1\n")
    tests.write_text("who,ill\nt1,1\nt2,0\n")
    other = {**data, "path": renamed, "test_path": tests, "validation": 0}
    second = job(tmp_path, "second", data=other, batch_size=1)
    with (
        pytest.raises(RunError, match="1 of 3 records are charged"),
        FederationService(second),
    ):
        pass
