"""Declared state: written and read through a checkpoint file, and refused where it does not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from vertizo.core.state import Stateful
from vertizo.run.results import checkpoint


@dataclass
class Point:
    x: float = 0.0
    frame: bytes | memoryview = b""


class Counter(Stateful):
    STATE = ("_count",)

    def __init__(self) -> None:
        self._count = 0


class Named(Counter):
    STATE = ("name",)
    name = "nobody"


@dataclass
class Everything(Stateful):
    """One field of each kind that `Stateful` names."""

    STATE = (
        *("inner", "counters", "point", "points", "numbers", "array", "later", "waiting"),
        *("rows", "best", "inner.deep", "doubled"),
    )
    inner: Named = field(default_factory=Named)
    counters: list[Counter] = field(default_factory=lambda: [Counter(), Named()])
    point: Point = field(default_factory=Point)
    points: list[Point] = field(default_factory=lambda: [Point(), Point()])
    numbers: Tensor = field(default_factory=lambda: torch.zeros(2, 3))
    array: Any = field(default_factory=lambda: np.zeros(4, np.int64))
    later: Tensor | None = None
    waiting: set[int] = field(default_factory=set)
    rows: dict[str, Tensor] = field(default_factory=dict)
    best: dict[str, float] | None = None
    half: int = 0
    told: int = 0

    def __post_init__(self) -> None:
        self.inner.deep = 0  # type: ignore[attr-defined]

    @property
    def doubled(self) -> int:
        return 2 * self.half

    @doubled.setter
    def doubled(self, value: int) -> None:
        self.half = value // 2

    def restored(self) -> None:
        self.told += self.half


def used() -> Everything:
    made = Everything()
    made.inner._count, made.inner.name, made.inner.deep = 3, "inner", 9  # type: ignore[attr-defined]
    made.counters[1]._count = 4
    made.point = Point(0.5, b"\x00\xff")
    made.points[1] = Point(-1.0, memoryview(b"seen"))
    made.numbers += torch.arange(6).view(2, 3)
    made.array += 2**40
    made.later, made.waiting = torch.tensor([1.5]), {3, 1}
    made.rows, made.best, made.half = {"test": torch.ones(2)}, {"loss": 0.25}, 7
    return made


def through_a_file(state: Any, path: Path) -> Any:
    checkpoint.save(path, state)
    return checkpoint.load(path)


def test_every_kind_of_field_goes_through_a_file(tmp_path: Path) -> None:
    made, other = used(), Everything()
    numbers, array, counters = other.numbers, other.array, other.counters
    other.load(through_a_file(made.state(), tmp_path / "state"))
    assert vars(other.inner) == {"_count": 3, "name": "inner", "deep": 9}
    assert [vars(counter) for counter in other.counters] == [
        {"_count": 0},
        {"_count": 4, "name": "nobody"},
    ]
    assert other.point == made.point
    assert other.points == [Point(), Point(-1.0, b"seen")]
    assert other.numbers is numbers and torch.equal(numbers, made.numbers)  # noqa: PT018
    assert other.array is array and array.tolist() == [2**40] * 4  # noqa: PT018
    assert other.counters[0] is counters[0]
    assert other.later is not None and other.later.tolist() == [1.5]  # noqa: PT018
    assert (other.waiting, other.best, other.half, other.told) == ({1, 3}, {"loss": 0.25}, 7, 7)
    assert other.rows.keys() == {"test"}
    assert other.rows["test"].tolist() == [1, 1]


def test_what_is_not_there_yet_is_none_and_is_taken_away_again(tmp_path: Path) -> None:
    made = used()
    made.load(through_a_file(Everything().state(), tmp_path / "state"))
    assert (made.later, made.best, made.waiting, made.rows) == (None, None, set(), {})
    assert made.inner.name == "nobody"


def test_state_is_live_and_a_loaded_one_is_its_own() -> None:
    made, other = used(), Everything()
    state = made.state()
    made.numbers += 1
    assert torch.equal(state["numbers"], made.numbers)
    other.load(state)
    made.numbers += 1
    made.later += 1
    assert not torch.equal(other.numbers, made.numbers)
    assert other.later.tolist() == [1.5]


def test_base_classes_fields_come_first_and_underscores_are_no_part_of_a_key() -> None:
    assert list(Named().state()) == ["count", "name"]
    assert list(Everything().state())[-2:] == ["deep", "doubled"]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda state: state.pop("later"), KeyError),
        (lambda state: state["inner"].pop("count"), KeyError),
        (lambda state: state["counters"].pop(), ValueError),
        (lambda state: state["counters"].append({"count": 1}), ValueError),
        (lambda state: state.update(more=1), ValueError),
        (lambda state: state["inner"].update(more=1), ValueError),
        (lambda state: state.update(numbers=torch.zeros(1, 3)), ValueError),
        (lambda state: state.update(numbers=torch.zeros(3, 2)), ValueError),
        (lambda state: state.update(array=torch.zeros(3)), ValueError),
        (lambda state: state.update(array=torch.zeros(1)), ValueError),
        (lambda state: state.update(array=torch.tensor(0)), ValueError),
        (lambda state: state.update(array=[0, 0, 0, 0]), TypeError),
        (lambda state: state.update(numbers=1.0), TypeError),
        (lambda state: state.update(point={"x": 1.0, "z": 1.0}), TypeError),
        (lambda state: state.update(inner=torch.zeros(2)), TypeError),
    ],
)
def test_the_state_of_something_else_is_refused(
    change: Callable[[dict[str, Any]], Any], error: type[Exception]
) -> None:
    state = used().state()
    change(state)
    with pytest.raises(error):
        Everything().load(state)


def test_a_field_that_is_declared_twice_is_refused() -> None:
    with pytest.raises(TypeError, match="STATE of Again has count twice"):

        class Again(Counter):
            STATE = ("_count",)
