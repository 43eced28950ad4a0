"""Once private labels exist, nothing that clients or files get depends on the raw ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import federations
from tests.rows import each

from vertizo.config.schema import parse
from vertizo.data.vertical import Holding, VerticalData
from vertizo.methods.choice import METHODS, asking
from vertizo.run.experiment import Experiment

MECHANISMS = ("randomised-response", "teacher")
PAIRS = [(name, timing) for name in asking() for timing in METHODS[name].timings]


def settings(mechanism: str, **privacy: Any) -> dict[str, Any]:
    own: dict[str, Any] = {"mechanism": mechanism, "epsilon": 1.0, **privacy}
    if mechanism == "teacher":
        own["teacher"] = {"components": 4}
    return {f"privacy.{key}": value for key, value in own.items()}


def exchanged(data: VerticalData) -> VerticalData:
    """Every raw label of a training record is another one."""
    labels = {**data.labels, "train": (data.labels["train"] + 1) % federations.CLASSES}
    return replace(data, labels=labels)


@each("method, timing", PAIRS, gate=list(dict(PAIRS).items())[::2])
def test_exchanging_every_raw_label_changes_no_byte(
    method: str, timing: str, tmp_path: Path
) -> None:
    """To clients, in either direction, of either mechanism, with the label holder's columns too."""
    own = {
        purpose: torch.randn(rows, 3, generator=torch.Generator().manual_seed(rows))
        for purpose, rows in (("train", 29), ("validation", 11), ("test", 11))
    }
    data = federations.data()
    if not METHODS[method].additive:
        data = replace(data, own=Holding("bank", own))
    for mechanism in MECHANISMS:
        changes = settings(mechanism, ledger=str(tmp_path / f"{method}-{timing}-{mechanism}"))
        before, first = federations.ran(method, timing, changes, of=data)
        after, second = federations.ran(method, timing, changes, of=exchanged(data))
        assert not torch.equal(before.server.labels["train"], after.server.labels["train"])
        assert first.seen == second.seen
        assert len(first.seen) > 20
        assert torch.equal(before.server.side.labels, after.server.side.labels)
        assert before.statement() == after.statement()
        assert before.statement().guarantee == "simulated"
        assert before.statement().covers == ("labels",)
        _, anew = federations.ran(method, timing, settings(mechanism), of=exchanged(data))
        assert anew.seen != first.seen, "labels made anew are of the raw ones"


def test_seeds_and_methods_share_the_labels_of_one_file(tmp_path: Path) -> None:
    """What is trained on them afterwards costs nothing, and its statement says so."""
    kept = settings("randomised-response", ledger=str(tmp_path / "labels"))
    found = []
    for method, seed in (("dpzv", 0), ("dpzv", 1), ("vafl", 0)):
        federation, _ = federations.ran(method, None, {**kept, "seed": seed})
        found.append(federation.server.side.labels)
        assert "all runs on the private labels in 'labels' together" in federation.statement().words
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    alone = [
        federations.ran("dpzv", None, {**settings("randomised-response"), "seed": seed})[0]
        for seed in (0, 1)
    ]
    assert not torch.equal(alone[0].server.side.labels, alone[1].server.side.labels)
    assert "this run alone" in alone[0].statement().words


def test_noise_in_secret_gives_an_exact_guarantee() -> None:
    for mechanism in MECHANISMS:
        changes = settings(mechanism, noise="secure")
        first, second = (federations.ran("dpzv", None, changes)[0] for _ in range(2))
        assert first.statement().guarantee == "exact"
        assert not torch.equal(first.server.side.labels, second.server.side.labels)


def test_a_run_that_was_stopped_goes_on_with_its_labels(tmp_path: Path) -> None:
    for mechanism in MECHANISMS:
        changes = settings(mechanism)
        whole, tape = federations.ran("vafl", None, changes)
        part, _ = federations.ran("vafl", None, changes, rounds=7)
        resumed = federations.build("vafl", None, changes)
        resumed.load(federations.copied(part.state()))
        federations.go_on(resumed)
        assert not federations.differences(whole.state(), resumed.state())
        assert tape.seen


@pytest.mark.full
def test_they_are_as_good_as_they_are_private(tmp_path: Path) -> None:
    """Learned from; and with hardly any privacy, as good as the raw ones."""
    found = {}
    for mechanism in MECHANISMS:
        for epsilon in (0.01, 8.0):
            tree = {"seed": 0, "epochs": 25, "data": {"name": "digits"}, "method": {"name": "vafl"}}
            tree["privacy"] = {"mechanism": mechanism, "epsilon": epsilon}
            found[mechanism, epsilon] = Experiment(parse(tree)).run()
    for mechanism in MECHANISMS:
        good, bad = found[mechanism, 8.0].summary, found[mechanism, 0.01].summary
        assert good["test_accuracy"] > 0.8, mechanism
        assert bad["test_accuracy"] < 0.4, mechanism
        assert good["privacy"]["epsilon"] == 8.0
