"""Estimators as people use them: frames, parties, pipelines, searches, privacy."""

from __future__ import annotations

import pickle
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from tests.lazy import Lazy
from tests.refusals import one_line
from tests.rows import each
from tests.run.estimators.people import PARTIES, TINY, classifier, people

import vertizo as vz
from vertizo.core.errors import ConfigError, DataError, Interrupted, RunError
from vertizo.core.randomness import Stream
from vertizo.privacy.noise.mechanisms import SeededNoise
from vertizo.run.build import privacy as build_privacy
from vertizo.run.experiment import Experiment

sklearn_base = Lazy("sklearn.base")
model_selection = Lazy("sklearn.model_selection")
sklearn_pipeline = Lazy("sklearn.pipeline")
preprocessing = Lazy("sklearn.preprocessing")
pd = Lazy("pandas")

FRAME = people()
X, Y = FRAME.drop("y", "amount"), FRAME["y"]
NUMBERS = X.select("age", "debt").to_numpy()


def regressor(**changed: Any) -> vz.VerticalRegressor:
    return vz.VerticalRegressor(**{"parties": PARTIES, **TINY, **changed})


def as_pandas(frame: pl.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(frame.to_dict(as_series=False))


@pytest.fixture(scope="module")
def plain() -> vz.VerticalClassifier:
    """Fitted as it comes."""
    return classifier().fit(X, Y)


class TestFit:
    def test_it_learns_and_says_what_is_guaranteed(self) -> None:
        fitted = classifier(epochs=30).fit(X, Y)
        new = people(300, seed=1)
        assert fitted.score(new.drop("y", "amount"), new["y"]) > 0.75
        assert list(fitted.classes_) == ["late", "paid"]
        assert fitted.n_features_in_ == 4
        assert list(fitted.feature_names_in_) == ["age", "job", "city", "debt"]
        assert fitted.privacy_ == fitted.result_.summary["privacy"]["words"]
        assert fitted.privacy_.startswith("No privacy guarantee")
        assert fitted.result_.summary["parties"] == ["bank", "shop"]
        assert fitted.result_.summary["clients"] == 2
        assert "test_accuracy" not in fitted.result_.summary
        assert fitted.result_.summary["best"]["validation_accuracy"] > 0.5

    def test_a_regression_in_the_labels_own_units(self) -> None:
        fitted = regressor(epochs=30).fit(X, FRAME["amount"])
        new = people(300, seed=1)
        assert fitted.score(new.drop("y", "amount"), new["amount"]) > 0.3
        assert 90 < fitted.predict(X).mean() < 115

    def test_the_label_holder_brings_columns_and_sends_nothing(self) -> None:
        fitted = classifier(label_holder="bank").fit(X, Y)
        assert fitted.result_.summary["parties"] == ["shop"]
        assert fitted.predict_proba(X).shape == (120, 2)
        assert np.array_equal(fitted.predict_log_proba(X), np.log(fitted.predict_proba(X)))

    def test_frames_of_all_kinds_give_the_same_numbers(self, plain: vz.VerticalClassifier) -> None:
        """Of pandas and Polars; columns by position; and with a column that nobody holds."""
        wanted = plain.predict_proba(X)
        dates = X.with_columns(when=pl.lit("2024-01-01").str.to_date())
        by_place = classifier(parties={"bank": np.array([0, 1]), "shop": (2, 3)})
        assert np.array_equal(wanted, plain.predict_proba(as_pandas(X)))
        assert np.array_equal(wanted, by_place.fit(X, Y).predict_proba(X))
        of_pandas = classifier().fit(as_pandas(X), as_pandas(FRAME)["y"])
        assert np.array_equal(wanted, of_pandas.predict_proba(as_pandas(X)))
        with_dates = classifier().fit(dates, Y)
        for frame in (dates, as_pandas(dates)):
            assert np.array_equal(wanted, with_dates.predict_proba(frame))

    def test_strangers_and_empty_columns_are_warned_of(self, plain: vz.VerticalClassifier) -> None:
        new = X[:40].with_columns(city=pl.lit("Paris"), age=pl.lit(None, pl.Float64))
        words = "X: (40 of 40 values of 'city'|column 'age' is empty)"
        with pytest.warns(UserWarning, match=words) as heard:
            plain.predict_proba(new)
        assert len(heard) == 2

    def test_arrays_are_cut_in_two_and_may_miss_values(self) -> None:
        assert np.isnan(NUMBERS).any()
        fitted = vz.VerticalClassifier(**TINY).fit(NUMBERS, Y.to_numpy())
        assert fitted.result_.summary["parties"] == ["party0", "party1"]
        assert fitted.predict(NUMBERS).shape == (120,)

    @each("labels", [[0, 1], [True, False], [10, 9], [1.0, 2.0], ["10", "9"]], gate=[["10", "9"]])
    def test_classes_come_back_as_they_were(self, labels: list[Any]) -> None:
        y = np.where(Y.to_numpy() == "late", labels[0], labels[1])
        fitted = classifier(epochs=20).fit(X, y)
        assert fitted.classes_.dtype == y.dtype
        assert list(fitted.classes_) == sorted(set(y.tolist()))
        assert fitted.predict(X).dtype == y.dtype
        assert fitted.score(X, y) > 0.75
        sure = fitted.predict_proba(X)[:, list(fitted.classes_).index(labels[0])] > 0.9
        assert (y[sure] == labels[0]).mean() > 0.75

    def test_categories_of_numbers(self) -> None:
        codes = pl.DataFrame({"a": [1, 2, 3, 4] * 30, "b": np.linspace(0, 1, 120)})
        kinds = codes.with_columns(pl.col("a").cast(pl.String).cast(pl.Categorical))
        named = vz.VerticalClassifier({"p": ["a"], "q": ["b"]}, **TINY, categorical=["a"])
        typed = vz.VerticalClassifier({"p": ["a"], "q": ["b"]}, **TINY)
        wanted = named.fit(codes, Y).predict_proba(codes)
        assert np.array_equal(wanted, typed.fit(kinds, Y).predict_proba(kinds))
        frame = as_pandas(codes).astype({"a": "category"})
        assert np.array_equal(wanted, typed.fit(frame, Y).predict_proba(frame))
        assert not np.array_equal(wanted, typed.fit(codes, Y).predict_proba(codes))

    def test_the_seed_decides_everything(self) -> None:
        one, same, other = (
            classifier(random_state=s).fit(X, Y).predict_proba(X) for s in (1, 1, 2)
        )
        assert np.array_equal(one, same)
        assert not np.array_equal(one, other)
        state = np.random.RandomState(0)
        first, second = (
            classifier(random_state=state).fit(X, Y).result_.summary["seed"] for _ in range(2)
        )
        assert first != second

    def test_no_configuration_is_out_of_reach(self) -> None:
        config = {"simulation": {"timing": "synchronous"}, "method": {"name": "split"}}
        fitted = classifier(method="split", config=config).fit(X, Y)
        assert fitted.result_.summary["timing"] == "synchronous"
        assert fitted.result_.summary["method"] == "split"

    def test_without_validation_the_last_model_predicts(self) -> None:
        fitted = classifier(validation=0.0).fit(X, Y)
        assert fitted.result_.summary["model"] == "last"
        assert fitted.result_.summary["records"] == 120
        assert fitted.predict(X).shape == (120,)


class TestWithScikitLearn:
    def test_a_pipeline(self) -> None:
        model = sklearn_pipeline.make_pipeline(
            preprocessing.StandardScaler(), vz.VerticalClassifier(**TINY)
        ).fit(NUMBERS, Y)
        assert model.predict(NUMBERS).shape == (120,)

    @pytest.mark.full
    def test_a_search_over_parameters_and_privacy(self) -> None:
        grid = {"epochs": [1, 12], "config": [None, {"client": {"optimizer": {"momentum": 0.5}}}]}
        search = model_selection.GridSearchCV(classifier(), grid, cv=2, error_score="raise")
        search.fit(as_pandas(X), Y)
        assert search.best_params_["epochs"] == 12
        assert search.best_estimator_.result_.summary["epochs"] == 12

    @pytest.mark.full
    def test_cross_validation_by_a_score_of_probabilities(self) -> None:
        found = model_selection.cross_val_score(
            classifier(epochs=20), as_pandas(X), Y, cv=3, scoring="roc_auc"
        )
        assert found.shape == (3,)
        assert found.mean() > 0.7

    def test_a_clone_is_not_fitted_and_equal(self) -> None:
        original = classifier(privacy=vz.Privacy(epsilon=1.0), config={"threads": 1})
        copy = sklearn_base.clone(original.set_params(epochs=1))
        assert copy.get_params() == original.get_params()
        assert not hasattr(copy, "result_")

    @pytest.mark.full
    def test_a_pickle_predicts_and_holds_no_training_record(
        self, plain: vz.VerticalClassifier
    ) -> None:
        state = pickle.dumps(plain)
        assert np.array_equal(pickle.loads(state).predict_proba(X), plain.predict_proba(X))
        assert plain.result_.federation is None
        many = people(4000)
        big = classifier(epochs=1).fit(many.drop("y", "amount"), many["y"])
        assert len(pickle.dumps(big)) < len(state) + 4000

    def test_ctrl_c_ends_a_whole_search(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def stop(*_: Any, **__: Any) -> None:
            raise Interrupted("stopped in round 3")

        monkeypatch.setattr(Experiment, "run", stop)
        search = model_selection.GridSearchCV(classifier(), {"epochs": [1, 2]}, cv=2)
        with pytest.raises(KeyboardInterrupt, match="round 3"):
            search.fit(as_pandas(X), Y)


def test_notes_on_the_data_are_warnings_where_somebody_fits() -> None:
    with pytest.warns(UserWarning, match="no training record is of class 'never'") as told:
        classifier(classes=["late", "paid", "never"]).fit(X, Y)
    assert {one.filename for one in told} == {__file__}


class TestPrivacy:
    @pytest.mark.full
    def test_a_budget_alone_is_enough(self) -> None:
        asked = {"classes": ["late", "paid"], "privacy": vz.Privacy(epsilon=1.0, delta=1e-5)}
        model = classifier(method="dpzv", epochs=None, batch_size=None, **asked)
        said = model.fit(X, Y).result_.summary["privacy"]
        assert said["guarantee"] == "simulated"
        assert 0.9 < said["epsilon"] <= 1.0
        assert said["delta"] == 1e-5

    def test_folds_of_one_random_state_share_noise_and_the_statement_says_so(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        keys: list[bytes] = []

        class Recorded(SeededNoise):
            def __init__(self, stream: Stream, **options: float) -> None:
                keys.append(stream.key)
                super().__init__(stream, **options)

        monkeypatch.setattr(build_privacy, "SeededNoise", Recorded)
        asked = {"privacy": {"epsilon": 1.0}, "classes": ["late", "paid"], "method": "dpzv"}
        model, noises = classifier(**asked), []
        for fold in (slice(0, 60), slice(60, 120)):
            keys.clear()
            model.fit(X[fold], Y[fold])
            noises.append(set(keys))
        assert noises[0] == noises[1] != set()
        assert "have the same noise" in model.privacy_
        keys.clear()
        model.set_params(random_state=1).fit(X[60:], Y[60:])
        assert not noises[0] & set(keys)
        unseeded = classifier(**asked, random_state=None).fit(X[:60], Y[:60])
        assert "the same noise" not in unseeded.privacy_

    @pytest.mark.filterwarnings("ignore:frame. no training record is of class:UserWarning")
    def test_neighbours_have_models_of_one_shape_or_none(self) -> None:
        """One record's label may not decide how many outputs there are."""
        whole, neighbour = Y.to_numpy(), Y.to_numpy().copy()
        neighbour[7] = "never"
        for y in (whole, neighbour):
            for model in (
                classifier(privacy=vz.Privacy(epsilon=1.0)),
                classifier(privacy={"epsilon": 1.0, "accounting": "published"}),
                classifier(config={"privacy": {"epsilon": 1.0}}),
            ):
                with pytest.raises(ValueError, match=r"^classes is None, .*classes=\[") as refused:
                    model.fit(X, y)
                assert len(str(refused.value).splitlines()) == 1
        public = classifier(privacy=vz.Privacy(epsilon=1.0), classes=["paid", "late", "never"])
        for y in (whole, neighbour):
            assert list(public.fit(X, y).classes_) == ["late", "never", "paid"]
            assert public.predict_proba(X).shape == (120, 3)

    def test_classes_of_y_in_the_configuration_are_the_parameters(self) -> None:
        further = {"data": {"classes": ["late", "paid", "never"]}}
        with pytest.raises(ValueError, match=r"has data[.]classes; give the parameter"):
            classifier(config=further).fit(X, Y)

    def test_noise_is_secret_where_no_seed_was_asked_for(self) -> None:
        for noise, seed, guarantee, begins in (
            (None, None, "exact", "ε = "),
            (None, 1, "simulated", "Simulated: ε = "),
            ("secure", 1, "exact", "ε = "),
        ):
            asked = vz.Privacy(epsilon=1.0, noise=noise)
            fitted = classifier(classes=["paid", "late"], privacy=asked, random_state=seed)
            said = fitted.fit(X, Y).result_.summary["privacy"]
            assert said["guarantee"] == guarantee
            assert ("operating" in said["noise_source"]) == (guarantee == "exact")
            assert fitted.privacy_.startswith(begins)

    @pytest.mark.full
    def test_a_regression_needs_public_bounds(self) -> None:
        model = regressor(privacy=vz.Privacy(epsilon=1.0))
        with pytest.raises(ValueError, match="label_range"):
            model.fit(X, FRAME["amount"])
        fitted = model.set_params(label_range=(0.0, 200.0)).fit(X, FRAME["amount"])
        assert fitted.result_.summary["privacy"]["guarantee"] == "simulated"

    def test_without_one_the_classes_are_read_off_y_and_nothing_is_promised(self) -> None:
        fitted = classifier(method="dpzv", config={"privacy": {"noise_std": 9.0, "clip": 1.0}})
        assert fitted.fit(X, Y).result_.summary["privacy"]["guarantee"] == "none"

    @each(
        "wrong",
        [
            {"epsilon": 0},
            {"epsilon": float("inf")},
            {"epsilon": "1"},
            {"epsilon": True},
            {"epsilon": 1.0, "delta": 1.0},
            {"epsilon": 1.0, "clip": -1},
            {"epsilon": 1.0, "noise": "sure"},
        ],
    )
    def test_a_wrong_budget_is_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match=next(reversed(wrong))):
            vz.Privacy(**wrong)


def refused(kind: type[Exception], words: list[str], call: Any, *arguments: Any) -> None:
    with one_line(kind, *words) as caught:
        call(*arguments)
    assert isinstance(caught.value, ValueError)


class TestOneLineSaysWhatIsWrong:
    @each(
        "changed, words",
        [
            ({"parties": {"bank": ["agee"]}}, ["'bank'", "'agee'", "X", "did you mean 'age'"]),
            ({"parties": {"bank": [9]}}, ["'bank'", "position 9", "0 to 3"]),
            ({"parties": {"bank": [True]}}, ["'bank'", "True"]),
            ({"parties": {"bank": "age"}}, ["'bank'", "list of columns"]),
            ({"parties": {"bank": []}}, ["'bank'", "no columns"]),
            ({"parties": {"bank": ["age"], "shop": ["age"]}}, ["'age'", "both 'bank' and 'shop'"]),
            ({"parties": {"bank": ["age", 0]}}, ["'age'", "'bank' twice"]),
            ({"parties": ["age"]}, ["parties is ['age']", "map each party"]),
            ({"parties": {0: ["age"]}}, ["party 0", "text"]),
            ({"label_holder": "bnak"}, ["label_holder", "'bnak'", "did you mean 'bank'"]),
            ({"parties": {"bank": ["age"]}, "label_holder": "bank"}, ["leaves no client"]),
            ({"categorical": ["jobs"]}, ["categorical", "'jobs'", "did you mean 'job'"]),
            ({"method": "vafi"}, ["method", "'vafi'"]),
            ({"method": 3}, ["method is 3", "name"]),
            ({"epochs": 0}, ["epochs is 0"]),
            ({"batch_size": 500}, ["batch_size is 500", "108 training records"]),
            ({"config": {"epochs": 4}}, ["config has epochs", "parameter epochs"]),
            ({"config": {"data": {"name": "digits"}}}, ["config has data.name"]),
            ({"config": {"data": {"path": "x.csv"}}}, ["data.path", "given in Python"]),
            ({"config": {"client": 3}}, ["client is 3"]),
            ({"config": {"momentum": 3}}, ["unknown key 'momentum'"]),
            ({"config": "x.yaml"}, ["config is 'x.yaml'", "map keys"]),
            ({"final_head": "tree"}, ["server.final_head is 'tree'", "'boosting'"]),
            ({"head": "rwa"}, ["head is 'rwa'", "'private' or 'raw'"]),
            ({"head": "raw"}, ["head is 'raw'", "give final_head"]),
            ({"privacy": 1.0}, ["privacy is 1.0", "vertizo.Privacy"]),
            ({"random_state": -1}, ["seed is -1"]),
            ({"classes": ["late", "never"]}, ["classes", "'paid'"]),
        ],
    )
    def test_of_parameters(self, changed: dict[str, Any], words: list[str]) -> None:
        refused(ConfigError, words, classifier(**changed).fit, X, Y)

    @each(
        "x, y, words",
        lambda: [
            (X.lazy(), Y, ["LazyFrame", "X.collect()"]),
            (X.clear(), [], ["no rows"]),
            (X, ["late"] * 120, ["one class", "'late'"]),
            (X, [None, *Y[1:]], ["y is missing in 1 of 120"]),
            (X, np.array([1, *Y[1:]], dtype=object), ["y has 'late' and 1", "y.astype(str)"]),
            (X.with_columns(age=pl.lit(1e300)), Y, ["'age'", "too large"]),
            (X.with_columns(age=pl.lit("31.01.2024")), Y, ["'age'", "write dates as 2020-01-31"]),
            (as_pandas(X).iloc[:, [0, 1, 2, 3, 0]], Y, ["two columns named 'age'"]),
            (as_pandas(X).assign(age=[{"a": 1}] * 120), Y, ["'age'", "dict"]),
        ],
    )
    def test_of_records(self, x: Any, y: Any, words: list[str]) -> None:
        refused(DataError, words, classifier().fit, x, y)

    @each(
        "nothing",
        lambda: [None, float("nan"), np.float64("nan"), pd.NA, pd.NaT, Decimal("nan")],
    )
    def test_of_missing_labels(self, nothing: Any) -> None:
        """No advice makes a class of them."""
        for there in ("late", 1, True, 2.5):
            y = [there] * 119 + [nothing]
            kinds = [np.array(y, object), pd.Series(y, dtype=object)]
            if nothing is None and there == "late":
                kinds.append(pd.Series(y, dtype="category"))
            for given in kinds:
                with pytest.raises(DataError, match="y is missing in 1 of 120 records; leave"):
                    classifier().fit(X, given)
        several = np.array([[0, 1]] * 119 + [[nothing, 1]], object)
        with pytest.raises(DataError, match="y is missing in 1 of 120 records; leave"):
            classifier().fit(X, several)

    def test_of_new_records(self, plain: vz.VerticalClassifier) -> None:
        """Of which unseen and missing values are no mistake."""
        with pytest.raises(ValueError, match="feature names should match"):
            plain.predict(X.rename({"age": "years"}))
        with pytest.raises(DataError, match="'age' holds 'old' in row 1"):
            plain.predict(X.with_columns(age=pl.lit("old")))
        odd = X.with_columns(city=pl.lit("Lima"), age=pl.lit(None, pl.Float64))
        with pytest.warns(UserWarning, match="'city'|'age'"):
            assert np.isfinite(plain.predict_proba(odd)).all()

    def test_a_folder_is_used_once(self, tmp_path: Any) -> None:
        model = classifier(out=tmp_path / "run").fit(X, Y)
        with pytest.raises(RunError, match="holds a run already"):
            model.fit(X, Y)
        assert torch.get_num_threads() == 1
