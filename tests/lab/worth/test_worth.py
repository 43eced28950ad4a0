"""``vertizo worth`` as people call it: its table, its ledger, its picture, what it refuses."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import Refuses, Vertizo, sets
from tests.lab.conftest import settings
from tests.lab.report.pages import page_of
from tests.rows import each
from tests.words import says

from vertizo.core.errors import ConfigError, RunError
from vertizo.lab.report import read, render
from vertizo.lab.tuning.composition import together
from vertizo.lab.worth.cost import beforehand, check_steps, cost_of
from vertizo.lab.worth.importance import Permuted
from vertizo.lab.worth.study import Worth
from vertizo.privacy.accounting.events import SecretSteps
from vertizo.privacy.ledger.durable import DurableLedger
from vertizo.run.experiment import Experiment
from vertizo.run.loop.ledger_session import budget_for
from vertizo.run.results import checkpoint
from vertizo.run.results.folder import RunFolder

TABLE = (
    *("seed=0", "data.name=breast-cancer", "data.limit=120", "epochs=1", "method.name=tangent"),
    *("client.model.name=mlp", "client.model.outputs=1", "client.model.last_layer=zeros"),
    *("server.final_head=boosting", "data.label_holder=mean"),
)
SMALL = (*TABLE, "privacy.epsilon=3")
DIGITS = ("seed=0", "data.limit=60", "batch_size=18", "epochs=1")


@pytest.mark.full
@pytest.mark.usefixtures("inline")
def test_one_table_charged_to_a_ledger_and_drawn(call: Vertizo, tmp_path: Path) -> None:
    plain = settings(*SMALL)
    ledger = tmp_path / "ledger.sqlite"
    DurableLedger.create(ledger, budget_for(plain, Experiment(plain).data(), 4))
    command = ("worth", *sets(*SMALL, f"privacy.ledger={ledger}"), "--out", "w", "--repeats", "2")
    code, out, errors = call(*command)
    assert (code, errors) == (
        0,
        "note: 3 trainings; each ε = 3, all together ε = 5.656 at δ = 1e-05 (simulated); 3 to be "
        f"charged to {ledger}, which pays for all of them\n",
    )
    tally = DurableLedger.inspect(ledger)
    share = tally.budget.share // 4
    assert len(tally.runs) == 3
    # Each client is in the federation of both, and has all of a training's share by itself.
    assert [round(int(most) / share, 6) for most in tally.charged.max(1)] == [3.0, 3.0]

    found = json.loads((tmp_path / "w/worth.json").read_text())
    rows = {(row["kind"], *row["parties"]): row for row in found["rows"]}
    assert list(rows) == [
        ("alone",),
        ("federated", "error"),
        ("federated", "worst"),
        ("federated", "error", "worst"),
        ("pooled", "error", "worst"),
    ]
    whole = rows["federated", "error", "worst"]
    values = [each["value"] for each in found["shapley"]]
    assert sum(values) == pytest.approx(whole["gain"]["value"], abs=1e-12)
    assert whole["gain"]["value"] == pytest.approx(whole["value"] - rows["alone",]["value"])
    lost = {each["party"]: each["value"] for each in found["left_out"]}
    assert lost["worst"] == pytest.approx(whole["value"] - rows["federated", "error"]["value"])
    for row in found["rows"]:
        assert row["low"] <= row["value"] <= row["high"]
        kept = RunFolder(tmp_path / "w" / "+".join(row["parties"]) / "seed0")
        if row["kind"] == "federated":
            summary = kept.summary()
            assert row["value"] == pytest.approx(summary["raw_head"]["test_auc"])
            assert row["low"] == pytest.approx(summary["raw_head"]["test_auc_low"])
    says(out, "without worst", "mean alone", "Shapley value", "ε = 5.656", "they stay with")

    again = call(*command, "--json")
    assert "none of them still to be begun" in again.err
    known = {**json.loads(again.out), "command": found["command"], "made_by": found["made_by"]}
    assert known == found
    assert DurableLedger.inspect(ledger).replies == tally.replies

    page = page_of(tmp_path / "w")
    assert page.one("h1").text == "What each party is worth: breast-cancer"
    section = page.one("section", id="worth")
    lines = [row.text for row in section.all("table")[0].one("tbody").all("tr")]
    assert len(lines) == 5
    assert lines[-1].startswith("all in one tablegradient boosting")
    assert len(section.all("table")[1].one("tbody").all("tr")) == 4
    methods = {row.text.split(",")[0] for row in page.all("th", scope="row") if "+" in row.text}
    assert methods == {"error+worst"}, "of the runs, those of all together"
    assert "error alone" not in page.text

    permuted = Permuted(tmp_path / "w/error+worst/seed0", "raw", 0)
    assert permuted._base == pytest.approx(whole["value"])
    assert sum(permuted.losses("worst", None, 2)) > 0
    assert permuted._score(permuted._frames) == permuted._base, "all is as it was"
    columns = [column for party, column in permuted if party == "worst" and column is not None]
    assert len(columns) == 10

    shutil.rmtree(tmp_path / "w/worst")
    code, _, errors = call(*command)
    assert code == 2
    assert "can pay for 0 of the 1 trainings to come" in errors
    checkpoint.keep(tmp_path / "w/worth.json", b'{"rows": []}')
    with pytest.raises(RunError, match="no figures of `vertizo worth` in it"):
        render(read([tmp_path / "w"]))


@each(
    "overrides, line",
    [
        (("control=frozen",), "control is 'frozen'"),
        (("privacy.mechanism=teacher",), "privacy.mechanism is 'teacher'"),
        (("privacy.mechanism=randomised-response",), "would make labels anew in every training"),
        (("privacy.ledger=none.sqlite",), "none.sqlite: there is no such ledger"),
        (
            ("data.exclude_parties=[wrost]",),
            "data.exclude_parties names 'wrost', which is none of the parties",
        ),
        (
            ("data.exclude_parties=[mean]",),
            "data.exclude_parties names 'mean', which is data.label_holder",
        ),
        (("data.exclude_parties=[error, worst]",), "'worst', which leaves no client"),
    ],
)
def test_refusals(overrides: tuple[str, ...], line: str, refuses: Refuses) -> None:
    refuses.row(line, [line], "worth", *sets(*SMALL, *overrides))


def test_what_a_ledger_cannot_be_charged_is_refused(refuses: Refuses) -> None:
    words = "--jobs is 2 but privacy.ledger none.sqlite is for one run at a time"
    refuses.row(words, [words], "worth", *sets(*SMALL, "privacy.ledger=none.sqlite"), "--jobs", "2")
    config = settings(*DIGITS, "privacy.epsilon=3", "server.update=poisson-dp-sgd")
    known = SecretSteps(9, 0.05, 1.64)
    check_steps(config, SecretSteps(3, 0.05, 1.64), known)
    with pytest.raises(ConfigError, match="whose ε a ledger adds up"):
        check_steps(config, SecretSteps(3, 0.05, 1.63), known)


def test_what_was_broken_off_under_secure_noise_is_not_repeated(tmp_path: Path) -> None:
    study = Worth(settings(*SMALL, "privacy.noise=secure"), tmp_path)
    begun = study.runs[study.parties][0]
    folder, experiment = RunFolder(begun.folder), Experiment(begun.config)
    data = experiment.data()
    folder.make()
    folder.create(experiment.config, "begun", data.preparation)
    with pytest.raises(RunError, match="cannot be repeated; remove that folder"):
        study.check()


def test_many_parties_are_left_out_once(tmp_path: Path) -> None:
    study = Worth(settings(*DIGITS, "data.parties=6"), tmp_path)
    study.check()
    assert [len(coalition) for coalition in study.runs] == [6, 5, 5, 5, 5, 5, 5]
    assert study.beforehand[0] == "7 trainings; without a guarantee"
    assert "6 parties have 64 coalitions" in study.beforehand[1]


@pytest.mark.full
@pytest.mark.usefixtures("inline")
def test_a_label_holder_without_columns_guesses(tmp_path: Path) -> None:
    """The empty coalition knows how frequent labels are; a value is what all reach beyond that."""
    study = Worth(settings(*DIGITS, "data.parties=1"), tmp_path, repeats=0)
    study.check()
    found = study.run()
    alone, whole = found["rows"][:2]
    labels = study.data.labels["train"].bincount()
    guessed = (study.data.labels["test"] == labels.argmax()).double().mean().item()
    assert alone["value"] == pytest.approx(guessed)
    assert found["shapley"][0]["value"] == pytest.approx(whole["value"] - guessed)
    assert (found["metric"], found["importance"]) == ("accuracy", [])


def test_all_trainings_together_cost_what_they_release() -> None:
    config = settings(*SMALL)
    study = Worth(config, Path("nowhere"))
    study.check()
    plans = [plan for _, plan in study.plans]
    releases: list[Any] = [plan.releases for plan in plans]
    cost = cost_of(config, plans)
    assert cost["epsilon_together"] == together(releases, 1e-5) > cost["epsilon_each"]
    assert cost["epsilon_together"] < 3 * cost["epsilon_each"]
    unknown = [plans[0], plans[1]._replace(releases=None)]
    assert cost_of(config, unknown)["epsilon_together"] is None
    fewer = plans[1]._replace(statement=replace(plans[1].statement, covers=("labels",)))
    assert cost_of(config, [plans[0], fewer])["covers"] == ["labels"]
    none = plans[1]._replace(statement=plans[1].statement.without_guarantee("None at all."))
    mixed = cost_of(config, [plans[0], none])
    assert mixed["guarantee"] == "none"
    assert "None at all." in mixed["words"][0]
    assert "epsilon_together" not in mixed


def test_trainings_that_use_no_label_cost_nothing_together(tmp_path: Path) -> None:
    """Whatever is asked for beside the method: an ε, a file that it would be charged to."""
    table = ("seed=0", "data.name=breast-cancer", "data.limit=120", "method.name=one-shot")
    charged = ("privacy.epsilon=1", f"privacy.ledger={tmp_path / 'none'}")
    for privacy in ((), charged[:1], charged):
        config = settings(*table, *privacy)
        study = Worth(config, Path("nowhere"))
        study.check()
        cost = cost_of(config, [plan for _, plan in study.plans])
        assert (cost["epsilon_each"], cost["epsilon_together"], cost["ledger"]) == (0, 0, None)
        assert not any("ledger" in line for line in cost["words"])
        assert "ε = 0" in beforehand(config, [plan for _, plan in study.plans], 0)
