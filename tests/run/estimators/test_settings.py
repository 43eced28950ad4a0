"""Parameters of estimators, nested as in grids, as configurations; what is brought as frames."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.lazy import Lazy
from tests.rows import each
from tests.words import says

import vertizo as vz
from vertizo.core.errors import ConfigError, DataError
from vertizo.methods.dpzv import Dpzv
from vertizo.run.estimators import inputs, settings
from vertizo.run.estimators.privacy import Privacy

model_selection = Lazy("sklearn.model_selection")
pd = Lazy("pandas")
sklearn_base = Lazy("sklearn.base")

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
            return sklearn_base.BaseEstimator().__sklearn_tags__()

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


# Parameters of parameters, as scikit-learn's grids name them: ``method__smoothing``.

NAMED: list[Any] = ["auto", "dpzv", {"name": "dpzv", "smoothing": 0.1}, Dpzv(smoothing=0.1), {}]


def smoothing_of(model: Any) -> float:
    return model._config.method.smoothing


def test_a_grid_over_an_option_of_the_method() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4))
    y = (x[:, 0] + x[:, 3] > 0).astype(int)
    for method in NAMED:
        given = vz.VerticalClassifier(method=method, epochs=1, random_state=0)
        grid = {"method__smoothing": [1e-3, 1e-2]}
        search = model_selection.GridSearchCV(given, grid, cv=2).fit(x, y)
        tried = [each["method__smoothing"] for each in search.cv_results_["params"]]
        assert tried == [1e-3, 1e-2]
        best = search.best_estimator_
        assert smoothing_of(best) == search.best_params_["method__smoothing"]
        assert given.method is method
        for value in (1e-3, 1e-2):
            model = sklearn_base.clone(given).set_params(method__smoothing=value).fit(x, y)
            assert smoothing_of(model) == smoothing_of(sklearn_base.clone(model).fit(x, y)) == value
            assert model.method["smoothing"] == value


def test_what_was_given_comes_back_and_none_takes_it_away() -> None:
    for method, smoothing in zip(NAMED[1:], (None, 0.1, 0.1, None), strict=True):
        model = vz.VerticalClassifier(method=method, privacy={"clip": 2.0})
        given = model.get_params()
        assert given["method__smoothing"] == smoothing
        assert (given["privacy__clip"], given["privacy__epsilon"]) == (2.0, None)
        assert not any("__" in name for name in model.get_params(deep=False))
        assert model.set_params(**given).get_params() == given
        assert model.method is method
        model.set_params(method__smoothing=None)
        assert model.get_params()["method__smoothing"] is None
    model = vz.VerticalRegressor(privacy=vz.Privacy(1.0))
    model.set_params(method="vafl", privacy__epsilon=2.0)
    assert (model.method, model.privacy) == ("vafl", vz.Privacy(2.0))
    assert "method__smoothing" not in model.get_params()
    model.set_params(method__name="dpzv", method__smoothing=0.2)
    assert model.method == {"name": "dpzv", "smoothing": 0.2}
    chosen = vz.VerticalClassifier()
    assert chosen.set_params(**chosen.get_params()).method == "auto"
    assert chosen.set_params(method__name="vafl").method == {"name": "vafl"}
    model = vz.VerticalClassifier().set_params(privacy__epsilon=3.0)
    assert model.privacy == {"epsilon": 3.0}


def test_names_that_there_are_not() -> None:
    model = vz.VerticalClassifier()
    for wrong, words in (
        ({"method__smothing": 1}, ["Invalid parameter 'method__smothing'", "did you mean"]),
        ({"method__smothing": 1}, ["Valid parameters are: ['method__name', ", "method__smoothing"]),
        ({"method": "vafl", "method__smoothing": 1}, ["'method__smoothing'"]),
        ({"method__name": "dpvz"}, ["method.name is 'dpvz'", "did you mean 'dpzv'"]),
        ({"privacy__epsilom": 1}, ["'privacy__epsilom'", "'privacy__epsilon'"]),
        ({"epochz": 1}, ["Invalid parameter 'epochz'", "Valid parameters are"]),
    ):
        with pytest.raises(ValueError, match=r"(?s).+") as caught:
            vz.VerticalClassifier().set_params(**wrong)
        says(str(caught.value), *words)
    assert vz.VerticalClassifier(method=3).get_params()["method"] == 3
    with pytest.raises(ValueError, match="epsilon is 0"):
        vz.VerticalClassifier(privacy=vz.Privacy(1.0)).set_params(privacy__epsilon=0)
    assert model.method == "auto"
