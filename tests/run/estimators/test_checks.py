"""scikit-learn's own checks of an estimator, every one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from vertizo import VerticalClassifier, VerticalRegressor

Check = Callable[[Any], None]


@parametrize_with_checks(
    [
        VerticalClassifier(method="vafl", epochs=5),
        VerticalRegressor(method="vafl", epochs=20, server_learning_rate=0.03),
    ]
)
def test_first_order(estimator: Any, check: Check) -> None:
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([VerticalClassifier(), VerticalRegressor()])
def test_as_they_come(estimator: Any, check: Check) -> None:
    check(estimator)
