"""Parameters of estimators as configurations, and what is brought as frames."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.lazy import Lazy
from tests.rows import each

from vertizo.core.errors import ConfigError, DataError
from vertizo.run.estimators import inputs, settings
from vertizo.run.estimators.privacy import Privacy

pd = Lazy("pandas")

GIVEN: dict[str, Any] = {"method": "dpzv", "privacy": None}


class TestTree:
    def test_what_is_not_given_is_not_said(self) -> None:
        assert settings.tree_of(GIVEN, None, {}) == {"method": {"name": "dpzv"}}

    def test_every_parameter_has_its_key(self) -> None:
        parameters = {
            **GIVEN,
            "epochs": np.int64(3),
            "client_hidden": (4, 5),
            "embedding_dim": 6,
            "server_learning_rate": np.float64(0.1),
            "privacy": Privacy(epsilon=2.0, clip=1.5),
        }
        tree = settings.tree_of(parameters, {"server": {"model": {"hidden": [7]}}}, {"seed": 1})
        assert tree == {
            "epochs": 3,
            "client": {"model": {"hidden": [4, 5], "outputs": 6}},
            "server": {"model": {"hidden": [7]}, "optimizer": {"learning_rate": 0.1}},
            "method": {"name": "dpzv"},
            "privacy": {"epsilon": 2.0, "delta": 1e-5, "clip": 1.5},
            "seed": 1,
        }
        assert type(tree["epochs"]) is int

    def test_what_was_given_is_left_as_it_was(self) -> None:
        config = {"method": {"smoothing": 0.01}}
        tree = settings.tree_of(GIVEN, config, {})
        assert tree["method"] == {"name": "dpzv", "smoothing": 0.01}
        assert config == {"method": {"smoothing": 0.01}}

    @each(
        "changed, config, word",
        [
            ({"epochs": 3}, {"epochs": 3}, "epochs"),
            ({"method": "vafl"}, {"method": {"name": "dpzv"}}, "method.name"),
            ({"method": {"smoothing": 1.0}}, {"method": {"smoothing": 1.0}}, "method.smoothing"),
            ({"privacy": Privacy(1.0)}, {"privacy": {"delta": 0.1}}, "privacy.delta"),
        ],
    )
    def test_nothing_is_said_twice(self, changed: Any, config: Any, word: str) -> None:
        with pytest.raises(ConfigError, match=word):
            settings.tree_of({**GIVEN, **changed}, config, {})


def frame_of(given: Any) -> pl.DataFrame:
    class Anything:
        """Takes what scikit-learn's checks set."""

        def __sklearn_tags__(self) -> Any:
            from sklearn.base import BaseEstimator

            return BaseEstimator().__sklearn_tags__()

    found = inputs.features(Anything(), given, reset=True)
    return found.frame(found.names)


class TestFrames:
    @each(
        "cells, kind, expected",
        [
            ([1, 2, 3], "int8", [1, 2, 3]),
            ([1.5, None, 2.0], "float32", [1.5, float("nan"), 2.0]),
            ([1, None, 3], "Int64", [1.0, None, 3.0]),
            ([True, False, True], "bool", [True, False, True]),
            ([True, None, False], "boolean", [True, None, False]),
            (["a", None, "b"], "object", ["a", None, "b"]),
            (["a", None, "b"], "str", ["a", None, "b"]),
            (["a", None, "b"], "string", ["a", None, "b"]),
            (["a", None, "b"], "category", ["a", None, "b"]),
            ([3, None, 1], "category", [3.0, None, 1.0]),
            (["a", 2, 3.0], "object", ["a", "2", "3"]),
            ([None, None, None], "object", [None, None, None]),
        ],
    )
    def test_of_pandas_of_every_type(self, cells: Any, kind: Any, expected: list[Any]) -> None:
        frame = pd.DataFrame({"c": pd.Series(cells, dtype=kind)})
        found = frame_of(frame)["c"].to_list()
        assert len(found) == len(expected)
        for value, wanted in zip(found, expected, strict=True):
            assert value == wanted or (value != value and wanted != wanted)

    @each("cell", [{"a": 1}, [1], b"x"])
    def test_what_is_neither_number_nor_text(self, cell: Any) -> None:
        for cells in ([1.0, cell], ["a", cell]):
            with pytest.raises(DataError, match="'c' holds"):
                frame_of(pd.DataFrame({"c": pd.Series(cells, dtype=object)}))

    def test_columns_without_names_are_counted(self) -> None:
        assert frame_of(pd.DataFrame([[1.0, 2.0], [3.0, 4.0]])).columns == ["x0", "x1"]
        assert frame_of([[1, 2], [3, 4]]).columns == ["x0", "x1"]

    def test_labels_of_pandas_own_types_are_plain(self) -> None:
        y = inputs.target(pd.Series([1, 2, 1], dtype="Int64"), numbers=False)
        assert y.dtype.kind in "if"
        assert y.tolist() == [1, 2, 1]
        with pytest.raises(ValueError, match="contains NaN"):
            inputs.target(pd.Series([1, None, 1], dtype="Int64"), numbers=False)
        with pytest.raises(DataError, match="y is missing in 1 of 3"):
            inputs.target(["a", None, "b"], numbers=False)
