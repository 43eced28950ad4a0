"""The method without a query: the control ``label-free``, to be chosen, served and predicted by."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import deployments as dep
from tests import federations as fed
from tests.network.test_evaluations import held_run
from tests.rows import each
from tests.run.estimators.test_estimator import PARTIES, X, Y

import vertizo as vz
from vertizo.config.schema import ExperimentConfig, parse
from vertizo.core.errors import ConfigError, RunError
from vertizo.data.vertical import Holding
from vertizo.lab.attacks.settings import setting
from vertizo.lab.tuning.search import Options, tune
from vertizo.methods.one_shot import OneShot
from vertizo.network.serving import archive, frames
from vertizo.network.serving.frames import Done, Noted, Send
from vertizo.network.serving.job import Records, records_of
from vertizo.run.build.label_free import FITTED, controls_of
from vertizo.run.experiment import Experiment
from vertizo.run.loop.federation import build
from vertizo.run.loop.ledger_session import budget_for
from vertizo.run.results.folder import RunFolder
from vertizo.run.trained.export import parts_of
from vertizo.run.trained.prediction import Predictor

SMALL: dict[str, Any] = {"seed": 0, "data": {"name": "digits", "limit": 300, "test_limit": 100}}


def configured(**changes: Any) -> ExperimentConfig:
    return parse({**SMALL, "method": {"name": "one-shot"}, **changes})


def test_it_is_the_label_free_control_as_a_method(tmp_path: Path) -> None:
    seen: list[bytes] = []
    found = Experiment(configured()).run(
        tmp_path / "run", observer=lambda now, way, client, frame: seen.append(frame)
    )
    control = Experiment(parse({**SMALL, "control": "label-free"})).run().summary
    summary, privacy = found.summary, found.summary["privacy"]
    assert summary["raw_head"] == control["raw_head"]
    assert summary["test_accuracy"] == control["test_accuracy"] > 0.75
    assert (seen, summary["rounds"], summary["bytes_up"], summary["bytes_down"]) == ([], 0, 0, 0)
    assert (privacy["guarantee"], privacy["epsilon"], privacy["delta"]) == ("exact", 0, 0)
    assert privacy["covers"] == ["labels", "each client's features against the other clients"]
    predictor = Predictor.load(tmp_path / "run")
    assert predictor.head == "raw"
    assert predictor.test().scores is not None  # and they are the run's, or it raises
    with pytest.raises(RunError, match="nothing but its raw head; predict with --head raw"):
        Predictor.load(tmp_path / "run", "private")


def test_no_label_and_no_epsilon_changes_what_is_sent() -> None:
    """An ε asks for no more than 0, so that no noise is drawn and nothing charged."""
    sent = []
    for privacy in ({}, {"epsilon": 1.0}, {"mechanism": "teacher", "epsilon": 1.0}):
        data = fed.data(records=60)
        data.labels["train"] = data.labels["train"].roll(len(sent))
        federation = build(configured(privacy=privacy, data={}), data)
        assert federation.releases is None
        assert federation.statement().epsilon == 0
        sent.append([client.upload("train", 0, 60) for client in federation.clients])
    assert sent[0] == sent[1] == sent[2]


@each("time, own, expected", [(None, True, 3), (None, False, 2), ("a", True, 2)])
def test_what_zero_covers(time: str | None, own: bool, expected: int) -> None:
    """All that is not sent, but for a column that says who tests."""
    names = [f"c{number}" for number in range(7)]
    table: dict[str, Any] = {"name": "table", "label": "y", "path": "none.csv", "test": 0.2}
    columns = {"mine": ["a"], "one": names[:3], "two": names[3:]}
    if not own:
        columns["one"] += columns.pop("mine")
    table |= {"columns": columns, "time": time} | ({"label_holder": "mine"} if own else {})
    config = configured(data=table)
    data = replace(fed.data(), parties=("one", "two", "three"))
    if own:
        rows = {purpose: torch.zeros(len(y), 1) for purpose, y in data.labels.items()}
        data = replace(data, own=Holding("mine", rows), fitted=("mine", "one"))
    assert len(build(config, data).statement().covers) == expected


def test_labels_that_say_what_the_classes_are_leave_no_guarantee() -> None:
    """Whether a job begins may depend on them."""
    found = build(configured(data={}), replace(fed.data(), fitted_labels=True)).statement()
    assert (found.guarantee, found.words) == ("none", FITTED)


def test_nothing_untrained_is_scored_handed_on_or_counted(tmp_path: Path) -> None:
    """How long a score takes depends on labels, and members wait for it."""
    found = Experiment(configured(server={"final_head": "auto"})).run(tmp_path / "run")
    assert found.metrics == []
    names = {part.name for part in parts_of(tmp_path / "run")}
    assert "server" not in names
    assert len(names) == 4
    with pytest.raises(ConfigError, match="is none of the parties"):
        parts_of(tmp_path / "run", ["server"])
    config = configured(privacy={"epsilon": 1.0})
    with pytest.raises(ConfigError, match="release nothing; leave the ledger out"):
        budget_for(config, Experiment(config).data(), 1)
    secure = Experiment(configured(privacy={"epsilon": 1.0, "noise": "secure"}))
    assert secure.run(tmp_path / "secure")
    secure.run(tmp_path / "secure", resume=True)


def test_a_codec_makes_the_upload_smaller() -> None:
    """Of a control's nothing is coded; of the method what is asked for."""
    sizes = []
    for bits in (None, 8, 2):
        up = {} if bits is None else {"codecs": {"up": {"name": "uniform", "bits": bits}}}
        summary = Experiment(configured(**up)).run().summary
        sizes.append(summary["bytes_table"] + summary["bytes_evaluation"])
        assert summary["test_accuracy"] > 0.5
    assert sizes[0] > 2 * sizes[1] > 2 * sizes[2]


def test_what_does_not_go_with_it() -> None:
    refused = (
        ({"control": "frozen"}, "control is 'frozen' but clients of method 'one-shot' are not"),
        ({"control": "label-free"}, "control is 'label-free' but clients of"),
        (
            {"privacy": {"mechanism": "embedding-noise", "clip": 1.0, "noise_std": 1.0}},
            "privacy.mechanism is 'embedding-noise' but what clients of method 'one-shot' upload",
        ),
        ({"server": {"update": "sgd"}}, "server.update is 'sgd' but method 'one-shot'"),
    )
    for changes, words in refused:
        with pytest.raises(ConfigError, match=words):
            configured(**changes)
    with pytest.raises(ConfigError, match="method 'one-shot' makes no evaluation on the way"):
        tune(configured(), Path("never"), Options())
    assert controls_of(configured()) == ()
    with pytest.raises(ConfigError, match="sends clients nothing, so that there is nothing to"):
        setting("trained", "one-shot")
    with pytest.raises(Exception, match="ask nothing"):
        OneShot().ask(None, 0, None)


def test_estimators_fit_keep_and_predict_it(tmp_path: Path) -> None:
    public: dict[str, Any] = {"classes": sorted(Y.unique().to_list()), "random_state": 0}
    model = vz.VerticalClassifier(PARTIES, method="one-shot", embedding_dim=2, **public)
    model.fit(X, Y)
    assert model.score(X, Y) > 0.8
    assert "ε = 0" in model.privacy_
    model.save(tmp_path / "kept")
    again = vz.VerticalClassifier.load(tmp_path / "kept")
    assert (again.predict_proba(X) == model.predict_proba(X)).all()


def test_real_parties_upload_once_and_hear_nothing_of_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As simulated; no query is sent, and members hear what they hear where labels are others."""
    once = {"method": {"name": "one-shot"}}
    house = held_run(tmp_path / "one", deaths=False, **once)
    folder = RunFolder(tmp_path / "one" / "server")
    summary, here = folder.summary() or {}, Experiment(house.config.experiment()).run()
    for key in ("test_accuracy", "test_loss", "raw_head"):
        assert summary[key] == here.summary[key], key
    assert (summary["rounds"], summary["queries"]) == (0, [0, 0, 0, 0])
    assert summary["privacy"]["epsilon"] == 0  # in a trial too, as there is no secret noise
    kept = folder.load("raw_head")["head"]
    assert all(torch.equal(here.raw_head[name], kept[name]) for name in kept)

    def others(*about: Any) -> Records:
        found = records_of(*about)
        labels = {purpose: torch.zeros_like(y) for purpose, y in found.data.labels.items()}
        return replace(found, data=replace(found.data, labels=labels))

    monkeypatch.setattr(archive, "records_of", others)
    other = held_run(tmp_path / "other", deaths=False, **once)
    for member in dep.MEMBERS:
        told, again = ([frames.decode(one) for one in of.heard[member]] for of in (house, other))
        assert told[1:] == again[1:]  # the first are terms, which name the job
        sent = [one.purpose.own for one in told if isinstance(one, Send)]
        assert sent == ["validation", "test", "train"]
        assert all(isinstance(one, Send | Noted | Done) for one in told[1:])


@pytest.mark.full
def test_a_label_holder_killed_during_the_uploads_ends_the_same(tmp_path: Path) -> None:
    summaries = []
    for deaths in (False, True):
        folder = tmp_path / str(deaths)
        house = held_run(folder, deaths=deaths, method={"name": "one-shot"})
        assert house.deaths >= 3 * deaths
        summaries.append(RunFolder(folder / "server").summary() or {})
    assert summaries[0]["raw_head"] == summaries[1]["raw_head"]


def test_with_a_guarantee_no_ledger_is_made_for_real_parties(tmp_path: Path) -> None:
    once = {"method": {"name": "one-shot"}, "privacy": {"epsilon": 1.0}}
    config = dep.serve_config(tmp_path, federation={"trial": False}, **once)
    members = [dep.join_config(tmp_path, member, trial=False) for member in dep.MEMBERS]
    done = dep.served(tmp_path, config, members)
    assert all(one.words.startswith("ε = 0: ") for one in done)
    assert not (tmp_path / "server" / "ledger.sqlite").exists()
