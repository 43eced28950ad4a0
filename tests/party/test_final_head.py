"""The raw head: fitted after the last reply, heard of by nobody."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.rows import each
from torch import nn
from torch.nn.functional import cross_entropy

from vertizo.config.ineffective_keys import heads_of
from vertizo.config.schema import parse
from vertizo.core.errors import ConfigError
from vertizo.models.losses import Classification, Regression
from vertizo.models.torch import wrap
from vertizo.party.final_head import ENOUGH, Chosen, Fitted, Refitted, _by_trees
from vertizo.party.metrics import Scores, quality
from vertizo.party.server_model import ServerModel
from vertizo.run.experiment import Experiment
from vertizo.run.loop import training as loop
from vertizo.run.results import checkpoint
from vertizo.run.trained.prediction import Predictor

SETTINGS: dict[str, Any] = {"seed": 0, "epochs": 2, "method": {"name": "dpzv"}}
SETTINGS["data"] = {"name": "breast-cancer", "validation": 0.2}


def run(head: str, **changes: Any) -> tuple[dict[str, Any], list[tuple[int, bytes]]]:
    """A run's summary, and what its clients hear."""
    heard: list[tuple[int, bytes]] = []

    def observe(now: float, way: str, client: int, frame: bytes) -> None:
        if way == "down":
            heard.append((client, bytes(frame)))

    config = parse({**SETTINGS, **changes, "server": {"final_head": head}})
    return Experiment(config).run(observer=observe).summary, heard


def test_no_byte_to_a_client_depends_on_it() -> None:
    """Nor on which of the heads it is: what clients hear is over before it is fitted."""
    without, plain = run("private")
    assert "raw_head" not in without
    for head in ("logistic", "boosting", "refit", "auto"):
        summary, heard = run(head)
        assert heard == plain
        found = summary["raw_head"]
        assert found["kind"] == head or head == "auto"
        assert found["test_auc"] > 0.95
        assert "must stay with the label holder" in found["words"]
        assert summary["test_auc"] == (found if head == "auto" else without)["test_auc"]
        assert summary["bytes_evaluation"] > without["bytes_evaluation"]
        assert summary["bytes_table"] == without["bytes_table"] == 0


def test_the_head_that_predicts_validation_records_best_is_taken(tmp_path: Path) -> None:
    """Of all, the server's model too; its figures are the run's, and it predicts."""
    config = parse({**SETTINGS, "server": {"final_head": "auto"}})
    summary = Experiment(config).run(tmp_path / "run").summary
    found, alone = summary["raw_head"], {}
    for head in ("private", "logistic", "boosting", "refit"):
        other, _ = run(head)
        alone[head] = other.get("raw_head", other)
    assert list(found["tried"]) == list(alone)
    best = max(found["tried"], key=lambda head: quality(found["tried"][head], of=""))
    assert found["kind"] == best
    assert found["tried"]["private"]["auc"] == summary["best"]["validation_auc"]
    for name in ("test_auc", "test_loss"):
        assert summary[name] == found[name] == alone[best][name]
    predictor = Predictor.load(tmp_path / "run")
    assert (predictor.head, predictor.config.predicts_by) == ("raw", "raw")
    scored = predictor.test().scores
    assert scored["auc"] == pytest.approx(found["test_auc"])
    again = Experiment(config).run(tmp_path / "run", resume=True).summary
    assert again["raw_head"] == found


@each("best", ["private", "logistic", "refit"])
def test_any_head_may_be_the_best(
    best: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is kept, and predicts in another process, as it was scored; of equals the first."""

    def choose(head: Chosen, tried: Mapping[str, Scores]) -> None:
        equal = {name: {"loss": 1.0, "auc": 0.5} for name in tried}
        plain(head, equal if best == "private" else {**equal, best: {"loss": 0.5, "auc": 0.5}})

    plain = Chosen.choose
    monkeypatch.setattr(Chosen, "choose", choose)
    config = parse({**SETTINGS, "server": {"final_head": "auto"}})
    summary = Experiment(config).run(tmp_path / "run").summary
    assert summary["raw_head"]["kind"] == best
    found = Predictor.load(tmp_path / "run").test().scores
    assert found["loss"] == pytest.approx(summary["raw_head"]["test_loss"], rel=1e-6)
    if best == "private":
        private = Predictor.load(tmp_path / "run", "private").test().frame
        assert private.equals(Predictor.load(tmp_path / "run").test().frame)


def test_what_a_head_is_chosen_by_never_is_the_best_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though its embeddings come once more, and may be a little better by then."""
    plain, seen = loop.score, list[str]()

    def better(job: Any, purpose: Any, *, closing: bool = False) -> Any:
        found = dict(plain(job, purpose, closing=closing))
        seen.append(purpose)
        if closing and purpose == "validation" and "test" in seen:
            found["auc"] = 1.0
            found["loss"] /= 2
        return found

    config = parse({**SETTINGS, "server": {"final_head": "auto"}})
    usual = Experiment(config).run()
    monkeypatch.setattr(loop, "score", better)
    changed = Experiment(config).run()
    assert seen[-2:] == ["validation", "train"]
    assert changed.summary["best"] == usual.summary["best"]
    assert torch.equal(changed.parameters["server"], usual.parameters["server"])


def test_heads_to_choose_from_are_those_of_the_task() -> None:
    labels = {"data": {"label": ["a", "b"], "name": "table", "columns": {"p": ["c"]}, "path": "t"}}
    for changes, expected in (
        ({}, ("private", "logistic", "boosting", "refit")),
        ({"method": {"name": "one-shot"}}, ("logistic", "boosting", "refit")),
        ({"control": "label-free"}, ("logistic", "boosting", "refit")),
        ({"data": {"name": "diabetes", "loss": "huber"}}, ("private", "refit")),
        ({"data": {"name": "diabetes", "loss": "quantile"}}, ("private", "boosting", "refit")),
        (labels, ("private", "refit")),
        ({**labels, "method": {"name": "one-shot"}}, ("refit",)),
    ):
        assert heads_of(parse({"server": {"final_head": "auto"}, **changes})) == expected
    with pytest.raises(ConfigError, match="chooses by validation records, but"):
        parse({"server": {"final_head": "auto"}, "data": {"validation": 0}})


def test_a_state_of_another_head_is_refused() -> None:
    head = Chosen({"logistic": Fitted("logistic", Classification(2))})
    for state, error in (
        (torch.zeros(3), TypeError),
        ({"kind": "forest", "head": {}}, KeyError),
        ({"head": {}}, KeyError),
        ({"kind": "logistic", "head": {"roots": torch.zeros(2)}}, KeyError),
    ):
        with pytest.raises(error):
            head.load(state)


def test_every_kind_of_method_has_one_without_a_byte_to_clients() -> None:
    for name in ("tangent", "label-statistic", "vafl", "czofo", "split", "cascaded"):
        own = {"method": {"name": name}}
        _, plain = run("private", **own)
        summary, heard = run("logistic", **own)
        assert heard == plain
        assert summary["raw_head"]["test_auc"] > 0.9, name


def test_a_run_that_is_resumed_at_its_end_has_the_same_head(tmp_path: Path) -> None:
    """Without validation records the last evaluation is of the tests, which a head needs again."""
    for validation in (0.0, 0.2):
        data = {"name": "breast-cancer", "validation": validation}
        config = parse({**SETTINGS, "data": data, "server": {"final_head": "logistic"}})
        folder = tmp_path / str(validation)
        whole = Experiment(config).run(folder).summary
        (folder / "summary.json").unlink()
        again = Experiment(config).run(folder, resume=True).summary
        assert again["raw_head"] == whole["raw_head"]
        assert again["test_auc"] == whole["test_auc"]


@pytest.mark.full
def test_it_predicts_as_the_task_wants() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(300, 4, generator=generator)
    classes = (rows[:, :3]).argmax(1)
    values = 5 + 10 * rows[:, 0]
    for kind in ("logistic", "boosting"):
        head = Fitted(kind, Classification(4))
        head.fit(rows[:200], classes[:200])
        logits = head.logits(rows[200:])
        assert logits.shape == (100, 4)  # a class that no record has included
        assert (logits.argmax(1) == classes[200:]).float().mean() > 0.8
        task = Regression(5.0, 10.0)
        head = Fitted(kind, task)
        head.fit(rows[:200], values[:200])
        kept = head.state()
        assert kept["present"].numel() == 0  # no label of a training record
        found = task.predict(head.logits(rows[200:]))
        assert (found - values[200:]).abs().mean() < 3


@each("label", [0, 2])
def test_one_class_alone_is_what_it_predicts(label: int) -> None:
    rows = torch.randn(20, 2)
    head = Fitted("boosting", Classification(3))
    head.fit(rows, torch.full((20,), label))
    assert bool((head.logits(rows).argmax(1) == label).all())


@each("classes", [0, 2, 3])
def test_what_is_kept_predicts_as_scikit_learn_does(classes: int, tmp_path: Path) -> None:
    """Trees to the last bit; through a file, which holds arrays and no pickle."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    generator = torch.Generator().manual_seed(classes)
    rows = torch.randn(400, 5, generator=generator)
    rows[:, 3] = rows[:, 3].round()  # values on a threshold
    task = Classification(classes) if classes else Regression(0.0, 1.0)
    labels = rows[:, :classes].argmax(1) if classes else rows[:, 0] * rows[:, 1]
    options = {"max_iter": 150, "learning_rate": 0.08, "early_stopping": False, "random_state": 0}
    if classes > 2:
        options["l2_regularization"] = 1.0
    boosting = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    linear = LogisticRegression(max_iter=1000) if classes else Ridge()
    theirs = {"boosting": boosting(**options), "logistic": make_pipeline(StandardScaler(), linear)}
    for kind in ("boosting", "logistic"):
        theirs[kind].fit(rows[:300].numpy(), labels[:300].numpy())
        head = Fitted(kind, task)
        head.fit(rows[:300], labels[:300])
        checkpoint.save(tmp_path / kind, head.state())
        again = Fitted(kind, task)
        again.load(checkpoint.load(tmp_path / kind))
        found = again.logits(rows)
        assert torch.equal(found, head.logits(rows))
        if kind == "boosting":
            their = theirs[kind]
            raw = (their.decision_function if classes else their.predict)(rows.numpy())
            numbers = {name: part.numpy() for name, part in head._numbers.items()}
            ours = _by_trees(numbers, rows.double().numpy())
            assert np.array_equal(ours, raw.reshape(len(rows), -1))
        if classes:
            wanted = torch.from_numpy(theirs[kind].predict_proba(rows.numpy())).float()
            assert torch.allclose(task.predict(found), wanted, rtol=1e-5, atol=1e-6)
        else:
            wanted = torch.from_numpy(theirs[kind].predict(rows.numpy())).float()
            assert torch.allclose(task.predict(found), wanted, rtol=1e-5, atol=1e-5)


ROWS = torch.from_numpy(np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32))
HALVES = torch.arange(60) % 2
CLASSES, NUMBERS = Classification(2), Regression()


@each(
    "task, labels, weights",
    [
        (CLASSES, HALVES, torch.zeros(60)),
        (CLASSES, HALVES, (torch.arange(60) == 59).float()),
        (CLASSES, HALVES, (torch.arange(60) > 57).float()),
        (CLASSES, HALVES, torch.full((60,), torch.inf)),
        (NUMBERS, HALVES.float(), torch.zeros(60)),
        (NUMBERS, 3e38 * (HALVES == 0) - 3e38 * HALVES, None),
        (NUMBERS, 3e38 * (torch.arange(60) == 0), None),
    ],
)
@each("kind", ["logistic", "boosting"])
def test_no_labels_and_no_weights_end_the_fit(
    kind: Any, task: Any, labels: torch.Tensor, weights: torch.Tensor | None
) -> None:
    """Members see that a job's process failed."""
    made = Fitted(kind, task)
    made.fit(ROWS, labels, weights)
    assert not made.logits(ROWS).isnan().any()


@each("kind", ["logistic", "boosting"])
def test_records_that_weigh_nothing_are_not_there(kind: Any) -> None:
    whole, less = Fitted(kind, CLASSES), Fitted(kind, CLASSES)
    counted = torch.arange(60) % 3 > 0
    whole.fit(ROWS, HALVES, counted.float())
    less.fit(ROWS[counted], HALVES[counted], torch.ones(int(counted.sum())))
    assert torch.equal(whole.logits(ROWS), less.logits(ROWS))


@pytest.mark.full
def test_rare_ones_of_many_classes_do_not_make_leaves_grow() -> None:
    """They grew to 10⁵ where hessians vanish, and hardly a record was right."""
    generator = torch.Generator().manual_seed(0)
    shares = torch.logspace(0, -2.3, 12)
    labels = torch.multinomial(shares, 4000, replacement=True, generator=generator)
    middles = 2 * torch.randn(12, 8, generator=generator)
    rows = middles[labels] + torch.randn(4000, 8, generator=generator)
    head = Fitted("boosting", Classification(12))
    head.fit(rows[:3000], labels[:3000])
    assert float(head._numbers["value"].abs().max()) < 50
    right = head.logits(rows[3000:]).argmax(1) == labels[3000:]
    assert float(right.float().mean()) > 0.8


@pytest.mark.full
@each("chance, leaves", [(0.7, 8), (1.0, 31)])
def test_trees_of_three_numbers_are_as_large_as_the_labels_are_clear(
    chance: float, leaves: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(3000, 3, generator=generator)
    labels = ((4 * rows).long().sum(1) % 2).long()  # of 64 cells
    if chance < 1:
        labels = (rows[:, 0] > 0.5) ^ (torch.rand(3000, generator=generator) > chance)
    head = Fitted("boosting", Classification(2))
    head.fit(rows, labels.long())
    state = head.state()
    assert int(state["roots"].flatten().diff().max()) == 2 * leaves - 1


def test_a_wide_logistic_head_chooses_its_ridge() -> None:
    """Where one column of many says anything; where a label is too rare to choose by, it is 1."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(2600, 200, generator=generator)
    chances = 0.2 + 0.6 * (rows[:, 0] > 0)
    labels = torch.bernoulli(chances, generator=generator).long()
    rare = (torch.arange(600) < ENOUGH - 1).long()
    scaler = StandardScaler().fit(rows[:600].numpy())
    inputs, tested = scaler.transform(rows[:600].numpy()), scaler.transform(rows[600:].numpy())
    for is_rare, own in enumerate((labels[:600], rare)):
        theirs = LogisticRegression(max_iter=1000).fit(inputs, own.numpy())
        head = Fitted("logistic", Classification(2))
        head.fit(rows[:600], own)
        state, found = head.state(), head.logits(rows[600:])
        if is_rare:
            assert np.allclose(state["weights"].numpy(), theirs.coef_)
            continue
        worse = torch.from_numpy(theirs.predict_log_proba(tested)).float()
        assert cross_entropy(found, labels[600:]) < 0.8 * cross_entropy(worse, labels[600:])
        again = Fitted("logistic", Classification(2))
        again.fit(rows[:600], own, torch.full((600,), 1.0))
        assert torch.equal(again.logits(rows[600:]), found)


def test_what_is_no_head_is_not_loaded() -> None:
    rows = torch.randn(50, 2)
    head = Fitted("boosting", Regression(0.0, 1.0))
    head.fit(rows, rows[:, 0])
    state = head.state()
    circle = state["left"].clone()
    circle[1] = 0
    wrong: list[Any] = [torch.zeros(3), {}, {**state, "left": circle}]
    for one in wrong:
        with pytest.raises((TypeError, KeyError, ValueError)):
            Fitted("boosting", Regression(0.0, 1.0)).load(one)
    with pytest.raises(ValueError, match="rows of 3 numbers"):
        head.logits(torch.randn(5, 3))


def test_a_refit_is_at_the_minimum_of_its_objective() -> None:
    """Which is the sum of losses and half the squared distance from the first parameters."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(1500, 3, generator=generator)  # more than are evaluated at a time
    labels = (rows + torch.randn(rows.shape, generator=generator)).argmax(1)
    layer = nn.Linear(3, 3)
    model = ServerModel(wrap(layer), Classification(3))
    first = model.parameters.clone()
    head = Refitted(model)
    head.fit(rows, labels)
    point = model.parameters.double().clone().requires_grad_()
    weights, bias = point[:9].view(3, 3), point[9:]
    losses = cross_entropy(rows.double() @ weights.T + bias, labels, reduction="sum")
    (losses + (point - first.double()).square().sum() / 2).backward()
    assert float(point.grad.norm()) < 0.05
    assert float((model.parameters - first).norm()) > 0.5


def test_a_refit_begins_anew() -> None:
    """Two runs that end with other servers over the same embeddings have the same one."""
    found = []
    for rate in (0.01, 0.1):
        server = {"final_head": "refit", "optimizer": {"learning_rate": rate}}
        frozen = {**SETTINGS, "control": "frozen", "server": server}
        result = Experiment(parse(frozen)).run()
        found.append((result.raw_head, result.parameters["server"]))
    (one, ended), (other, elsewhere) = found
    assert torch.equal(one, other)
    assert not torch.equal(ended, elsewhere)
