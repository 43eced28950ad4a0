"""A party's own columns as numbers, and what they may depend on."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from numpy.typing import NDArray
from tests.data.refusals import refused
from tests.rows import each

from vertizo.core.errors import ConfigError
from vertizo.core.randomness import Stream
from vertizo.data import vertical
from vertizo.data.options import DataConfig
from vertizo.data.tables import pool
from vertizo.data.tabular import preprocessing
from vertizo.data.tabular.columns import Source
from vertizo.data.tabular.preprocessing import Preprocessing
from vertizo.data.vertical import VerticalData

NAN = float("nan")
PARTIES = {"a": ["age", "job"], "b": ["city", "debt", "same"]}


def prepared(
    train: Any,
    levels: dict[str, tuple[str, ...]] | None = None,
    **public: Any,
) -> Preprocessing:
    matrix = np.array(train, float)
    names = [f"c{index}" for index in range(matrix.shape[1])]
    settings: dict[str, Any] = {"ranges": {}, "categories": {}, **public}
    return Preprocessing(matrix, names, levels or {}, **settings)


def out(fitted: Preprocessing, rows: Any) -> list[list[float]]:
    return [[round(x, 5) for x in row] for row in fitted(np.array(rows, float)).tolist()]


class TestNumbers:
    def test_centred_and_scaled_by_training_rows(self) -> None:
        fitted = prepared([[1.0], [3.0]])
        assert out(fitted, [[1], [3], [7]]) == [[-1], [1], [5]]
        assert fitted.cardinalities == ()
        assert fitted.fitted
        outlier = prepared([[0.0], [1e-30], [2e-30]])
        assert torch.isfinite(outlier(np.array([[3e38]]))).all()

    def test_missing_is_the_median_and_says_so(self) -> None:
        fitted = prepared([[1.0], [NAN], [2.0], [6.0]])
        values = np.array([1, 2, 2, 6])
        z = round((2 - values.mean()) / values.std(), 5)
        assert out(fitted, [[NAN], [2]]) == [[z, 1], [z, 0]]
        # For the first time in testing: there is no column that could say so.
        fitted = prepared([[1.0], [2.0], [9.0]])
        assert out(fitted, [[NAN]]) == out(fitted, [[2]])

    def test_constant_and_always_missing_columns_one_row_and_no_rows(self) -> None:
        fitted = prepared([[5.0, NAN], [5.0, NAN]])
        assert out(fitted, [[5, NAN]]) == [[0, 0, 1]]
        assert fitted(np.array([[5.0, 3.0]])).shape == (1, 3)
        fitted = prepared([[5.0, 1.0]], {"c1": ("x", "y")})
        assert out(fitted, [[5, 1]]) == [[1, 0]]
        assert fitted(np.empty((0, 2))).shape == (0, 2)

    def test_public_bounds_are_clipped_and_nothing_is_fitted(self) -> None:
        fitted = prepared([[1.0], [NAN]], ranges={"c0": [0, 10]})
        assert out(fitted, [[0], [5], [10], [99], [-99], [NAN]]) == [[-1], [0], [1], [1], [-1], [0]]
        assert not fitted.fitted
        # Bounded and fitted columns keep their order.
        fitted = prepared([[1.0, 4.0, 1.0], [3.0, NAN, 3.0]], ranges={"c1": [0, 8]})
        assert out(fitted, [[3, 8, 1]]) == [[1, 1, -1]]
        assert fitted.fitted


LEVELS = {"c1": ("blue", "green", "red")}


class TestCategories:
    def test_codes_come_first_and_zero_is_unknown(self) -> None:
        fitted = prepared([[1.0, 2], [3.0, 0], [1.0, NAN], [3.0, 0]], LEVELS)
        assert fitted.cardinalities == (3,)
        codes = [row[0] for row in out(fitted, [[1, 0], [1, 1], [1, 2], [1, NAN]])]
        assert codes == [1, 0, 2, 0]

    def test_the_rarest_of_very_many_share_code_zero(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(preprocessing, "MOST_CATEGORIES", 2)
        levels = {"c0": ("a", "b", "c", "d")}
        fitted = prepared([[3.0], [3.0], [1.0], [0.0], [2.0], [2.0]], levels)
        assert fitted.cardinalities == (3,)
        assert [row[0] for row in out(fitted, [[0], [1], [2], [3]])] == [0, 0, 1, 2]

    def test_declared_ones_are_not_fitted_and_a_column_may_have_none(self) -> None:
        fitted = prepared([[1.0]], {"c0": ("b", "x")}, categories={"c0": ["a", "b", "c"]})
        assert fitted.cardinalities == (4,)
        assert [row[0] for row in out(fitted, [[0], [1], [NAN]])] == [2, 0, 0]
        assert not fitted.fitted
        empty = prepared([[NAN], [NAN]], {"c0": ()})
        assert empty.cardinalities == (1,)
        assert out(empty, [[NAN]]) == [[0]]


def frame(rows: int = 40) -> pl.DataFrame:
    rng = np.random.default_rng(0)
    return pl.DataFrame(
        {
            "age": rng.normal(40, 9, rows),
            "job": rng.choice(["cook", "nurse", None], rows).tolist(),
            "city": rng.choice(["Rome", "Oslo", "Kyiv"], rows).tolist(),
            "debt": [None if i % 7 == 0 else float(i * i) for i in range(rows)],
            "same": [3.0] * rows,
            "y": [i % 2 for i in range(rows)],
        }
    )


def vertical_data(train: pl.DataFrame, test: pl.DataFrame, **more: Any) -> VerticalData:
    sources = Source("train.csv", train), Source("test.csv", test)
    pooled = pool("people", *sources, label="y", options=DataConfig(), groups=PARTIES)
    settings = DataConfig.model_construct(**{"validation": 0.25, **more})
    return vertical.cut(pooled, settings, Stream.from_seed(3))


ORDER = Stream.from_seed(3).generator().permutation(40).tolist()
"""Of the training rows: the first ten are for validation."""
WILD = {"age": 1e30, "job": "0 astronaut", "city": "Aarhus", "debt": -1e30, "same": 4.0}


def wild(table: pl.DataFrame, rows: list[int], columns: list[str]) -> pl.DataFrame:
    """The table with nonsense in some rows of some columns."""
    inside = pl.int_range(pl.len()).is_in(rows)
    return table.with_columns(
        pl.when(inside).then(pl.lit(WILD[c])).otherwise(pl.col(c)).alias(c) for c in columns
    )


@pytest.fixture(scope="module")
def before() -> VerticalData:
    return vertical_data(frame(), frame(10))


class TestWhatIsFitted:
    """No statistic comes from validation or test rows, or from another party's columns."""

    def test_a_wild_test_row_changes_no_training_number(self, before: VerticalData) -> None:
        """A wild training row does."""
        after = vertical_data(frame(), wild(frame(10), [2], list(WILD)))
        for one, other in zip(before.features, after.features, strict=True):
            assert torch.equal(one["train"], other["train"])
            assert torch.equal(one["validation"], other["validation"])
            same = torch.arange(10) != 2
            assert torch.equal(one["test"][same], other["test"][same])
            assert not torch.equal(one["test"], other["test"])
        assert before.cardinalities == after.cardinalities
        after = vertical_data(wild(frame(), ORDER[-1:], list(WILD)), frame(10))
        assert not torch.equal(before.features[0]["test"], after.features[0]["test"])

    def test_wild_validation_rows_change_no_training_number(self, before: VerticalData) -> None:
        used = {tuple(row) for row in before.features[0]["train"].tolist()}
        after = vertical_data(wild(frame(), ORDER[:10], list(WILD)), frame(10))
        assert len(used) == 30
        for one, other in zip(before.features, after.features, strict=True):
            assert torch.equal(one["train"], other["train"])
            assert torch.equal(one["test"], other["test"])
            assert not torch.equal(one["validation"], other["validation"])
        assert before.cardinalities == after.cardinalities

    def test_another_partys_columns_change_nothing(self, before: VerticalData) -> None:
        train = wild(frame(), list(range(0, 40, 3)), PARTIES["b"])
        after = vertical_data(train, wild(frame(10), [1], PARTIES["b"]))
        for purpose in ("train", "validation", "test"):
            assert torch.equal(before.features[0][purpose], after.features[0][purpose])
        assert not torch.equal(before.features[1]["train"], after.features[1]["train"])

    def test_public_constants_leave_every_other_row_alone(self) -> None:
        """What exact privacy of the features needs: one record changes its own row only."""
        public = {
            "ranges": {"age": [0, 100], "debt": [0, 2000], "same": [0, 10]},
            "categories": {"job": ["cook", "nurse"], "city": ["Kyiv", "Oslo", "Rome"]},
        }
        before = vertical_data(frame(), frame(10), **public)
        after = vertical_data(wild(frame(), ORDER[-1:], list(WILD)), frame(10), **public)
        assert not before.fitted_scaling
        assert before.fitted == ()
        for one, other in zip(before.features, after.features, strict=True):
            assert int((one["train"] != other["train"]).any(1).sum()) == 1

    def test_the_parties_that_are_fitted_are_named(self) -> None:
        public = {"ranges": {"age": [0, 100]}, "categories": {"job": ["cook"]}}
        data = vertical_data(frame(), frame(10), **public)
        assert data.fitted == ("b",)
        assert data.fitted_scaling

    def test_the_label_holder_prepares_its_own_columns(self, before: VerticalData) -> None:
        data = vertical_data(frame(), frame(10), label_holder="a")
        assert data.own.cardinalities == (3,)
        assert data.cardinalities == ((4,),)
        assert torch.equal(data.own.values["train"], before.features[0]["train"])
        assert data.fitted == ("a", "b")

        # Empty where nobody has categories.
        columns = {"a": ["age"], "b": ["debt", "same"]}
        assert vertical_data(frame(), frame(10), columns=columns).cardinalities == ()

        for split in ("even", "columns"):
            data = vertical_data(frame(), frame(10), split=split, parties=5)
            assert data.cardinalities == ((), (3,), (4,), (), ())
            assert [data.shape(party) for party in range(5)] == [(1,), (1,), (1,), (2,), (1,)]


def test_public_constants_that_do_not_fit() -> None:
    rows: list[tuple[dict[str, Any], list[str]]] = [
        ({"ranges": {"agee": [0, 1]}}, ["data.ranges", "'agee'", "did you mean 'age'?"]),
        ({"ranges": {"job": [0, 1]}}, ["data.ranges", "'job'", "categories"]),
        ({"categories": {"jbo": ["a"]}}, ["data.categories", "'jbo'", "did you mean 'job'?"]),
        ({"categories": {"age": ["a"]}}, ["data.categories", "'age'", "data.categorical"]),
        ({"categories": {"job": ["chef"]}}, ["data.categories.job", "'cook'", "'nurse'"]),
    ]
    for public, words in rows:
        refused(words, ConfigError, vertical_data, frame(), frame(10), **public)


CHANCE = np.random.default_rng(5)
BESIDE_THEIR_SIZE: dict[str, NDArray[np.float64]] = {
    "17 digits, the same first": 20240112 * 1e9 + CHANCE.integers(0, 1000, 5000),
    "16 digits, the same first": 2024011200000000.0 + CHANCE.integers(0, 100, 300),
    "negative": -20240112 * 1e9 - CHANCE.integers(0, 10**5, 5000),
    "below 1e38": 1e38 * (1 + 1e-13 * CHANCE.normal(size=500)),
    "with missing ones": np.where(CHANCE.random(500) < 0.3, np.nan, 1e12 + np.arange(500)),
}
EQUAL: dict[str, NDArray[np.float64]] = {
    "a constant": np.full(24000, 12345678901234567.0),
    "equal but for rounding": np.where(CHANCE.random(500) < 0.5, 0.1 + 0.2, 0.3),
    "two that are next to each other": 1e17 + 16 * CHANCE.integers(0, 2, 500),
    "zeros": np.zeros(50),
}


@each("name", [*BESIDE_THEIR_SIZE, *EQUAL])
def test_long_numbers_are_scaled_as_others_are(name: str) -> None:
    """They were taken for constants, and left up to 1,000,000: training ended in the first step."""
    values = (BESIDE_THEIR_SIZE | EQUAL)[name][:, None]
    made = Preprocessing(values, ["x"], {}, {}, {})(values)[:, 0]
    if name in EQUAL:
        assert float(made.abs().max()) < 1e-9
        return
    known = ~np.isnan(values[:, 0])
    assert abs(float(made[known].mean())) < 0.05
    assert 0.9 < float(made.std()) < 1.1
    assert float(made.abs().max()) < 10


def test_a_record_far_out_is_within_what_embeddings_may_be() -> None:
    train = np.array([[5.0]] * 50)
    far = Preprocessing(train, ["x"], {}, {}, {})(np.array([[3e38], [-3e38]]))
    assert far.abs().max() <= 1e4
