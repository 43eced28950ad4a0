"""Columns of dates: numbers for a model, the same from every kind of file and for new records."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from tests.data.refusals import refused

import vertizo as vz
from vertizo.core.errors import ConfigError, DataError
from vertizo.core.randomness import Stream
from vertizo.data.options import DataConfig, OwnTable
from vertizo.data.own_tables.party_table import Choice, features
from vertizo.data.prepare import prepare
from vertizo.data.prepared import Preparation
from vertizo.data.vertical import VerticalData

START = datetime(2019, 12, 30)  # a Monday
ROWS = 60
ROOT = Stream.from_seed(0)


def frame(hours: int = 0) -> pl.DataFrame:
    when = [START + timedelta(days=9 * n, hours=hours * n) for n in range(ROWS)]
    known = [None if n % 10 == 4 else each for n, each in enumerate(when)]
    x = [n * n % 7 for n in range(ROWS)]
    label = ["uv"[n * n % 3 % 2] for n in range(ROWS)]
    return pl.DataFrame({"k": [f"r{n}" for n in range(ROWS)], "x": x, "when": known, "y": label})


def made(path: Path, content: pl.DataFrame, **more: Any) -> VerticalData:
    if path.suffix == ".parquet":
        content.write_parquet(path)
    else:
        content.with_columns(pl.col("when").dt.to_string("iso")).write_csv(path)
    columns = {"a": ["x"], "b": ["when"]}
    options = {"name": "table", "path": path, "id": "k", "label": "y", "columns": columns, **more}
    return prepare(DataConfig.model_validate(options), ROOT)


def test_a_date_becomes_days_and_its_places_in_year_and_week(tmp_path: Path) -> None:
    data = made(tmp_path / "t.csv", frame(), validation=0)
    assert data.notes == ()
    preparation = data.preparation
    own = preparation.parties["b"]
    # days, whether it is missing, sine and cosine of the year, then of the week
    assert (own.width, own.places, own.fitted) == (6, {"when": [0, 1, 2, 3, 4, 5]}, True)
    new = ["2020-03-02", "2021-03-02", "2020-03-09", None, "2020-12-31", "2021-01-01"]
    known = pl.DataFrame({"x": [1] * 6, "when": new})
    found = preparation.features(known)["b"]
    assert torch.equal(found, found.nan_to_num())
    days = found[:, 0]
    assert math.isclose(days[1] - days[0], (days[2] - days[0]) / 7 * 365, rel_tol=1e-4)
    assert found[:, 1].tolist() == [0, 0, 0, 1, 0, 0]
    year, week = found[:, [2, 4]], found[:, [3, 5]]
    assert torch.allclose(year[0], year[1], atol=0.02)
    assert torch.allclose(week[0], week[2], atol=1e-6)
    assert year[3].tolist() == week[3].tolist() == [0, 0]
    assert (year[4] - year[5]).norm() < 0.03
    again = Preparation.from_json(preparation.to_json())
    assert torch.equal(again.features(known)["b"], found)


def test_hours_count_where_there_are_some_and_files_are_alike(tmp_path: Path) -> None:
    for hours, width in ((0, 6), (5, 8)):
        content = frame(hours)
        one, other = (made(tmp_path / f"t.{end}", content) for end in ("csv", "parquet"))
        assert one.features[1]["train"].shape[1] == width
        for purpose in ("train", "test"):
            assert torch.equal(one.features[1][purpose], other.features[1][purpose])
        assert one.notes == other.notes == ()
        table = OwnTable(path=tmp_path / "t.csv", id="k", columns=["when"])
        held = features(table, Choice(ROOT, 0.1, 0.2), "f")
        assert (held.preparation.width, held.preparation.dates) == (width, ("when",))


def test_new_records_without_a_date_are_missing_and_told_of(tmp_path: Path) -> None:
    preparation = made(tmp_path / "t.csv", frame()).preparation
    absent = preparation.features(pl.DataFrame({"x": [1], "when": [None]}))["b"]
    for odd in ("31.01.2020", "2020-02-30", "soon", 43861, 1.5):
        new = pl.DataFrame({"x": [1], "when": [odd]})
        assert torch.equal(preparation.features(new)["b"], absent)
        (line,) = preparation.unknown(new, name="new.csv")
        assert f"new.csv: 1 of 1 values of 'when', such as '{odd}', are no dates" in line
    for fine in ("2020-1-31", "2020/01/31", "2020-01-31T00:00:00Z", 20200131):
        new = pl.DataFrame({"x": [1], "when": [fine]})
        assert not torch.equal(preparation.features(new)["b"], absent)
        assert preparation.unknown(new) == []


def test_what_is_no_date_in_training_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    lines = [f"{n},{n % 7},2020-01-{n + 10},{'uv'[n % 2]}" for n in range(19)]
    options = DataConfig(name="table", path=path, label="y", columns={"a": ["x"], "b": ["when"]})
    for odd in ("31.01.2020", "01/02/2020", "2020-02-30", "soon"):
        path.write_text("\n".join(["k,x,when,y", *lines, f"19,1,{odd},u"]))
        words = [f"'when' holds '{odd}' in line 21", "write dates as 2020-01-31", "categorical"]
        refused(words, DataError, prepare, options, ROOT)
    dotted = [f"{n},{n % 7},0{n}.02.2020,u" for n in range(1, 9)]
    path.write_text("\n".join(["k,x,when,y", *dotted]))
    categories = options.model_copy(update={"categorical": ["when"]})
    assert prepare(categories.model_copy(update={"classes": ["u", "v"]}), ROOT).cardinalities


def test_public_bounds_are_dates(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    bounds = {"x": [0, 9], "when": ["2020-01-01", "2022-01-01"]}
    data = made(path, frame(), ranges=bounds)
    assert (data.fitted, data.features[1]["train"].shape[1]) == ((), 7)
    assert data.features[1]["train"].abs().max() <= 1
    for wrong in ([2020, 2022], ["1990-01-01", "1991-01-01"]):
        words = ["data.ranges.when", "no date", "[2015-01-01"]
        refused(words, ConfigError, made, path, frame(), ranges={"when": wrong})


def test_an_estimator_takes_frames_with_dates() -> None:
    pandas = pytest.importorskip("pandas")
    content = frame(5)
    y = content["y"].to_numpy()
    there = pandas.DataFrame(
        {"x": content["x"].to_list(), "when": pandas.to_datetime(content["when"].to_list())}
    )
    found = []
    for given in (content.select("x", "when"), there, there.assign(when=there["when"].astype(str))):
        held = {"a": ["x"], "b": ["when"]}
        model = vz.VerticalClassifier(held, method="dpzv", epochs=1, random_state=0)
        found.append(model.fit(given, y).predict_proba(given))
        assert model._preparation.parties["b"].dates == ("when",)
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])
