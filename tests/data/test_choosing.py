"""Which records train, validate and test: by class and by time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from tests.data.refusals import refused
from tests.lazy import Lazy
from tests.rows import each

import vertizo as vz
from vertizo.config.schema import parse
from vertizo.core.errors import ConfigError, DataError, UserError
from vertizo.core.randomness import Stream
from vertizo.data.options import DataConfig, OwnTable
from vertizo.data.own_tables import party_table
from vertizo.data.own_tables.party_table import Choice
from vertizo.data.prepare import prepare
from vertizo.data.record_split import AT_RANDOM, ChosenRows, Criterion, choose, set_apart
from vertizo.run.build.coverage import STRATIFIED
from vertizo.run.experiment import Experiment

pd = Lazy("pandas")

ROOT = Stream.from_seed(3)
RARE = np.random.default_rng(0).permutation([1] * 30 + [0] * 970)
"""3 % positives."""


def people(folder: Path, label: str = "y") -> Path:
    """1,000 rows; their dates rise with x, and are not in the order of the rows."""
    x = np.random.default_rng(1).permutation(len(RARE))
    dates = np.datetime64("2020-01-01") + x
    table = {"key": range(len(RARE)), "x": x, "z": x % 7, "day": dates, label: RARE}
    pl.DataFrame(table).write_csv(folder / "people.csv")
    return folder / "people.csv"


def tree(path: Path, **data: Any) -> dict[str, Any]:
    own = {"name": "table", "path": path, "label": "y", "classes": ["0", "1"]}
    held = {"columns": {"a": ["x"], "b": ["z"]}, "ranges": {"x": [0, 999], "z": [0, 6]}}
    return {"seed": 1, "data": {**own, **held, **data}}


def test_each_class_gives_its_share() -> None:
    classes = torch.from_numpy(RARE).long()
    by = Criterion(classes=classes)
    train, test = set_apart(1000, 0.2, by)
    assert (len(test), int(classes[test].sum())) == (200, 6)
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(1000))
    chosen = choose(len(train), 0.1, 400, ROOT, by.of(train))
    found = {purpose: classes[train][rows] for purpose, rows in chosen.items()}
    assert [len(rows) for rows in found.values()] == [360, 40]
    assert [int(rows.sum()) for rows in found.values()] == [11, 1]
    few = Criterion(classes=torch.tensor([0, 1, 2, 2]))
    assert [len(side) for side in set_apart(4, 0.5, few)] == [2, 2]


def test_who_trains_follows_from_labels_only_where_that_is_asked_for() -> None:
    """Why no ε goes with it: one label that changes moves people into and out of training."""
    classes = torch.from_numpy(RARE).long()
    moved = 0
    for record in range(20):
        other = classes.clone()
        other[record] = 1 - other[record]
        ways = (Criterion(classes=y) for y in (classes, other))
        rows = [choose(1000, 0.1, None, ROOT, by)["train"] for by in ways]
        moved += not torch.equal(*rows)
    assert moved
    ours = choose(1000, 0.1, None, ROOT, AT_RANDOM)
    assert torch.equal(ours["train"], choose(1000, 0.1, None, ROOT)["train"])


def test_the_newest_test_and_the_next_newest_validate(tmp_path: Path) -> None:
    data = prepare(DataConfig(**tree(people(tmp_path), time="day")["data"]), ROOT)
    x = {purpose: (999 + 999 * values[:, 0]) / 2 for purpose, values in data.features[0].items()}
    assert [len(x[p]) for p in ("train", "validation", "test")] == [720, 80, 200]
    assert x["train"].max() < x["validation"].min() < x["validation"].max() < x["test"].min()
    newest = prepare(DataConfig(**tree(people(tmp_path), time="day", limit=100)["data"]), ROOT)
    assert newest.records == 90
    assert torch.equal(newest.features[0]["test"], data.features[0]["test"])
    assert newest.features[0]["train"].min() > x["train"].min() / 500 - 1


@each(
    "content, words",
    [
        ("2020-01-31,2020-02-30", ["data.time is 't'", "'2020-02-30'", "line 3", "2020-01-31"]),
        ("2020-01-31,", ["data.time is 't'", "missing in 1 of 4 rows: line 3"]),
        ("soon,2020-01-31", ["data.time is 't'", "'soon'", "line 2"]),
    ],
)
def test_what_is_no_time_is_refused(content: str, words: list[str], tmp_path: Path) -> None:
    path, dates = tmp_path / "t.csv", [*content.split(","), "2020-01-01", "2020-01-02"]
    path.write_text("x,t,y\n" + "".join(f"{n},{day},{n % 2}\n" for n, day in enumerate(dates)))
    options = DataConfig(name="table", path=path, label="y", time="t", parties=1)
    refused(words, DataError, prepare, options, ROOT)
    near = options.model_copy(update={"time": "T"})
    refused(["data.time names", "'T'", "did you mean 't'"], ConfigError, prepare, near, ROOT)


def test_the_statement_says_what_the_choice_tells(tmp_path: Path) -> None:
    path = people(tmp_path)
    private = {"privacy": {"epsilon": 1.0, "clip": 1.0}, "server": {"update": "none"}}
    stratified = Experiment(parse(tree(path, stratify=True))).privacy()
    assert (stratified["guarantee"], STRATIFIED in stratified["words"]) == ("none", True)
    label_free = {**tree(path, stratify=True), "control": "label-free"}
    assert Experiment(parse(label_free)).privacy()["guarantee"] == "none"
    plain = Experiment(parse({**tree(path), **private})).privacy()
    timed = Experiment(parse({**tree(path, time="day"), **private})).privacy()
    assert timed["covers"] == plain["covers"] == ["labels", plain["covers"][1]]
    assert "every party learns which are the newest" in timed["words"]
    told = Experiment(parse({**tree(path, time="z"), **private})).privacy()
    assert told["covers"] == ["labels"]  # a feature that everybody learns something of


def test_a_label_holder_says_who_trains(tmp_path: Path) -> None:
    """Members have no dates and no labels, and their rows are the same people's."""
    path = people(tmp_path)
    frame = pl.read_csv(path).sample(fraction=1.0, shuffle=True, seed=1)
    frame.select("key", "x").write_csv(tmp_path / "member.csv")
    for more in ({"time": "day"}, {"stratify": True}):
        options = DataConfig(name="table", path=path, label="y", id="key", drop=["x", "z"], **more)
        options = options.model_copy(update={"drop": ["x", "z", "day"]})
        ours, _, told = party_table.labels(options, Choice(ROOT, 0.1, None), ["m"], "f")
        assert told is not None
        own = OwnTable(path=tmp_path / "member.csv", id="key", ranges={"x": [0, 999]})
        theirs = party_table.features(own, Choice(ROOT, 0.1, None, None, told), "f")
        dated = {p: (999 + 999 * x[:, 0]) / 2 for p, x in theirs.values.items()}
        assert [len(dated[p]) for p in ("train", "validation", "test")] == [720, 80, 200]
        assert [len(y) for y in ours.labels.values()] == [720, 80, 200]
        if "time" in more:
            assert dated["train"].max() < dated["validation"].min() < dated["test"].min() + 80
        else:
            assert int(ours.labels["test"].sum()) == 6
    usual = DataConfig(name="table", path=path, label="y", id="key", drop=["x", "z", "day"])
    assert party_table.labels(usual, Choice(ROOT, 0.1, None), ["m"], "f")[2] is None


def test_a_choice_that_is_of_other_records_is_refused() -> None:
    rows = choose(50, 0.2, 40, ROOT)
    told = ChosenRows.of(50, rows)
    assert all(torch.equal(told.rows(50)[purpose], ids) for purpose, ids in rows.items())
    for text, records in ((told.text, 49), (told.text, 51), ("!", 50), (told.text[:-4], 50)):
        refused(["choice of records"], UserError, ChosenRows(text).rows, records)


def test_a_choice_validates_on_the_share_that_was_agreed_to() -> None:
    """Embeddings of validation records carry no noise, so that more of them is no small thing."""
    marks = torch.arange(1000)
    for validated, used, refused_ in ((100, 1000, False), (101, 1000, True), (50, 400, True)):
        chosen = {"train": marks[validated:used], "validation": marks[:validated]}
        told = ChosenRows.of(1000, chosen)
        own = Choice(ROOT, 0.1, None, None, told)
        if refused_:
            words = [f"chose {validated} of {used:,}", "validation is 0.1"]
            refused(words, DataError, own.rows, 1000)
        else:
            assert len(own.rows(1000)["validation"]) == validated


@pytest.mark.filterwarnings("ignore::UserWarning")  # notes on the table
def test_an_estimator_validates_on_the_newest() -> None:

    x = np.random.default_rng(1).permutation(200)
    frame = pd.DataFrame({"x": x, "z": x % 5, "day": np.datetime64("2021-01-01") + x})
    config = {"data": {"time": "day"}, "epochs": 1}
    held = {"a": ["x"], "b": ["z"]}
    model = vz.VerticalClassifier(held, method="dpzv", config=config, random_state=0)
    model.fit(frame, RARE[:200])
    assert model.predict(frame).shape == (200,)
