"""The same people in a table that was exported anew get no second budget without a word.

And other people of the same kind get theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.rows import each

from vertizo.config import schema
from vertizo.core.errors import RunError
from vertizo.privacy.ledger.durable import DurableLedger
from vertizo.privacy.ledger.register import Register
from vertizo.run.build.record_identity import names_of
from vertizo.run.loop import ledger_session

ROWS = 300
Change = Callable[[pl.DataFrame], pl.DataFrame]


def people(seed: int = 1) -> pl.DataFrame:
    chance = np.random.default_rng(seed)
    whole = {
        "key": [f"{place:05d}" for place in chance.permutation(10**5)[:ROWS]],
        "age": chance.integers(18, 90, ROWS),
        "pay": np.exp(8 + chance.normal(size=ROWS)).round(2),
        "debt": chance.normal(size=ROWS) * 1e4,
        "town": chance.choice(["Łódź", "Bern", "Ulm"], ROWS),
        "rate": chance.random(ROWS).round(5),
        **{f"late{month}": chance.integers(0, 2, ROWS) for month in range(4)},
    }
    return pl.DataFrame(whole | {"bought": chance.choice(["no", "yes"], ROWS)})


def prefixed(frame: pl.DataFrame, prefix: str) -> pl.DataFrame:
    return frame.with_columns(key=pl.lit(prefix) + pl.col("key"))


def numbers(change: Callable[[pl.Expr], pl.Expr]) -> Change:
    return lambda frame: frame.with_columns(change(pl.col("pay", "debt", "rate")))


SAME: dict[str, Change] = {
    "prefixed identifiers": lambda f: prefixed(f, "P-"),
    "other identifiers": lambda f: f.with_columns(key=pl.Series(range(1000, 1000 + ROWS))),
    "renamed columns": lambda f: f.rename({"age": "years", "pay": "income"}),
    "columns in another order": lambda f: f.select(sorted(f.columns, reverse=True)),
    "names exchanged": lambda f: f.rename({"pay": "debt", "debt": "pay"}),
    "one more column": lambda f: f.with_columns(score=pl.Series(np.arange(ROWS) % 97)),
    "a constant column more": lambda f: f.with_columns(source=pl.lit("export")),
    "one column fewer": lambda f: f.drop("age"),
    "a trace added": numbers(lambda x: x + 1e-12),
    "two decimals": numbers(lambda x: x.round(2)),
    "as text with zeros": lambda f: f.with_columns(pl.col("age").cast(pl.String) + ".0"),
    "cities in capitals": lambda f: f.with_columns(pl.col("town").str.to_uppercase()),
    "labels exchanged": lambda f: f.with_columns(
        bought=pl.when(pl.col("bought") == "no").then(pl.lit("yes")).otherwise(pl.lit("no"))
    ),
    "in another order": lambda f: f.sample(fraction=1.0, shuffle=True, seed=3),
    "half of them": lambda f: f[: ROWS // 2],
    "with as many others": lambda f: pl.concat([f, prefixed(people(9), "Z")]),
    "all of it": lambda f: (
        f.with_columns(key=pl.Series(range(ROWS)), score=pl.Series(np.arange(ROWS) % 97))
        .rename({"age": "a", "pay": "b", "debt": "c", "rate": "d"})
        .with_columns(pl.col("b", "c") + 1e-9)
        .sample(fraction=1.0, shuffle=True, seed=4)
    ),
}


def config(path: Path, frame: pl.DataFrame) -> schema.ExperimentConfig:
    frame.write_csv(path)
    options = {"name": "table", "path": str(path), "label": "bought", "id": "key", "parties": 2}
    privacy = {"mechanism": "gaussian", "epsilon": 1.0, "delta": 1e-3}
    tree = {"data": {**options, "classes": ["no", "yes"]}, "privacy": privacy, "epochs": 1}
    return schema.parse({**tree, "seed": 0, "server": {"update": "none"}})


def make_ledger(path: Path, frame: pl.DataFrame, *, further: bool = False) -> Path:
    """As ``vertizo privacy ledger create`` does."""
    chosen = config(path, frame)
    data, place = ledger_session.charged_data(chosen), path.with_suffix(".ledger")
    budget = ledger_session.budget_for(chosen, data, 1)
    DurableLedger.create(place, budget, names=names_of(data), further=further)
    return place


@each("name", SAME)
def test_the_same_people_are_recognised(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    make_ledger(tmp_path / "first.csv", people())
    again = SAME[name](people())
    with pytest.raises(RunError, match=r"are charged to the ledger .*first\.ledger") as error:
        make_ledger(tmp_path / "again.csv", again)
    assert "--further" in str(error.value)


OTHERS: dict[str, Change] = {
    "others of the same kind": lambda f: prefixed(people(2), "B"),
    "a hundred others": lambda f: prefixed(people(3)[:100], "C"),
    "others, and a few of them": lambda f: pl.concat(
        [prefixed(people(4), "D"), prefixed(f[:3], "E").with_columns(pl.col("pay") + 0.01)]
    ),
}
"""What has few people in common is not noticed, as docs/privacy.md says."""


@each("name", OTHERS)
def test_other_people_get_their_own(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    make_ledger(tmp_path / "first.csv", prefixed(people(), "A"))
    make_ledger(tmp_path / "others.csv", OTHERS[name](people()))


def test_what_is_alike_adds_up_wherever_it_is_said(tmp_path: Path) -> None:
    first = make_ledger(tmp_path / "first.csv", people())
    beside = make_ledger(tmp_path / "again.csv", SAME["all of it"](people()), further=True)
    for path, other in ((first, beside), (beside, first)):
        assert str(other) in " ".join(ledger_session.charged_beside(path))


def test_a_ledger_of_an_earlier_version_learns_what_its_records_are_like(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its next use: such a version kept digests of keys and of whole rows alone."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    ledger, register = make_ledger(tmp_path / "first.csv", people()), Register()
    (known,) = register._all()
    (kept,) = tmp_path.rglob("*.likes")
    kept.unlink()
    chosen = config(tmp_path / "first.csv", people())
    data = ledger_session.charged_data(chosen)
    budget = ledger_session.budget_for(chosen, data, 1)
    register.claim(known.identity, ledger, budget, names_of(data))
    with pytest.raises(RunError, match=r"nearly the values of records that are charged"):
        make_ledger(tmp_path / "again.csv", SAME["all of it"](people()))
