"""Weights of classes and of records, and which records are one person's."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from tests import federations
from tests.refusals import refused
from tests.rows import each

from vertizo.core.errors import ConfigError, DataError
from vertizo.core.randomness import Stream
from vertizo.data.options import DataConfig
from vertizo.data.own_tables import party_table
from vertizo.data.prepare import prepare
from vertizo.data.vertical import VerticalData, of_classes
from vertizo.methods.choice import asking
from vertizo.models.losses import Classification, ClassWeighted
from vertizo.protocol.messages import Query

ROWS = 40
GIVEN = {"weight": "weight", "person": "customer", "id": "key"}


def table(path: Path, **columns: Any) -> Path:
    usual = {
        "key": [f"k{row}" for row in range(ROWS)],
        "age": [float(row % 7) for row in range(ROWS)],
        "income": [float(row * row % 11) for row in range(ROWS)],
        "weight": [row / 4 for row in range(ROWS)],
        "customer": [f"c{row // 3}" for row in range(ROWS)],
        "y": ["no", "no", "no", "yes"] * (ROWS // 4),
    }
    pl.DataFrame({**usual, **columns}).write_csv(path)
    return path


def cut(path: Path, **changes: Any) -> VerticalData:
    own = {"name": "table", "path": path, "label": "y", "parties": 2, "drop": [], **changes}
    return prepare(DataConfig(**own), Stream.from_seed(0))


def test_a_column_of_weights_is_no_feature_and_stays_with_its_records(tmp_path: Path) -> None:
    data = cut(table(tmp_path / "t.csv"), **GIVEN)
    assert sum(own["train"].shape[1] for own in data.features) == 2
    rows = [int(key.removeprefix("k")) for key in data.keys()]  # noqa: SIM118
    assert data.weights.tolist() == [row / 4 for row in rows]
    assert [int(p) // 3 for p in data.persons] == [row // 3 for row in rows]


def test_a_label_holders_own_table_has_them_as_well(tmp_path: Path) -> None:
    """Rows are in the order of the keys there."""
    path, keys = tmp_path / "t.csv", [f"k{row:02}" for row in reversed(range(ROWS))]
    table(path, key=keys)
    options = DataConfig(name="table", path=path, label="y", drop=["age"], **GIVEN)
    choice = party_table.Choice(Stream.from_seed(0), 0.1, 0.2)
    data, _, _ = party_table.labels(options, choice, ("a", "b"), "f")
    rows = [ROWS - 1 - int(key.removeprefix("k")) for key in data.keys()]  # noqa: SIM118
    assert data.weights.tolist() == [row / 4 for row in rows]
    assert len(set(data.persons.tolist())) == len({row // 3 for row in rows})
    assert data.own.values["train"].shape[1] == 1


@each(
    "columns, words",
    [
        ({"weight": [-1.0] * ROWS}, "the weight 'weight' is '-1.0' in line 2; it must be a number"),
        ({"weight": ["x"] * ROWS}, "the weight 'weight' is 'x' in line 2"),
        ({"weight": [None, *[1.0] * (ROWS - 1)]}, "the weight 'weight' is None in line 2"),
        ({"customer": [None, *["a"] * (ROWS - 1)]}, "the person 'customer' is missing in line 2"),
    ],
)
def test_bad_columns_are_refused(columns: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=words):
        cut(table(tmp_path / "t.csv", **columns), weight="weight", person="customer")


def test_weights_of_classes_are_scikit_learns() -> None:
    data = federations.data()
    counts = torch.bincount(data.labels["train"]).double()
    found = of_classes(DataConfig(class_weights="balanced"), data)
    assert torch.allclose(found.double(), 29 / (3 * counts))
    shares = {"0": 0.25, "1": 0.25, "2": 0.5}
    public = of_classes(DataConfig(class_weights="balanced", class_shares=shares), data)
    assert public.tolist() == pytest.approx([4 / 3, 4 / 3, 2 / 3])
    named = of_classes(DataConfig(class_weights={"2": 5.0}), data)
    assert named.tolist() == [1.0, 1.0, 5.0]
    assert of_classes(DataConfig(), data) is None


@each(
    "changes, words",
    [
        ({"class_weights": {"7": 1.0}}, "data.class_weights has '7', which is no class"),
        (
            {"class_weights": "balanced", "class_shares": {"0": 0.5, "1": 0.5}},
            "data.class_shares has no share of the class '2'",
        ),
    ],
)
def test_unknown_classes_are_refused(changes: dict[str, Any], words: str) -> None:
    keys = {f"data.{key}": value for key, value in changes.items()}
    refused(words, ConfigError, federations.build, "dpzv", None, keys, match=words)


@pytest.mark.full
@each("method", asking())
def test_every_method_tells_as_much_more_of_a_record_as_it_weighs(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By class, by record, and both: a record's part of the first reply is scaled, no other's."""
    changes: dict[str, Any] = {"server.update": "none"}
    factors = torch.tensor([3.0, 1.0, 2.0])
    found = []
    for by_class, by_record in ((False, False), (True, False), (False, True), (True, True)):
        named = {"data.class_weights": {"0": 3.0, "2": 2.0}} if by_class else {}
        side = federations.build(method, None, {**changes, **named}).server.side
        assert isinstance(side.model.task, ClassWeighted) == by_class
        if by_record:
            side.weights = torch.linspace(0, 2, 29)
        seen: list[torch.Tensor] = []
        shape = side.method.reply_shape(8, federations.DIM)
        told = partial(_told, seen, shape)
        monkeypatch.setattr(side, "_released", told)
        generator = torch.Generator().manual_seed(1)
        points = torch.randn(side.method.points, 8, federations.DIM, generator=generator)
        side.answer([Query(0, 0, torch.arange(8), points)], 1)
        found.append(seen[0])
    plain, labels = found[0], side.labels[:8]
    of_class, of_record = factors[labels], torch.linspace(0, 2, 29)[:8]
    for scaled, factor in zip(found[1:], (of_class, of_record, of_class * of_record), strict=True):
        assert plain.abs().max() > 0
        shape = [-1] + [1] * (plain.dim() - 1)
        assert torch.allclose(scaled, plain * factor.view(shape), rtol=2e-2, atol=2e-3)


def _told(seen: list[torch.Tensor], shape: tuple[int, ...], rows: torch.Tensor) -> torch.Tensor:
    """Keeps what would be released, and releases nothing."""
    seen.append(rows)
    return torch.zeros(shape)


def test_a_data_sets_own_names_of_classes_stay_as_they_are() -> None:
    """They are respelt nowhere, so that a configuration may name them as they are."""
    data = prepare(DataConfig(parties=2, limit=60), Stream.from_seed(0))
    named = replace(data, task=Classification(2), class_names=("False", "1.0"))
    options = DataConfig(parties=2, class_weights={"False": 2.0, "1.0": 3.0})
    assert of_classes(options, named).tolist() == [2.0, 3.0]  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="has 'true', which is no class"):
        of_classes(DataConfig(parties=2, class_weights={"TRUE": 1.0}), named)
