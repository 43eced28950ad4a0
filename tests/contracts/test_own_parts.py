"""Data sets, trackers and mechanisms: what is checked of them, and what is told of broken ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.rows import each
from torch import Tensor

from vertizo.data.datasets.bundled import breast_cancer, digits
from vertizo.data.options import DataConfig
from vertizo.data.pooled import Pooled
from vertizo.models.losses import Classification
from vertizo.privacy.own_mechanism import OwnMechanism
from vertizo.run.loop.callbacks import Callback, Tracked
from vertizo.testing import check_dataset, check_mechanism, check_tracker

LOANS = Path(__file__).parents[2] / "examples" / "loans.csv"
TABLE = {"path": str(LOANS), "label": "defaulted", "drop": ["customer"], "parties": 2}


@each("name, options", [("digits", {}), ("breast-cancer", {}), ("diabetes", {}), ("table", TABLE)])
def test_data_sets_keep_the_contract(name: str, options: dict[str, Any]) -> None:
    check_dataset(name, options)


def shuffled(root: Path | None, options: DataConfig) -> Pooled:
    data = digits(root, options)
    return replace(data, train=data.train[torch.randperm(len(data.train))])


def other_classes(root: Path | None, options: DataConfig) -> Pooled:
    return replace(digits(root, options), task=Classification(9))


def doubles(root: Path | None, options: DataConfig) -> Pooled:
    return replace(digits(root, options), train=digits(root, options).train.double())


def two_groups(root: Path | None, options: DataConfig) -> Pooled:
    data = breast_cancer(root, options)
    return replace(data, groups={**data.groups, "again": list(data.groups["mean"])})


def shared_keys(root: Path | None, options: DataConfig) -> Pooled:
    data = digits(root, options)
    return replace(data, keys=lambda: ["the same"] * len(data.train))


@each(
    "load, words",
    [
        (shuffled, "draws from a global generator"),
        (other_classes, "a training label is no class of 9"),
        (doubles, "type of test records: torch.float32, not torch.float64"),
        (two_groups, "columns that one group alone has: 30, not 40"),
        (shared_keys, "two training records have the same key"),
    ],
)
def test_a_broken_data_set_is_told_in_a_line(load: Callable[..., Pooled], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check_dataset(load)


class Rounds(Callback):
    """Their numbers, a line each."""

    def __init__(self, place: str, tracked: Tracked) -> None:
        self.path = Path(place)

    def on_start(self, run: Tracked, round_: int | None) -> None:
        known = [] if round_ is None or not self.path.exists() else rounds(self.path)
        kept = [one for one in known if round_ is not None and one <= round_]
        self.path.write_text("".join(f"{one}\n" for one in kept))

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(f"{row['round']}\n")


class Twice(Rounds):
    """Writes again what is told again."""

    def on_start(self, run: Tracked, round_: int | None) -> None: ...


def rounds(place: Path) -> list[int]:
    return [int(line) for line in place.read_text().splitlines()]


def test_trackers_keep_the_contract() -> None:
    check_tracker(Rounds, read=rounds)
    with pytest.raises(AssertionError, match=r"of a run that went on: \[0, 24, 24, 48, 72\], not"):
        check_tracker(Twice, read=rounds)


class Signs(OwnMechanism):
    """One number's sign, and randomness of its own."""

    def total(self, values: Tensor) -> Tensor:
        return super().total(values.sign()) + float(self.generator().standard_normal())


class Elsewhere(OwnMechanism):
    """Draws from PyTorch's generator."""

    def total(self, values: Tensor) -> Tensor:
        return super().total(values) + torch.rand(())


class Forgetful(OwnMechanism):
    """Begins anew with every process."""

    def state(self) -> dict[str, Tensor]:
        return {}

    def load(self, state: dict[str, Tensor]) -> None: ...

    def total(self, values: Tensor) -> Tensor:
        return super().total(values) + float(self.generator().standard_normal())


def test_mechanisms_keep_the_contract() -> None:
    check_mechanism(Signs)
    for broken, words in ((Elsewhere, "draws from a global"), (Forgetful, "resumed")):
        with pytest.raises(AssertionError, match=words):
            check_mechanism(broken)
