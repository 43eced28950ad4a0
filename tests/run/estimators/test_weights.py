"""``sample_weight``, ``class_weight``, ``ledger`` and ``n_jobs``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.refusals import one_line
from tests.rows import each
from tests.run.estimators.people import TINY, classifier, people

import vertizo as vz
from vertizo.core.errors import RunError
from vertizo.privacy.ledger.durable import DurableLedger

PEOPLE = people()
X, Y = PEOPLE.drop("y", "amount"), PEOPLE["y"].to_numpy()
CLASSES = ["late", "paid"]
PRIVATE: dict[str, Any] = {"method": "dpzv", "classes": CLASSES, "privacy": vz.Privacy(1.0)}


@pytest.mark.full
def test_weights_move_predictions_towards_what_weighs_more() -> None:
    plain = classifier().fit(X, Y).predict_proba(X)
    ones = classifier().fit(X, Y, np.ones(120)).predict_proba(X)
    assert np.allclose(plain, ones, atol=1e-6)
    named = classifier(class_weight={"late": 10.0}).fit(X, Y).predict_proba(X)
    by_record = classifier().fit(X, Y, np.where(Y == "late", 10.0, 1.0)).predict_proba(X)
    assert np.allclose(named, by_record, atol=1e-5)
    assert (named[:, 0] > plain[:, 0]).mean() > 0.9
    balanced = classifier(class_weight="balanced").fit(X, Y).predict_proba(X)
    assert not np.array_equal(balanced, plain)
    number = vz.VerticalRegressor({"a": ["age"], "b": ["debt"]}, **TINY)
    amounts, halves = PEOPLE["amount"].to_numpy(), np.where(np.arange(120) < 60, 5.0, 0.0)
    even, uneven = (number.fit(X, amounts, each).predict(X) for each in (None, halves))
    assert not np.array_equal(even, uneven)


def test_weights_stay_beneath_the_clip_of_a_guarantee() -> None:
    weights = np.where(Y == "late", 1e6, 0.0)
    fitted = classifier(**PRIVATE).fit(X, Y, weights)
    assert fitted.result_.summary["privacy"]["epsilon"] == pytest.approx(1.0, rel=1e-3)
    assert np.isfinite(fitted.predict_proba(X)).all()
    shares = {"data": {"class_shares": {"late": 0.4, "paid": 0.6}}}
    classifier(**PRIVATE, class_weight="balanced", config=shares).fit(X, Y)


@each(
    "changes, weights, words",
    [
        ({}, np.full(120, -1.0), "sample_weight is -1 for record 0; it must"),
        ({}, np.zeros(120), "is 0 for every record|at least one non-zero"),
        ({"class_weight": {"never": 1.0}}, None, "class_weight has 'never', which is no class"),
        ({"class_weight": 3}, None, "class_weight is 3; use 'balanced'"),
        ({"class_weight": "fair"}, None, "class_weights is 'fair'; it must be 'balanced'"),
        ({**PRIVATE, "class_weight": "balanced"}, None, "data.class_shares"),
        ({"n_jobs": 0}, None, "n_jobs is 0; use a number of threads, or -1"),
        ({"n_jobs": 2, "config": {"threads": 3}}, None, "config has threads"),
        ({**PRIVATE, "ledger_fits": 0}, None, "ledger_fits is 0; it must be a whole number"),
        ({"ledger": "x"}, None, "privacy.ledger"),
        ({**PRIVATE, "classes": None}, None, "classes is None, but privacy needs"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], weights: Any, words: str) -> None:
    with one_line(ValueError, match=words):
        classifier(**changes).fit(X, Y, weights)


@pytest.mark.full
def test_jobs_are_threads() -> None:
    fitted = [classifier(n_jobs=jobs).fit(X, Y) for jobs in (None, 2, -1)]
    assert [one._config.threads for one in fitted][:2] == [1, 2]
    assert fitted[2]._config.threads >= 1


@pytest.mark.full
def test_fits_are_charged_to_one_ledger_until_it_is_spent(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    model = classifier(**PRIVATE, ledger=path, ledger_fits=2)
    for _ in range(2):
        words = model.fit(X, Y).privacy_
        assert "ledger" in words
    assert DurableLedger.inspect(path).budget.epsilon > 1.3
    with pytest.raises(RunError, match=r"is not covered|it was not begun"):
        model.fit(X, Y)
    another = classifier(**PRIVATE, ledger=tmp_path / "another")  # the same records
    for weights in (None, np.ones(len(X))):
        with pytest.raises(RunError, match="ledger"):
            another.fit(X, Y, sample_weight=weights)
    with pytest.raises(RunError, match="ledger"):  # whatever columns are used
        another.set_params(parties={"a": ["age"], "b": ["debt"]}).fit(X, Y)


@pytest.mark.full
def test_a_person_is_named_by_a_column_that_nobody_holds() -> None:
    rows = X.with_columns(pl.Series("customer", [f"c{row // 3}" for row in range(120)]))
    told = classifier(**PRIVATE, config={"data": {"person": "customer"}}).fit(rows, Y)
    privacy = told.result_.summary["privacy"]
    assert privacy["records_per_person"] in (2, 3)
    assert privacy["epsilon_per_person"] > 2
    copies = pl.concat([X, *[X[:1]] * 20])
    labels = np.concatenate([Y, Y[:1].repeat(20)])
    copied = classifier(**PRIVATE, validation=0.0).fit(copies, labels)
    assert copied.result_.summary["privacy"]["records_per_person"] == 21
    assert "they have the same features" in copied.privacy_
