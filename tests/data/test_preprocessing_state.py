"""What a run remembers of its table, and new records made of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from tests.data.refusals import refused

from vertizo.core.errors import DataError
from vertizo.data.prepared import Preparation, raw_matrix
from vertizo.data.tabular import frames
from vertizo.data.tabular.preprocessing import Preprocessing
from vertizo.models.losses import Classification, Regression, Task

NAN = float("nan")
Damage = Callable[[dict[str, Any]], Any]
LEVELS = {"job": ("cook", "dentist", "nurse"), "city": ("Kyiv", "Oslo", "Rome")}
COLUMNS = ["age", "job", "debt", "city", "same"]


def rows(count: int = 30, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    values = np.c_[
        rng.normal(40, 9, count),
        rng.choice([0.0, 2.0, NAN], count),
        rng.normal(0, 1e-7, count),
        rng.choice([0.0, 1.0], count),
        np.full(count, 1 / 3),
    ]
    values[::7, 2] = NAN
    return values


def fitted() -> Preprocessing:
    return Preprocessing(
        rows(), COLUMNS, LEVELS, {"age": [0.1, 99.9]}, {"city": ["Rome", "Bonn", "Kyiv"]}
    )


def again(state: dict[str, Any]) -> Preprocessing:
    return Preprocessing.from_state(json.loads(json.dumps(state)))


def frame(count: int = 12, seed: int = 4) -> pl.DataFrame:
    values = rows(count, seed)
    columns: dict[str, Any] = dict(zip(COLUMNS, values.T, strict=True))
    for name, names in LEVELS.items():
        columns[name] = [None if code != code else names[int(code)] for code in columns[name]]
    return pl.DataFrame(columns)


class TestState:
    def test_new_rows_are_prepared_to_the_last_bit_as_before(self) -> None:
        before, after = fitted(), again(fitted().state())
        new = frame()
        one = before(raw_matrix(new, before.columns, before.levels))
        other = after(raw_matrix(new, after.columns, after.levels))
        assert torch.equal(one, other)
        assert one.shape == (12, before.width) == (12, 6)
        assert before(rows(12, 4)).equal(one)
        assert after.cardinalities == before.cardinalities == (3, 4)
        assert after.fitted
        assert json.dumps(after.state()) == json.dumps(before.state())

    def test_only_what_occurred_in_training_is_remembered(self) -> None:
        """Public constants are not fitted afterwards either."""
        assert "dentist" not in json.dumps(fitted().state())
        levels = {"job": ("cook", "nurse"), "city": ("Rome", "Bonn", "Kyiv")}
        assert again(fitted().state()).levels == levels
        public = Preprocessing(
            rows()[:, :2], COLUMNS[:2], {"job": LEVELS["job"]}, {"age": [0, 9]}, {"job": ["cook"]}
        )
        assert not public.fitted
        assert not again(public.state()).fitted

    def test_damage_is_one_line(self) -> None:
        damages: list[tuple[Damage, list[str]]] = [
            (lambda s: s.pop("columns"), ["columns", "required"]),
            (lambda s: s["columns"].clear(), ["columns"]),
            (lambda s: s["columns"][0].pop("low"), ["low", "required"]),
            (lambda s: s["columns"][0].update(low=100.0), ["'age'", "bounds"]),
            (lambda s: s["columns"][0].update(kind="guess"), ["columns.0", "guess"]),
            (lambda s: s["columns"][0].update(name="job"), ["'job'", "twice"]),
            (lambda s: s["columns"][1].update(names=["a", "a"]), ["'job'", "twice"]),
            (lambda s: s["columns"][2].update(mean=NAN), ["mean", "finite"]),
            (lambda s: s["columns"][2].update(scale=0), ["scale", "greater than 0"]),
            (lambda s: s.update(more=1), ["more"]),
        ]
        for damage, words in damages:
            state = fitted().state()
            damage(state)
            refused(words, DataError, Preprocessing.from_state, state)
        refused([], DataError, Preprocessing.from_state, [1])


class TestRawMatrix:
    def test_missing_and_unknown_are_code_zero(self) -> None:
        own = again(fitted().state())
        new = frame(3).with_columns(pl.Series("job", ["nurse", "dentist", None]))
        codes = own(raw_matrix(new, own.columns, own.levels))[:, 0]
        assert codes.tolist() == [2, 0, 0]

    def test_a_line_of_a_file_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "new.csv"
        path.write_text('age,job\n\n1,"a\nb"\n,\n2,c\n x ,d\n')
        read = frames.read(path)
        assert read.height == 3
        assert [frames.line_of(path, frames.UTF8, index) for index in range(3)] == [3, 6, 7]
        words = ["new: column 'age' holds 'x' in line 7, but only"]
        places = {"name": "new", "place": lambda i: f"line {frames.line_of(path, frames.UTF8, i)}"}
        refused(words, DataError, raw_matrix, read, ["age"], {}, **places)


TASKS: list[tuple[Task, tuple[str, ...] | None]] = [
    (Classification(2), ("no", "yes")),
    (Regression(1 / 3, 1e-9), None),
]


class TestPreparation:
    def test_there_and_back(self) -> None:
        for task, names in TASKS:
            before = Preparation({"a": fitted()}, "y", task, names)
            after = Preparation.from_json(before.to_json())
            assert after.to_json() == before.to_json()
            assert after.agrees_with(before)
            assert (type(after.task), vars(after.task)) == (type(task), vars(task))
            assert after.class_names == names
            assert torch.equal(before.features(frame())["a"], after.features(frame())["a"])

    def test_what_another_processor_rounds_otherwise_agrees(self) -> None:
        before = Preparation({"a": fitted()}, "y", *TASKS[0])
        content = json.loads(before.to_json())
        column = content["parties"]["a"]["columns"][2]
        column["mean"] *= 1 + 1e-14
        assert Preparation.from_json(json.dumps(content)).agrees_with(before)
        column["scale"] *= 1.01
        assert not Preparation.from_json(json.dumps(content)).agrees_with(before)
        assert not before.agrees_with(None)

    def test_damage_is_one_line(self) -> None:
        damages: list[tuple[Damage, list[str]]] = [
            (lambda c: c.update(version=9), ["version is 9", "1"]),
            (lambda c: c.pop("label"), ["label"]),
            (lambda c: c.update(parties=[1]), ["parties"]),
            (lambda c: c["parties"]["a"].clear(), ["columns"]),
            (lambda c: c["label"].pop("classes"), ["label.classes"]),
            (lambda c: c["label"].update(task="ranking"), ["label.task"]),
        ]
        for damage, words in damages:
            content = json.loads(Preparation({"a": fitted()}, "y", *TASKS[0]).to_json())
            damage(content)
            refused(words, DataError, Preparation.from_json, json.dumps(content))
        for text in ("", "[]", "3", '{"version": 1}'):
            refused([], DataError, Preparation.from_json, text)
