"""Parameters of parameters, as scikit-learn's grids name them: ``method__smoothing``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.words import says

import vertizo as vz
from vertizo.methods.dpzv import Dpzv

NAMED: list[Any] = ["auto", "dpzv", {"name": "dpzv", "smoothing": 0.1}, Dpzv(smoothing=0.1), {}]


def smoothing_of(model: Any) -> float:
    return model._config.method.smoothing


def test_a_grid_over_an_option_of_the_method() -> None:
    from sklearn.base import clone
    from sklearn.model_selection import GridSearchCV

    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4))
    y = (x[:, 0] + x[:, 3] > 0).astype(int)
    for method in NAMED:
        given = vz.VerticalClassifier(method=method, epochs=1, random_state=0)
        search = GridSearchCV(given, {"method__smoothing": [1e-3, 1e-2]}, cv=2).fit(x, y)
        tried = [each["method__smoothing"] for each in search.cv_results_["params"]]
        assert tried == [1e-3, 1e-2]
        best = search.best_estimator_
        assert smoothing_of(best) == search.best_params_["method__smoothing"]
        assert given.method is method
        for value in (1e-3, 1e-2):
            model = clone(given).set_params(method__smoothing=value).fit(x, y)
            assert smoothing_of(model) == smoothing_of(clone(model).fit(x, y)) == value
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
