"""The raw head: fitted after the last reply, heard of by nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tests.rows import each

from vertizo.config.schema import parse
from vertizo.models.losses import Classification, Regression
from vertizo.party.final_head import FinalHead
from vertizo.run.experiment import Experiment

SETTINGS: dict[str, Any] = {
    "seed": 0,
    "epochs": 2,
    "data": {"name": "breast-cancer", "validation": 0.2},
    "method": {"name": "dpzv"},
}


def run(head: str, **changes: Any) -> tuple[dict[str, Any], list[tuple[str, int, bytes]]]:
    seen: list[tuple[str, int, bytes]] = []

    def observe(now: float, way: str, client: int, frame: bytes) -> None:
        seen.append((way, client, bytes(frame)))

    config = parse({**SETTINGS, **changes, "server": {"final_head": head}})
    return Experiment(config).run(observer=observe).summary, seen


def test_no_byte_to_a_client_depends_on_it() -> None:
    """Nor on which of the heads it is: what clients hear is over before it is fitted."""
    without, plain = run("private")
    assert "raw_head" not in without
    for head in ("logistic", "boosting"):
        summary, seen = run(head)
        assert [entry for entry in seen if entry[0] == "down"] == [
            entry for entry in plain if entry[0] == "down"
        ]
        found = summary["raw_head"]
        assert found["kind"] == head
        assert found["test_auc"] > 0.95
        assert "must stay with the label holder" in found["words"]
        assert summary["test_auc"] == without["test_auc"]
        assert summary["bytes_evaluation"] > without["bytes_evaluation"]
        assert summary["bytes_table"] == without["bytes_table"] == 0


def test_every_kind_of_method_has_one_without_a_byte_to_clients() -> None:
    for name in ("tangent", "label-statistic", "vafl", "czofo", "split", "cascaded"):
        own = {"method": {"name": name}}
        _, plain = run("private", **own)
        summary, seen = run("logistic", **own)
        assert [one for one in seen if one[0] == "down"] == [
            one for one in plain if one[0] == "down"
        ]
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


def test_it_predicts_as_the_task_wants() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(300, 4, generator=generator)
    classes = (rows[:, :3]).argmax(1)
    values = 5 + 10 * rows[:, 0]
    for kind in ("logistic", "boosting"):
        head = FinalHead(kind, rows[:200], classes[:200], Classification(4))
        logits = head.logits(rows[200:])
        assert logits.shape == (100, 4)  # a class that no record has included
        assert (logits.argmax(1) == classes[200:]).float().mean() > 0.8
        task = Regression(5.0, 10.0)
        found = task.predict(FinalHead(kind, rows[:200], values[:200], task).logits(rows[200:]))
        assert (found - values[200:]).abs().mean() < 3


@each("label", [0, 2])
def test_one_class_alone_is_what_it_predicts(label: int) -> None:
    rows = torch.randn(20, 2)
    head = FinalHead("logistic", rows, torch.full((20,), label), Classification(3))
    assert bool((head.logits(rows).argmax(1) == label).all())
