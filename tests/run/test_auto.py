"""``method: auto``: what is tried on what, what is taken, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.refusals import one_line
from tests.rows import each

import vertizo as vz
from vertizo.config import auto as presets
from vertizo.config import choosing, schema
from vertizo.config.choosing import Open
from vertizo.core.errors import ConfigError, RunError
from vertizo.data.vertical import VerticalData
from vertizo.privacy.ledger.durable import DurableLedger
from vertizo.run import auto
from vertizo.run.build.record_identity import names_of
from vertizo.run.experiment import Experiment, settled
from vertizo.run.loop.ledger_session import budget_for

TABLE: dict[str, Any] = {"name": "breast-cancer", "limit": 80, "validation": 0.2}
QUICK: dict[str, Any] = {"method": "auto", "seed": 0, "epochs": 1, "data": TABLE}


def opened(**changed: Any) -> Open:
    found = choosing.parse({**QUICK, **changed})
    assert isinstance(found, Open)
    return found


def answers(
    monkeypatch: pytest.MonkeyPatch, **figures: float | None
) -> list[tuple[str, VerticalData]]:
    """Trials answer with these figures, in turn, by candidate; what they were given."""
    seen: list[tuple[str, VerticalData]] = []

    def trained(config: Any, part: VerticalData, tell: Any) -> dict[str, Any]:
        model = getattr(config.client.model, "name", "")
        name = config.method.name if config.method.name != "split" else f"split {model}"
        key = {"split table": "network", "split mlp": "linear"}.get(name, name)
        seen.append((key, part))
        if figures[key] is None:
            raise RunError("it diverged")
        return {"test_auc": figures[key]}

    monkeypatch.setattr(auto, "_trained", trained)
    return seen


def test_the_best_on_validation_records_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no trial has a test record, or more training records than it may."""
    monkeypatch.setattr(presets, "FEW", 50)
    monkeypatch.setattr(auto, "MOST", 40)
    seen = answers(monkeypatch, network=0.7, linear=0.9, dpzv=0.8)
    told: list[str] = []
    experiment = Experiment(opened())
    experiment.settle(told.append)
    data, config = experiment.data(), experiment.config
    assert told == [f"method auto: trying {name}" for name in list(auto.NAMES.values())[:3]]
    assert config.method.name == "split"
    assert (config.client.model.name, config.server.model.hidden) == ("mlp", ())
    assert [name for name, _ in seen] == ["network", "linear", "dpzv"]
    for _, part in seen:
        assert part.records == 40 < data.records
        for here, there in zip(part.features, data.features, strict=True):
            assert torch.equal(here["test"], there["validation"])
            rows = {tuple(row) for row in there["train"].tolist()}
            assert {tuple(row) for row in here["train"].tolist()} <= rows
    summary = experiment.run().summary
    assert summary["choice"]["tried"] == {"network": 0.7, "linear": 0.9, "dpzv": 0.8}
    assert "0.9" in summary["choice"]["words"]
    assert "labels can be told" in summary["choice"]["words"]


def test_folds_of_few_records_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every record is held back once, and what is taken trains on all of them."""
    seen = answers(monkeypatch, network=0.5, linear=0.6, dpzv=0.9)
    given = opened(data={key: value for key, value in TABLE.items() if key != "validation"})
    experiment = Experiment(given)
    data = experiment.data()
    assert (experiment.config.method.name, data.records) == ("dpzv", 80)
    assert not len(data.labels["validation"])
    folds = [part for name, part in seen if name == "dpzv"]
    assert len(folds) == auto.FOLDS
    held = torch.cat([part.features[0]["test"] for part in folds])
    assert sorted(held.tolist()) == sorted(data.features[0]["train"].tolist())
    assert all(part.records + len(part.labels["test"]) == 80 for part in folds)


def test_linear_parts_stay_unless_another_is_clearly_ahead() -> None:
    linear, noisy = [0.80, 0.82, 0.81, 0.83], [0.90, 0.76, 0.87, 0.76]
    clear = [value + 0.02 + 0.001 * place for place, value in enumerate(linear)]
    assert auto._best({"network": noisy, "linear": linear}, 1) == "linear"
    assert auto._best({"network": clear, "linear": linear}, 1) == "network"
    assert auto._best({"network": [0.83], "linear": [0.82]}, 1) == "network"
    assert auto._best({"network": clear, "linear": linear}, -1) == "linear", "errors are small"


def test_what_diverges_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, network=None, linear=0.6, dpzv=None)
    assert settled(opened()).client.model.name == "mlp"
    answers(monkeypatch, network=None, linear=None, dpzv=None)
    with pytest.raises(RunError, match="no candidate could be tried"):
        settled(opened())


def test_without_both_classes_in_a_fold_the_loss_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = iter([0.5, 0.3, 0.4] * auto.FOLDS)
    monkeypatch.setattr(auto, "_trained", lambda config, part, tell: {"test_loss": next(losses)})
    experiment = Experiment(opened())
    experiment.settle()
    assert experiment.run().summary["choice"]["words"].count("loss") == 1


@each(
    "data, name, mechanism",
    [
        ({"name": "breast-cancer"}, "label-statistic", "gaussian"),
        ({"name": "digits", "limit": 300}, "vafl", "teacher"),
        ({"name": "diabetes", "label_range": [0, 400]}, "dpzv", "gaussian"),
    ],
)
def test_an_epsilon_takes_what_the_plan_advises(
    monkeypatch: pytest.MonkeyPatch, data: dict[str, Any], name: str, mechanism: str
) -> None:
    """By public facts: nothing is tried, which would read labels."""
    monkeypatch.setattr(auto, "_trained", lambda config, part, tell: pytest.fail("it was trained"))
    experiment = Experiment(choosing.parse({**QUICK, "data": data, "privacy": {"epsilon": 1.0}}))
    labels = experiment.data().labels
    assert experiment.config.method.name == name
    assert experiment.config.privacy.mechanism == mechanism
    assert len(labels["train"])


def test_what_is_said_beforehand_is_of_what_is_taken(tmp_path: Path) -> None:
    """Its guarantee, its check, and the ledger that it is charged to."""
    kept = {"epsilon": 1.0, "ledger": str(tmp_path / "spent.sqlite")}
    given = {**QUICK, "data": {"name": "breast-cancer"}, "privacy": kept}
    named = {**given, "method": {"name": "label-statistic"}}
    expected = Experiment(schema.parse(named)).privacy()
    assert Experiment(choosing.parse(given)).privacy() == expected
    Experiment(choosing.parse(given)).check()
    experiment = Experiment(schema.parse(named))
    data = experiment.data()
    budget = budget_for(experiment.config, data, 1)
    DurableLedger.create(tmp_path / "spent.sqlite", budget, names=names_of(data))
    ran = Experiment(choosing.parse(given)).run().summary["privacy"]
    assert ran["epsilon"] == pytest.approx(expected["epsilon"])
    with pytest.raises(RunError, match="ledger"):
        Experiment(choosing.parse(given)).run()


def test_the_label_holders_columns_enter_a_head_where_replies_are_of_sums() -> None:
    data = {"name": "adult", "label_holder": "personal"}
    tree = presets.advised({"data": data, "privacy": {"epsilon": 1.0}}, "tangent")
    assert tree["server"] == {"final_head": "boosting"}
    network = presets.candidates({"data": data})["network"]
    assert network["server"]["encoder"] == {"name": "table"}


def test_what_was_given_stays() -> None:
    given = opened(client={"model": {"hidden": [7]}}, batch_size=9)
    for config in given.candidates().values():
        assert (config.client.model.hidden, config.batch_size, config.epochs) == ((7,), 9, 1)
    only = opened(client={"model": {"name": "mlp", "final_relu": True}})
    assert list(only.candidates()) == ["network", "linear", "dpzv"]
    assert {config.client.model.name for config in only.candidates().values()} == {"mlp"}


@each(
    "changed, words",
    [
        ({"method": {"name": "auto", "smoothing": 0.1}}, "method.smoothing is set but method.name"),
        ({"privacy": {"noise_std": 1.0}}, "privacy is set without privacy.epsilon"),
        ({"client": {"model": {"name": "mlp", "hiden": [3]}}}, "hiden"),
        ({"privacy": {"epsilon": -1.0}}, "privacy.epsilon"),
    ],
)
def test_what_does_not_fit_is_refused_at_once(changed: dict[str, Any], words: str) -> None:
    with one_line(ConfigError, match=words):
        opened(**changed)


def test_where_nothing_is_chosen_auto_is_refused() -> None:
    with pytest.raises(ConfigError, match="name a method here"):
        schema.parse(QUICK)


def test_a_resumed_run_still_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, network=0.5, linear=0.6, dpzv=0.9)
    folder = tmp_path / "run"
    result = Experiment(opened()).run(folder)
    assert schema.load(folder / "config.yaml").method.name == "dpzv"
    (folder / "summary.json").unlink()
    again = Experiment(schema.load(folder / "config.yaml")).run(folder, resume=True)
    assert again.summary["choice"] == result.summary["choice"]
    assert json.loads((folder / "summary.json").read_text())["choice"]["tried"]["dpzv"] == 0.9


def test_estimators_choose_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = answers(monkeypatch, network=0.9, linear=0.6, dpzv=0.5)
    chance = np.random.default_rng(0)
    rows = chance.normal(size=(60, 4))
    model = vz.VerticalClassifier(epochs=1, random_state=0).fit(rows, rows[:, 0] > 0)
    summary = model.result_.summary
    assert (summary["method"], summary["choice"]["tried"]["network"]) == ("split", 0.9)
    assert model.predict(rows).shape == (60,)
    assert len(seen) == 3 * auto.FOLDS


def test_weights_and_own_columns_go_with_their_records() -> None:
    data = Experiment(schema.parse({"data": {**TABLE, "label_holder": "mean"}})).data()
    data = replace(data, weights=torch.arange(data.records).float())
    kept, held = torch.tensor([5, 2, 9]), torch.tensor([1, 3])
    part = auto._part(data, kept, held)
    assert part.weights.tolist() == [2.0, 5.0, 9.0]
    assert torch.equal(part.own.values["test"], data.own.values["train"][held])
    assert torch.equal(part.labels["train"], data.labels["train"][[2, 5, 9]])


def test_a_long_trial_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(auto, "EVERY", -1.0)
    config = schema.parse({"seed": 0, "epochs": 1, "data": {"name": "digits", "limit": 60}})
    auto._trained(config, Experiment(config).data(), told.append)
    assert told[-1].startswith("method auto: ")
    assert told[-1].endswith(" rounds")
