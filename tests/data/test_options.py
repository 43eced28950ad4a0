"""The ``data`` section of a configuration: combinations that make no sense."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from tests.data.refusals import refused

from vertizo.config.error_lines import write_yaml
from vertizo.config.schema import parse
from vertizo.core.errors import ConfigError
from vertizo.core.randomness import Stream
from vertizo.data.options import DataConfig, OwnTable
from vertizo.data.prepare import prepare

TABLE = {"name": "table", "path": "a.csv", "label": "y"}
SEVERAL: dict[str, Any] = {**TABLE, "label": ["y", "z"]}


ROWS: list[tuple[dict[str, Any], list[str]]] = [
    ({"name": "table"}, ["data.path"]),
    ({"name": "table", "path": "a.csv"}, ["data.label"]),
    ({"path": "a.csv"}, ["data.path", "'digits'", "'table'"]),
    ({"name": "adult", "label": "income"}, ["data.label", "'adult'"]),
    ({"task": "regression"}, ["data.task", "'digits'"]),
    ({**TABLE, "test": 0.1, "test_path": "b.csv"}, ["data.test is 0.1", "data.test_path"]),
    ({**TABLE, "delimiter": "||"}, ["data.delimiter is '||'", "';'"]),
    ({**TABLE, "delimiter": ""}, ["data.delimiter is ''"]),
    ({**TABLE, "delimiter": '"'}, ["data.delimiter"]),
    ({**TABLE, "encoding": "gbk"}, ["data.encoding", "'gbk'", "gb18030"]),
    ({**TABLE, "task": "ranking"}, ["data.task", "'ranking'"]),
    ({**TABLE, "test": 1.0}, ["data.test", "1.0"]),
    ({**TABLE, "ranges": {"a": [1]}}, ["data.ranges.a", "[low, high]"]),
    ({**TABLE, "ranges": {"a": [2, 2]}}, ["data.ranges.a is [2.0, 2.0]"]),
    ({**TABLE, "label_range": [3, 1]}, ["data.label_range is [3.0, 1.0]"]),
    (
        {**TABLE, "label_range": [1, 3], "task": "classification"},
        ["data.label_range", "'classification'"],
    ),
    (
        {**TABLE, "label_range": [1, 3], "positive": "yes"},
        ["data.positive is 'yes' but the task is a regression"],
    ),
    (
        {**TABLE, "loss": "huber", "classes": ["a", "b"]},
        ["data.loss is 'huber' but the task is a classification"],
    ),
    ({**TABLE, "loss": "pinball"}, ["data.loss", "'pinball'", "quantile"]),
    ({**TABLE, "quantile": 1}, ["data.quantile is 1"]),
    ({**TABLE, "positive": True}, ["data.positive", "quotes"]),
    ({**TABLE, "categories": {"a": []}}, ["data.categories.a"]),
    ({**TABLE, "categories": {"a": ["x", "x"]}}, ["data.categories.a", "'x' twice"]),
    ({**TABLE, "categories": {"a": [True]}}, ["data.categories", "quotes"]),
    ({**TABLE, "columns": {"p": ["y"]}}, ["data.columns", "'y'", "data.label"]),
    ({**TABLE, "drop": ["y"]}, ["data.drop", "'y'"]),
    ({**TABLE, "drop": ["a"], "columns": {"p": ["a"]}}, ["data.drop", "data.columns", "'a'"]),
    ({**TABLE, "categorical": ["a"], "ranges": {"a": [0, 1]}}, ["data.ranges", "'a'"]),
    ({**TABLE, "stratify": True, "time": "t"}, ["data.stratify is true", "data.time is 't'"]),
    ({**TABLE, "stratify": True, "task": "regression"}, ["data.stratify is true", "regression"]),
    ({**TABLE, "stratify": "often"}, ["data.stratify", "'often'"]),
    ({**TABLE, "time": "y"}, ["data.time names 'y', which is data.label"]),
    ({"name": "adult", "time": "year"}, ["data.time", "'adult'", "'table'"]),
    ({**TABLE, "label": ["y"]}, ["data.label is ['y']", "not a list"]),
    ({**TABLE, "label": []}, ["data.label is []", "not a list"]),
    ({**TABLE, "label": ["y", "y"]}, ["data.label names 'y' twice"]),
    ({**TABLE, "label": ["y", 3]}, ["data.label"]),
    ({**SEVERAL, "columns": {"p": ["z"]}}, ["data.columns names 'z', which is data.label"]),
    ({**SEVERAL, "task": "regression"}, ["data.label is a list", "regression"]),
    ({**SEVERAL, "label_range": [0, 1]}, ["data.label is a list", "regression"]),
    ({**SEVERAL, "loss": "huber"}, ["data.label is a list", "regression"]),
    ({**SEVERAL, "classes": ["a", "b", "c"]}, ["data.classes is ['a', 'b', 'c']", "two values"]),
    ({**SEVERAL, "positive": "a"}, ["data.positive is 'a'", "data.classes"]),
    ({**SEVERAL, "class_weights": {"a": 2}}, ["data.class_weights", "data.label is a list"]),
    ({**SEVERAL, "stratify": True}, ["data.stratify", "data.label is a list"]),
    ({"tokenizer": 3}, ["data.tokenizer"]),
    ({"length": 0}, ["data.length is 0"]),
]


def test_one_line_names_the_key_and_the_value() -> None:
    for data, words in ROWS:
        refused(words, ConfigError, parse, {"data": data})


def test_a_members_table_is_held_to_the_same() -> None:
    table = {"path": "a.csv", "id": "key"}
    for keys, words in (
        ({"ranges": {"a": [2, 2]}}, "data.ranges.a is [2.0, 2.0]; it must be [low, high]"),
        ({"categories": {"a": []}}, "data.categories.a is empty"),
        ({"categories": {"a": ["x", "x"]}}, "data.categories.a has 'x' twice"),
        ({"columns": ["key"]}, "data.id and data.columns both name 'key'"),
        ({"drop": ["a"], "columns": ["b", "a"]}, "data.drop and data.columns both name 'a'"),
        ({"drop": ["a"], "ranges": {"a": [0, 1]}}, "data.drop and data.ranges both name 'a'"),
        ({"categorical": ["a"], "ranges": {"a": [0, 1]}}, "data.ranges and data.categorical"),
    ):
        with pytest.raises(ValidationError) as refusal:
            OwnTable.model_validate({**table, **keys})
        assert words in str(refusal.value), keys


def test_keys_for_tables_are_refused_for_images() -> None:
    for key, value in {
        "columns": {"a": ["c"]},
        "drop": ["c"],
        "categorical": ["c"],
        "ranges": {"c": [0, 1]},
        "categories": {"c": ["a"]},
    }.items():
        options = DataConfig.model_validate({"name": "digits", key: value})
        refused([f"data.{key} ", "digits"], ConfigError, prepare, options, Stream.from_seed(0))


def test_a_complete_configuration_reads_itself() -> None:
    public = {"categories": {"a": ["no", "1"]}, "ranges": {"b": [0, 1]}, "drop": ["c"]}
    config = parse({"data": {**TABLE, **public}})
    again = parse(config.model_dump(mode="json"))
    assert again == config
    assert "'no'" in write_yaml(config.model_dump(mode="json"))
    # Numbers are categories too.
    numbers = DataConfig(**TABLE, categories={"a": [1234567, 2.5, 3.0, "x"]})
    assert numbers.categories == {"a": ["1234567", "2.5", "3", "x"]}


def test_truth_in_place_of_a_name_is_told_by_its_key() -> None:
    """YAML reads yes and no without quotes as true and false."""
    for key, value in (("classes", [False, True]), ("categories", {"member": [False, True]})):
        with pytest.raises(ValidationError, match=f"data.{key} has true or false"):
            DataConfig.model_validate({"name": "table", "path": "x", "label": "y", key: value})
