"""scikit-learn's own checks of an estimator, every one of them."""

from __future__ import annotations

from typing import Any
from unittest import SkipTest

import pytest
from tests.lazy import Lazy
from tests.rows import each

import vertizo as vz

checks = Lazy("sklearn.utils.estimator_checks")

NOT_REPEATED = {
    "check_sample_weight_equivalence_on_dense_data": "a repeated record is in batches of its own, "
    "and may validate; a record of weight 0 is in a batch as well"
}
"""What batches drawn at random do not have; scikit-learn says so of its own SGD."""


def run_checks(estimator: Any) -> None:
    failed = []
    for instance, check in checks.estimator_checks_generator(
        estimator, expected_failed_checks=NOT_REPEATED, mark="skip"
    ):
        try:
            check(instance)
        except SkipTest:  # for want of an environment variable or a package
            continue
        except Exception as error:
            failed.append(f"{check}: {error!r}")
    assert not failed, "\n".join(failed)


@pytest.mark.full
@each(
    "estimator",
    lambda: [
        vz.VerticalClassifier(method="vafl", epochs=5),
        vz.VerticalRegressor(method="vafl", epochs=20, server_learning_rate=0.03),
    ],
)
def test_first_order(estimator: Any) -> None:
    run_checks(estimator)


@pytest.mark.long
@pytest.mark.full
@each(
    "estimator", lambda: [vz.VerticalClassifier(method="dpzv"), vz.VerticalRegressor(method="dpzv")]
)
def test_as_they_come(estimator: Any) -> None:
    run_checks(estimator)
