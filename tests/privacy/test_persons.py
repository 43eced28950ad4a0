"""What holds for a person of several records: by quadrature, by the run's words, and refusals."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.lazy import Lazy
from tests.rows import each

from vertizo.config import schema
from vertizo.core.errors import ConfigError, DataError
from vertizo.core.randomness import Stream
from vertizo.data.alignment import remarks
from vertizo.data.options import DataConfig
from vertizo.data.prepare import prepare
from vertizo.lab import dossier
from vertizo.lab.commands.privacy import plan
from vertizo.lab.report import statements
from vertizo.privacy.accounting import guarantee
from vertizo.privacy.accounting.events import GaussianRelease, Releases, SecretSteps
from vertizo.privacy.accounting.gaussian import epsilon_of, mu_of
from vertizo.privacy.accounting.persons import Persons, epsilon_of_releases, of_person
from vertizo.privacy.statement import Statement
from vertizo.run.experiment import Experiment
from vertizo.run.results import summary_figures
from vertizo.run.trained.explanation import explain

stats = Lazy("scipy.stats")

DELTA = 1e-5
ROOT = Stream.from_seed(0)


def test_gaussian_releases_come_to_k_times_mu_wherever_the_records_are() -> None:
    """All in one batch attains it; over batches of their own, squares add up to less."""
    once = Releases(2, 3, GaussianRelease(1.0, 30.0))
    for count in (1, 2, 7):
        found = epsilon_of_releases(once, DELTA, count)
        assert found == pytest.approx(epsilon_of(count * 2 / 30 * math.sqrt(6), DELTA), rel=1e-5)
    apart = epsilon_of(math.sqrt(7) * once.known_mu, DELTA)
    assert apart < found


def test_21_copies_of_a_record_under_an_epsilon_of_1_come_to_39() -> None:
    once = Releases(1, 1, GaussianRelease(1.0, 2 / mu_of(1.0, DELTA)))
    assert epsilon_of_releases(once, DELTA, 21) == pytest.approx(39.1, abs=0.05)


def _of_one_sample(sampling: float, noise: float, count: int) -> float:
    """ε of one noised sum in which each of ``count`` records is by chance, 1 or −1 all of them."""
    z = np.linspace(-count - 12 * noise, count + 12 * noise, 400_001)
    chances = stats.binom.pmf(np.arange(count + 1), count, sampling)
    plus = sum(c * stats.norm.pdf(z, j, noise) for j, c in enumerate(chances))
    minus, width = plus[::-1], z[1] - z[0]
    low, high = 0.0, 200.0
    for _ in range(60):
        middle = (low + high) / 2
        delta = float(np.maximum(plus - math.exp(middle) * minus, 0).sum() * width)
        low, high = (middle, high) if delta > DELTA else (low, middle)
    return high


@pytest.mark.full
@each("sampling, noise, count", [(0.1, 1.0, 1), (0.1, 2.0, 3), (0.02, 1.0, 4), (0.3, 4.0, 12)])
def test_secret_samples_are_bounded_from_above(sampling: float, noise: float, count: int) -> None:
    """By no less than the worst that is known, and by less than without any samples."""
    replies = GaussianRelease(1.0, 1e6)
    releases = Releases(1, 1, replies, secret=SecretSteps(1, sampling, noise))
    found = epsilon_of_releases(releases, DELTA, count)
    assert found >= _of_one_sample(sampling, noise, count) * (1 - 1e-3)
    assert found <= epsilon_of(1.001 * count * 2 / noise, DELTA * 0.98)


def test_many_secret_steps_are_bounded_for_many_records() -> None:
    noise = guarantee.calibrate(
        1.0, DELTA, clients=3, queries=10, server_share=0.9, secret_steps=1000, sampling=0.02
    )
    steps = SecretSteps(1000, 0.02, noise.server)
    releases = Releases(3, 10, GaussianRelease(1.0, noise.reply), secret=steps)
    found = [epsilon_of_releases(releases, DELTA, count) for count in (1, 2, 3, 21)]
    assert found[0] == pytest.approx(1.0, rel=0.02)
    assert found == sorted(found)
    assert found[1] < 2.5
    assert found[3] < 150


def test_labels_by_randomised_response_cost_k_times_as_much() -> None:
    one = Statement("exact", "Words.", epsilon=0.5, delta=0.0, label_advantage=math.tanh(0.25))
    found = of_person(one, None, Persons(4, "data.records_per_person"))
    assert found.epsilon_per_person == 2.0
    assert found.label_advantage_per_person == pytest.approx(math.tanh(1.0))
    assert "up to 4 of these records (data.records_per_person): ε = 2," in found.words
    same = of_person(one, None, Persons(1, "x"))
    assert (same.words, same.epsilon_per_person) == ("Words.", 0.5)
    none = of_person(Statement("none", "No."), None, Persons(4, "x"))
    assert none.epsilon_per_person is None


ROWS, COPIES = 30, 21


def table(path: Path) -> Path:
    """One person's record is there 21 times more, all of the rare class."""
    rows = [*range(ROWS), *[3] * (COPIES - 1)]
    frame = {
        "key": [f"k{row}" for row in rows],
        "age": [row / 7 for row in rows],
        "income": [row * row / 11 for row in rows],
        "y": ["yes" if row == 3 else "no" for row in rows],
    }
    pl.DataFrame(frame).write_csv(path)
    return path


def privacy(path: Path, mechanism: str = "gaussian", **data: Any) -> dict[str, Any]:
    given = {"name": "table", "path": str(path), "label": "y", "parties": 2, "validation": 0.0}
    given |= {"classes": ["no", "yes"], **data}
    tree = {"seed": 0, "epochs": 1, "batch_size": 8, "data": given, "server": {"update": "none"}}
    tree["privacy"] = {"epsilon": 1.0, "mechanism": mechanism, "noise": "secure"}
    return Experiment(schema.parse(tree)).privacy()


def test_copies_of_a_record_have_the_epsilon_of_their_person_said(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv")
    test = {"test_path": str(path)}
    alike = privacy(path, drop=["key"], **test)
    assert alike["epsilon"] == pytest.approx(1.0, rel=1e-4)
    assert alike["records_per_person"] == COPIES
    assert alike["epsilon_per_person"] == pytest.approx(39.1, abs=0.1)
    assert alike["label_advantage_per_person"] > 0.99
    words = f"up to {COPIES} of these records (they have the same features): ε = 39."
    assert words in alike["words"]
    named = privacy(path, person="key", **test)
    assert "counted by data.person 'key'" in named["words"]
    assert named["epsilon_per_person"] == alike["epsilon_per_person"]
    labels = privacy(path, "randomised-response", person="key", **test)
    assert labels["epsilon_per_person"] == COPIES
    for bound in (1, 5):  # which nobody counted
        said = privacy(path, drop=["key"], records_per_person=bound, **test)
        assert said["epsilon_per_person"] == alike["epsilon_per_person"]
        assert f"data.records_per_person is {bound}, but no column" in said["words"]
    assert json.dumps(alike)


def test_what_was_not_counted_is_not_stated(tmp_path: Path) -> None:
    """No two rows are alike, which says nothing of whose they are."""
    rows = pl.DataFrame({"age": range(ROWS), "pay": range(ROWS), "y": ["no", "yes"] * (ROWS // 2)})
    rows.write_csv(tmp_path / "t.csv")
    found = privacy(tmp_path / "t.csv", records_per_person=1)
    assert found["epsilon"] == pytest.approx(1.0, rel=1e-4)
    assert found.get("epsilon_per_person") is None
    assert "so nothing is stated for a person of so many" in found["words"]


IDENTIFIERS: dict[str, tuple[list[str], str | None]] = {
    "case": (["a1", "A1", "b", "c"], "'A1' and 'a1' differ by case"),
    "width": (["ａ1", "a1", "b", "c"], r"'a1' and '\\uff411' differ"),
    "spaces": (["a 1", "a1", "b", "c"], "'a 1' and 'a1' differ"),
    "no-break spaces": (["a\u00a01", "a1", "b", "c"], r"'a1' and 'a\\xa01' differ"),
    "zero width": (["a\u200b1", "a1", "b", "c"], r"'a1' and 'a\\u200b1' differ"),
    "soft hyphens": (["a\u00ad1", "a1", "b", "c"], r"'a1' and 'a\\xad1' differ"),
    "a mark of order": (["\u200ea1", "a1", "b", "c"], "differ by case"),
    "several": (["a1", "A1", "b2", "B2"], r"\(and 1 more\)"),
    "sharp s": (["strasse", "straße", "b", "c"], "differ by case"),
    "row numbers": (["0", "1", "2", "3"], "count the rows from 0: they name places"),
    "rows from one": (["1", "2", "3", "4"], "count the rows from 1"),
    "names": (["ann", "bob", "cem", "dan"], None),
    "numbers": (["10", "11", "12", "13"], None),
    "leading zeros": (["01", "1", "2", "3"], None),
    "accents": (["jose", "josé", "b", "c"], None),
}


@each("name", IDENTIFIERS)
def test_identifiers_that_may_be_one_s_are_named_in_a_note(name: str, tmp_path: Path) -> None:
    keys, words = IDENTIFIERS[name]
    frame = pl.DataFrame({"key": keys, "x": range(4), "z": range(4), "y": ["no", "yes"] * 2})
    found = remarks(frame, "key", "t.csv")
    assert (re.search(words, found[0]) is not None) if words else not found
    frame.write_csv(path := tmp_path / "t.csv")
    options = {"name": "table", "path": path, "test_path": path, "label": "y", "validation": 0.0}
    for column in ("id", "person"):
        data = prepare(DataConfig(**options, parties=2, **{column: "key"}), ROOT)
        notes = [note for note in data.notes if "identifiers 'key'" in note]
        assert notes == [line.replace("t.csv", str(path)) for line in found]


def test_it_is_said_wherever_the_epsilon_stands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = table(tmp_path / "t.csv")
    told = privacy(path, person="key", test_path=str(path))
    words = explain(schema.parse({"seed": 0}), told)
    assert any(f"A person with up to {COPIES} training records" in each for each in words.protected)
    assert f"A person with more than {COPIES} training records." in words.not_protected
    assert dict(statements._figures(told))["ε of such a person"].startswith("39.")
    assert ("per person", "ε 39.2, 21 records") in summary_figures._per_person(told)
    assert [who for who, *_ in dossier._rates(told)][1] == f"a person of up to {COPIES} records"
    asked = {"epochs": 1, "batch": 100, "server": "none", "records_per_person": COPIES}
    plan(1000, 1, 1.0, DELTA, **asked)
    assert "of a person with 21 records" in capsys.readouterr().out
    plan(1000, 1, 1.0, DELTA, **asked, as_json=True)
    found = json.loads(capsys.readouterr().out)["epsilon_per_person"]
    assert found == pytest.approx(39.1, abs=0.1)
    for options in ({"records_per_person": 0, "epochs": 1, "batch": 9}, {"records_per_person": 2}):
        with pytest.raises(ConfigError, match="--records-per-person is"):
            plan(1000, 1, 1.0, DELTA, **options)


@each(
    "data, words",
    [
        ({"id": "key"}, "data.id 'key' names one record in 21 training rows"),
        (
            {"person": "key", "records_per_person": 3},
            "data.person 'key' names one person in 21 training records but "
            "data.records_per_person is 3",
        ),
    ],
)
def test_more_records_than_are_said_are_refused(
    data: dict[str, Any], words: str, tmp_path: Path
) -> None:
    path = table(tmp_path / "t.csv")
    with pytest.raises(DataError, match=words):
        privacy(path, test_path=str(path), **data)
