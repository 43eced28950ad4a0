"""What a search says of its privacy, against closed forms; and searches that a ledger pays for."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.lab.conftest import settings
from tests.words import says
from torch import nn

from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError, RunError
from vertizo.lab.comparison import Standing
from vertizo.lab.tuning.privacy import Plan, cost_of, unledgered
from vertizo.lab.tuning.results import Results
from vertizo.lab.tuning.search import Options, Show, tune
from vertizo.lab.tuning.space import parse_space
from vertizo.lab.tuning.trial import without_tests
from vertizo.privacy.accounting.gaussian import epsilon_of, mu_of
from vertizo.privacy.epsilon_text import bound_text
from vertizo.privacy.ledger.durable import DurableLedger
from vertizo.run.experiment import Experiment
from vertizo.run.loop.federation import build
from vertizo.run.loop.ledger_session import budget_for
from vertizo.run.results.folder import RunFolder

SMALL = ("seed=0", "data.limit=60", "data.parties=2", "batch_size=18", "epochs=2")
NOISE = ("privacy.mechanism=gaussian", "privacy.clip=0.5", "privacy.epsilon=3")
EXACT = (*SMALL, *NOISE, "server.update=none")
SECRET = (*SMALL, *NOISE, "server.update=poisson-dp-sgd", "server.secret.sampling=0.2")
DELTA = 1e-5
SPACE = ("client.optimizer.learning_rate=1e-3..1e-1:log", "privacy.clip=0.1..1:log")


def search(
    own: ExperimentConfig, folder: Path, *, show: Show | None = None, **more: Any
) -> Results:
    return tune(own, folder, Options(**{"trials": 3, "search": SPACE, **more}), show)


def plan_of(*overrides: str, space: tuple[str, ...] = SPACE) -> Plan:
    experiment = Experiment(settings(*overrides))
    data = without_tests(experiment.data())
    tree = experiment.config.model_dump(mode="json")
    return Plan(tree, data, parse_space(space, tree), 0)


def test_without_noise_or_with_a_raw_server_or_the_published_formula_nothing_is_guaranteed(
    tmp_path: Path,
) -> None:
    found = search(settings(*SMALL), tmp_path / "s", search=SPACE[:1], trials=2).privacy
    assert found.guarantee == "none"
    assert (found.epsilon_of_chosen, found.epsilon_together, found.delta) == (None, None, None)
    assert "ε" not in " ".join(found.words)
    assert "every trial" in found.words[0]
    raw = ("privacy.mechanism=gaussian", "privacy.clip=0.5", "privacy.noise_std=2")
    assert cost_of(plan_of(*SMALL, *raw), 5, 0).guarantee == "none"
    published = cost_of(plan_of(*SMALL, *NOISE, "privacy.accounting=published"), 5, 0)
    assert (published.guarantee, published.epsilon_together) == ("published", None)
    assert "does not hold" in published.words[0]


@pytest.mark.full
def test_all_trials_together_are_root_n_times_one_with_noise_of_their_own(tmp_path: Path) -> None:
    found = search(settings(*EXACT), tmp_path / "s", trials=5, pruner="none").privacy
    data = Experiment(settings(*EXACT)).data()
    releases = build(settings(*EXACT), data).releases
    mu = releases.known_mu
    assert found.guarantee == "simulated"
    assert found.delta == DELTA
    assert found.epsilon_of_chosen == pytest.approx(epsilon_of(mu, DELTA), rel=1e-6)
    wanted = epsilon_of(math.sqrt(5) * mu, DELTA)
    assert found.epsilon_together == pytest.approx(wanted, rel=1e-6)
    assert found.epsilon_together > 3.0
    text = " ".join(found.words)
    assert f"ε = {bound_text(wanted)}" in text
    says(text, "labels", "Validation records", "Liu and Talwar", "simulation only")
    kept = json.loads((tmp_path / "s/results.json").read_text())["privacy"]
    assert kept["epsilon_together"] == found.epsilon_together
    assert kept["epsilon_of_chosen"] == found.epsilon_of_chosen
    # Every trial has noise of its own.
    noises = []
    for number in range(3):
        own = RunFolder(tmp_path / f"s/trials/00{number}").config()
        plan = build(own, data).server.side.plan
        noise = torch.stack([plan.total(torch.zeros(18)) for _ in range(200)]).flatten()
        noises.append(noise / plan.releases.reply.noise_std)
    together = torch.corrcoef(torch.stack(noises))
    assert float((together - torch.eye(3)).abs().max()) < 0.3  # four standard deviations
    assert float(noises[0].std() / noises[1].std()) == pytest.approx(1, abs=0.3)


def test_trials_that_were_not_made_count_as_well(tmp_path: Path) -> None:
    def stop(here: Standing) -> None:
        if here.finished == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(settings(*EXACT), tmp_path / "s", trials=9, show=stop)
    found = search(settings(*EXACT), tmp_path / "s", trials=9, timeout=0.0)
    assert len(found.records) == 1
    assert found.privacy.epsilon_together == cost_of(plan_of(*EXACT), 9, 0).epsilon_together
    assert found.privacy.trials == 9


def test_secure_noise_is_counted_as_what_it_is(tmp_path: Path) -> None:
    own = settings(*EXACT, "privacy.noise=secure")
    found = search(own, tmp_path / "s", trials=2, pruner="none")
    assert {record.outcome for record in found.records} == {"finished"}
    releases = unledgered(own, Experiment(own).data()).releases
    assert releases.grid is not None
    clips = {RunFolder(tmp_path / f"s/trials/00{n}").config().privacy.clip for n in range(2)}
    assert len(clips) == 2
    gaussian = epsilon_of(math.sqrt(2) * releases.known_mu, DELTA)
    assert gaussian < found.privacy.epsilon_together < gaussian * 1.0001


@pytest.mark.full
def test_what_changes_releases_is_drawn_beforehand() -> None:
    space = ("epochs=1..9", "client.optimizer.learning_rate=0.1..1", "batch_size=6,18")
    plan = plan_of(*EXACT, space=space)
    assert plan.beforehand == ("epochs",)
    assert plan.drawn(0) == {}
    drawn = [plan.drawn(number) for number in range(1, 20)]
    assert drawn == [plan.drawn(number) for number in range(1, 20)]
    assert all(values.keys() == {"epochs"} for values in drawn)
    assert len({values["epochs"] for values in drawn}) > 3
    assert plan_of(*SMALL, space=space).beforehand == ()
    secret = plan_of(*SECRET, space=("batch_size=6,18", "server.clip=0.1..1"))
    assert secret.beforehand == ("batch_size",)
    given = ("privacy.noise_std=3", "privacy.epsilon=null")
    assert plan_of(*EXACT, *given, space=SPACE).beforehand == ("privacy.clip",)
    assert plan_of(*EXACT, "privacy.noise=secure", space=SPACE).beforehand == ("privacy.clip",)


@pytest.mark.full
def test_trials_have_what_was_drawn_for_them_and_their_sum_is_stated(tmp_path: Path) -> None:
    given = (*EXACT, "privacy.noise_std=3", "privacy.epsilon=null")
    space = ("epochs=1,2,3", "client.optimizer.learning_rate=1e-3..1e-1:log")
    found = search(settings(*given), tmp_path / "s", search=space, trials=6, pruner="none")
    epochs = [RunFolder(tmp_path / f"s/trials/00{n}").config().epochs for n in range(6)]
    plan = plan_of(*given, space=space)
    assert epochs == [2, *(int(plan.drawn(n)["epochs"]) for n in range(1, 6))]
    assert len(set(epochs)) > 1
    # One reply has μ = 2C/σ; a record is in one query of each of two clients an epoch.
    mu = math.sqrt(sum(2 * count for count in epochs)) * 2 * 0.5 / 3
    assert found.privacy.epsilon_together == pytest.approx(epsilon_of(mu, DELTA), rel=1e-6)


def test_a_trial_that_would_release_something_else_is_refused() -> None:
    plan = plan_of(*EXACT)
    plan.check(1, settings(*EXACT, "privacy.clip=0.1", "client.optimizer.learning_rate=0.7"))
    for others in (("privacy.epsilon=3.1",), ("privacy.epsilon=null", "privacy.noise_std=9")):
        with pytest.raises(RunError, match="something else than what was planned"):
            plan.check(1, settings(*EXACT, *others))


def test_one_trial_without_a_guarantee_leaves_none() -> None:
    given = (*EXACT, "privacy.noise_std=3", "privacy.epsilon=null")
    plan = plan_of(*given, space=("server.update=none,sgd",))
    first = next(n for n in range(1, 40) if plan.drawn(n) == {"server.update": "sgd"})
    assert cost_of(plan, first, 0).guarantee == "simulated"
    found = cost_of(plan, first + 1, 0)
    assert found.guarantee == "none"
    assert (found.epsilon_of_chosen, found.epsilon_together) == (None, None)
    assert "leaves none for the search" in found.words[0]


def test_what_trials_rest_on_is_said_of_the_search() -> None:
    own = f"server.model={{name: module, path: '{__file__}:own_server'}}"
    said = cost_of(plan_of(*EXACT, own), 3, 0).words[0]
    assert "Assumed, tried but not proved: server.model" in said
    assert "Assumed" not in " ".join(cost_of(plan_of(*EXACT), 3, 0).words)


def own_server(inputs: int, outputs: int) -> nn.Module:
    return nn.Linear(inputs, outputs)


@pytest.mark.full
def test_a_total_epsilon_is_kept(tmp_path: Path) -> None:
    for name, base in (("exact", EXACT), ("secret", SECRET)):
        found = search(settings(*base), tmp_path / name, total_epsilon=2.0)
        assert 1.98 < found.privacy.epsilon_together <= 2.0
        each = RunFolder(tmp_path / name / "trials/001").config().privacy.epsilon
        assert each is not None
        if base is EXACT:
            share = mu_of(2.0, DELTA) / math.sqrt(3)
            assert mu_of(each, DELTA) == pytest.approx(share, rel=1e-3)
    with pytest.raises(RunError, match="another"):
        search(settings(*EXACT), tmp_path / "exact", total_epsilon=2.0, trials=4)


def test_a_total_epsilon_needs_a_guarantee(tmp_path: Path) -> None:
    published = (*SMALL, *NOISE, "privacy.accounting=published")
    for base, space, words in (
        (SMALL, SPACE[:1], "needs privacy.epsilon"),
        (EXACT, ("privacy.epsilon=1,2",), "leave --search privacy.epsilon out"),
        (published, SPACE[:1], "needs an exact guarantee"),
    ):
        with pytest.raises(ConfigError, match=words):
            search(settings(*base), tmp_path / "s", total_epsilon=1.0, search=space)
    assert not (tmp_path / "s").exists()


def ledger(folder: Path, runs: int, base: tuple[str, ...] = EXACT) -> Path:
    path, plain = folder / "ledger.sqlite", settings(*base)
    DurableLedger.create(path, budget_for(plain, Experiment(plain).data(), runs))
    return path


@pytest.mark.full
def test_every_trial_draws_on_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, base in (("exact", EXACT), ("secret", SECRET)):
        place = tmp_path / name
        place.mkdir()
        monkeypatch.setenv("XDG_STATE_HOME", str(place / "state"))
        path = ledger(place, 3, base)
        own = settings(*base, f"privacy.ledger={path}")
        found = search(own, place / "s", pruner="none")
        summary = DurableLedger.inspect(path)
        names = {RunFolder(place / f"s/trials/00{n}").run_name() for n in range(3)}
        assert set(summary.runs) == names
        assert found.privacy.epsilon_together == summary.budget.epsilon
        assert found.privacy.ledger == str(path)
        assert "all runs that draw on it together" in " ".join(found.privacy.words)
        again = search(own, place / "s", pruner="none")  # nothing is left to do
        assert again.best == found.best
        assert str(DurableLedger.inspect(path)) == str(summary)
        with pytest.raises(RunError, match="can pay for no trial"):
            search(own, place / "other")
        assert not (place / "other").exists()


@pytest.mark.full
def test_a_search_that_the_ledger_cannot_pay_for_is_refused_before_it_begins(
    tmp_path: Path,
) -> None:
    path = ledger(tmp_path, 3)
    own = settings(*EXACT, f"privacy.ledger={path}")
    with pytest.raises(RunError, match=r"for 3 more trials, not for 5; use --trials 3"):
        search(own, tmp_path / "s", trials=5)
    assert not (tmp_path / "s").exists()
    assert DurableLedger.inspect(path).replies == 0
    search(own, tmp_path / "s", trials=2, pruner="none")
    with pytest.raises(RunError, match=r"for 1 more trials beside the 2 .*use --trials 3"):
        search(own, tmp_path / "s", trials=4, pruner="none")


@pytest.mark.full
def test_a_search_stops_in_order_when_the_ledger_is_spent(tmp_path: Path) -> None:
    path = ledger(tmp_path, 3)
    own = settings(*EXACT, f"privacy.ledger={path}")
    drawn: list[int] = []

    def draw(here: Standing) -> None:
        """Somebody else's run, once the first trial has ended."""
        if here.finished == 1 and not drawn:
            drawn.append(1)
            Experiment(own).run()

    found = search(own, tmp_path / "s", show=draw, pruner="none")
    assert drawn
    assert [record.outcome for record in found.records] == ["finished", "finished"]
    assert (tmp_path / "s/best.yaml").is_file()
    spent = DurableLedger.inspect(path)
    assert len(spent.runs) == 3
    assert spent.left >= 0


def test_what_does_not_go_with_a_ledger(tmp_path: Path) -> None:
    path = ledger(tmp_path, 3)
    own = settings(*EXACT, f"privacy.ledger={path}")
    with pytest.raises(ConfigError, match="one run at a time"):
        search(own, tmp_path / "s", jobs=2)
    with pytest.raises(ConfigError, match=r"no privacy.ledger"):
        search(own, tmp_path / "s", total_epsilon=1.0)
    with pytest.raises(ConfigError, match=r"54 records .* this run has 45"):
        search(settings(*EXACT, "data.limit=50", f"privacy.ledger={path}"), tmp_path / "s")
    unledgered(own, Experiment(own).data())
    assert not DurableLedger.inspect(path).runs, "looking at a plan opens no ledger"


def test_trials_on_private_labels_share_them_or_are_refused(tmp_path: Path) -> None:
    """Made anew in each trial, they would cost ε once more in each."""
    own = ("privacy.mechanism=randomised-response", "privacy.epsilon=1", "method.name=vafl")
    given = {"search": SPACE[:1], "trials": 3}
    with pytest.raises(ConfigError, match="would make labels anew in every trial"):
        search(settings(*SMALL, *own), tmp_path / "alone", **given)
    kept = tmp_path / "labels"
    found = search(settings(*SMALL, *own, f"privacy.ledger={kept}"), tmp_path / "kept", **given)
    assert found.privacy.guarantee == "simulated"
    assert (found.privacy.epsilon_of_chosen, found.privacy.epsilon_together) == (1.0, 1.0)
    assert "cost no more than one" in " ".join(found.privacy.words)
    made = {
        str(RunFolder(folder).load("last")["server"]["private_labels"].tolist())
        for folder in (tmp_path / "kept").rglob("*")
        if (folder / "config.yaml").is_file() and RunFolder(folder).has("last")
    }
    assert len(made) == 1
