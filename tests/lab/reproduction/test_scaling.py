"""Studies of growth: their cases, and what is shown of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from vertizo.core.errors import ConfigError
from vertizo.lab.reproduction import scaling
from vertizo.lab.reproduction.runs import Order, Task
from vertizo.lab.reproduction.study import ScalingConfig

ORDER = Order(Path("nowhere"), None)  # type: ignore[arg-type]
SIZES = [4, 8, 16, 32]
STUDY: dict[str, Any] = {
    "title": "Growth",
    "paper": "none",
    "seeds": 2,
    "settings": {"epochs": 2, "data": {"name": "frame"}},
    "methods": {
        "vafl": {"words": "VAFL", "settings": {"method": {"name": "vafl"}}, "rates": [0.01, 0.1]},
        "dpzv": {"words": "DPZV", "rates": [0.001, 0.01]},
    },
    "axes": {
        "columns": {
            "words": "columns",
            "size": "clients",
            "goal": "loss",
            "target": 0.05,
            "planted": {"labels": 2},
            "sizes": [{"planted": {"columns": n}} for n in SIZES],
            "bounds": {
                "vafl": {"rate": "1/√T", "exponent": "not stated"},
                "dpzv": {"rate": "√(d*/T)", "exponent": 1},
            },
        },
        "batch": {
            "words": "records of a batch",
            "size": "batch",
            "target": 0.5,
            "shared": {"data": {"name": "digits"}},
            "sizes": [{"settings": {"batch_size": n}} for n in (8, 16)],
            "bounds": {"vafl": {"rate": "1/√T", "exponent": 0}},
        },
    },
}


def study(**keys: Any) -> ScalingConfig:
    return ScalingConfig.model_validate({**STUDY, **keys})


def test_every_axis_and_method_has_its_sizes() -> None:
    cases = scaling.cases(study(), ORDER)
    assert list(cases) == [("columns", "vafl"), ("columns", "dpzv"), ("batch", "vafl")]
    drawn = [each.planted for each in cases["columns", "dpzv"]]
    assert [(each.columns, each.labels) for each in drawn if each] == [(n, 2) for n in SIZES]
    digits = cases["batch", "vafl"]
    assert [each.config.batch_size for each in digits] == [8, 16]
    assert {(each.config.data.name, each.planted) for each in digits} == {("digits", None)}


def test_what_a_study_cannot_say() -> None:
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("columns", {"bounds": {"dpvz": {"rate": "", "exponent": 1}}}, "did you mean 'dpzv'"),
        ("columns", {"size": "moons"}, "directions"),
    ]
    for name, keys, words in wrong:
        axes = {**STUDY["axes"], name: {**STUDY["axes"][name], **keys}}
        with pytest.raises(ValidationError, match=words):
            study(axes=axes)
    methods = {**STUDY["methods"], "dpzv": {"words": "DPZV", "rates": [0.1, 0.01]}}
    with pytest.raises(ValidationError, match="ascending"):
        study(methods=methods)
    axis = {**STUDY["axes"]["columns"], "planted": {"labels": 0}}
    with pytest.raises(ConfigError, match="labels"):
        scaling.cases(study(axes={"columns": axis}), ORDER)


def test_exponents_are_shown_beside_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = {
        "columns-vafl": [[7.0, 8.0], [8.0, 7.0], [7.0, 7.0], [7.0, 8.0]],
        "columns-dpzv": [[], *([4.0 * n, 4.4 * n] for n in SIZES[1:])],
        "batch-vafl": [[30.0, 31.0], [20.0, 21.0]],
    }

    def results(tasks: Mapping[Any, Task], *_: Any, **__: Any) -> tuple[dict[Any, Any], Any]:
        assert [task.name for task in tasks.values()] == list(rounds)
        assert {task.arguments[5] for task in tasks.values()} == {2}
        found = {}
        for key, task in tasks.items():
            own = rounds[task.name]
            sizes = SIZES if len(own) == 4 else [8, 16]
            found[key] = {"sizes": sizes, "rounds": own, "rates": [0.1] * len(own), "tried": []}
        return found, {"commits": ["abc1234"]}

    monkeypatch.setattr(scaling, "results", results)
    outcome = scaling.run(study(), ORDER)
    assert outcome.made_by == {"commits": ["abc1234"]}
    flat, grown = outcome.grids[0].rows
    assert outcome.grids[0].columns[:5] == ("4", "8", "16", "32", "exponent")
    assert flat[-3].startswith("none visible: ")
    assert flat[-2:] == ("not stated", "1/√T")
    assert grown[1] == "not reached"
    assert grown[-3:] == ("too few sizes", "1", "√(d*/T)")
    assert outcome.notes[1:] == ("Left out of the fit, not reached at any rate: DPZV, columns 4.",)
    first, second, _ = outcome.figures["growths"]
    assert first["fit"]["low"] < 0 < first["fit"]["high"]
    assert (second["fit"], second["bound"], second["rounds"][1]) == (None, 1.0, [32.0, 35.2])
    assert [len(line.points) for line in outcome.pictures[0].lines] == [4, 3]
    assert outcome.pictures[0].lines[0].words.startswith("VAFL: none visible")

    rounds["columns-dpzv"] = [[4.0 * n, 4.4 * n] for n in SIZES]
    outcome = scaling.run(study(), ORDER)
    assert outcome.grids[0].rows[1][-3] == "1.00 (1.00 to 1.00)"
    assert len(outcome.notes) == 1
