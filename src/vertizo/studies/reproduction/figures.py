"""Figures that are read off finished runs, each with its unit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveInt, Tag

from vertizo.core.options import Options, chosen_by
from vertizo.privacy.epsilon_text import bound_text, is_bounded
from vertizo.studies.comparison import Measure, bytes_to

Metrics = Sequence[Mapping[str, Any]]
SIZES = {"MB": 1e6, "GB": 1e9}
Size = Literal["MB", "GB"]
ENDLESS = 1e6
"""From this ε on nobody would call it one: noise of next to nothing, for the clip alone."""


@dataclass(frozen=True)
class Finished:
    """A run that came to its end."""

    summary: Mapping[str, Any]
    metrics: Metrics
    folder: Path = Path()

    @property
    def table(self) -> int:
        """Bytes that filled the table before the first round."""
        return int(self.summary.get("bytes_table", 0))


class Figure(Options):
    """One number of a run."""

    digits: ClassVar[int] = 2
    of_controls: ClassVar[bool] = False
    """Whether controls have it too, for comparison."""
    is_goal: ClassVar[bool] = False
    """Whether a run without one is a run that did not get there."""

    @property
    def unit(self) -> str:
        """What the number counts."""
        return str(getattr(self, "in_", ""))

    def read(self, run: Finished) -> float | None:
        """The number; None where the run has none."""
        raise NotImplementedError  # abstract


class _Share(Figure):
    """A figure in percent."""

    of_controls: ClassVar[bool] = True

    @property
    def unit(self) -> str:
        return "%"

    def read(self, run: Finished) -> float | None:
        found = self.share(run)
        return None if found is None else 100 * found

    def share(self, run: Finished) -> float | None:
        raise NotImplementedError  # abstract


class _TestAccuracy(_Share):
    """Accuracy on the test records, of the model that is kept."""

    name: Literal["test-accuracy"] = "test-accuracy"

    def share(self, run: Finished) -> float | None:
        return run.summary.get("test_accuracy")


class _TestLoss(Figure):
    """Loss on the test records, of the model that is kept."""

    digits: ClassVar[int] = 4
    of_controls: ClassVar[bool] = True
    name: Literal["test-loss"] = "test-loss"

    def read(self, run: Finished) -> float | None:
        return run.summary.get("test_loss")


class _AtEpoch(_Share):
    """A figure of the evaluation that first reached an epoch; the last one without."""

    name: Literal["at-epoch"] = "at-epoch"
    epoch: float | None = Field(default=None, ge=0)
    of: Literal["accuracy", "train_accuracy"] = "accuracy"

    def share(self, run: Finished) -> float | None:
        rows = [r for r in run.metrics if self.epoch is None or r["epoch"] >= self.epoch - 1e-9]
        return value_of(rows[-1 if self.epoch is None else 0], self.of) if rows else None


class _BytesTo(Figure):
    """Bytes in both directions until an accuracy was first reached."""

    is_goal: ClassVar[bool] = True
    name: Literal["bytes-to"] = "bytes-to"
    accuracy: float = Field(gt=0, lt=1)
    by: Measure = "validation"
    """train: the running accuracy between two evaluations."""
    in_: Size = Field(default="MB", alias="in")

    def read(self, run: Finished) -> float | None:
        found = bytes_to(run.metrics, self.accuracy, self.by, run.table)
        return None if found is None else found / SIZES[self.in_]


class _Bytes(Figure):
    """Bytes that were sent, in the paper's number of epochs: they are the same in each."""

    name: Literal["bytes"] = "bytes"
    way: Literal["up", "down", "both"] = "both"
    epochs: PositiveInt | None = None
    """Unset: those of the run."""
    in_: Size = Field(default="MB", alias="in")

    def read(self, run: Finished) -> float | None:
        ways = ("up", "down") if self.way == "both" else (self.way,)
        sent = sum(run.summary[f"bytes_{way}"] for way in ways)
        scale = 1.0 if self.epochs is None else self.epochs / run.summary["epochs"]
        table = run.table if self.way != "down" else 0
        return float(sent * scale + table) / SIZES[self.in_]


class _AccuracyAt(_Share):
    """The best accuracy of all evaluations before so many bytes were sent."""

    name: Literal["accuracy-at"] = "accuracy-at"
    megabytes: float = Field(gt=0)

    def share(self, run: Finished) -> float | None:
        found = [
            value
            for row in run.metrics
            if row["bytes_up"] + row["bytes_down"] + run.table <= self.megabytes * 1e6
            and (value := value_of(row, "accuracy")) is not None
        ]
        return max(found, default=None)


class _RoundsTo(Figure):
    """Rounds until an accuracy was first reached."""

    digits: ClassVar[int] = 0
    is_goal: ClassVar[bool] = True
    name: Literal["rounds-to"] = "rounds-to"
    accuracy: float = Field(gt=0, lt=1)

    def read(self, run: Finished) -> float | None:
        return rounds_to(run.metrics, self.accuracy)


class _Clipped(_Share):
    """Share of values that the clip cut."""

    of_controls: ClassVar[bool] = False
    name: Literal["clipped"] = "clipped"

    def share(self, run: Finished) -> float | None:
        return run.summary.get("clip_fraction")


FigureChoice = Annotated[
    Annotated[_TestAccuracy, Tag("test-accuracy")]
    | Annotated[_TestLoss, Tag("test-loss")]
    | Annotated[_AtEpoch, Tag("at-epoch")]
    | Annotated[_BytesTo, Tag("bytes-to")]
    | Annotated[_Bytes, Tag("bytes")]
    | Annotated[_AccuracyAt, Tag("accuracy-at")]
    | Annotated[_RoundsTo, Tag("rounds-to")]
    | Annotated[_Clipped, Tag("clipped")],
    chosen_by("name", "test-accuracy"),
]
USUAL = _TestAccuracy()


def value_of(row: Mapping[str, Any], key: str) -> float | None:
    """A figure of one evaluation; on validation records, or else test records."""
    names = (key,) if key.startswith("train") else (f"validation_{key}", f"test_{key}")
    return next((row[name] for name in names if row.get(name) is not None), None)


def rounds_to(metrics: Metrics, target: float) -> float | None:
    """Rounds until the accuracy first reached a target; None if it did not.

    >>> rounds_to([{"round": 5, "test_accuracy": 0.4}, {"round": 9, "test_accuracy": 0.6}], 0.5)
    9.0
    """
    for row in metrics:
        found = value_of(row, "accuracy")
        if found is not None and found >= target:
            return float(row["round"])
    return None


def held(summary: Mapping[str, Any]) -> str | None:
    """What ε a run has in truth, in a few words; None for a run without noise."""
    privacy = summary["privacy"]
    if is_bounded(privacy):
        simulated = "simulated " if privacy["guarantee"] == "simulated" else ""
        return f"{simulated}{bound_text(privacy['epsilon'], 3)}"
    noise = privacy.get("embedding_noise")
    if noise is not None:
        return f"none; embeddings {_short(noise['epsilon'])}"
    if (privacy.get("replies_alone_epsilon") or ENDLESS) < ENDLESS:
        return f"none; replies {_short(privacy['replies_alone_epsilon'])}"
    return None if privacy.get("noise_std") is None else "none"


def _short(value: float) -> str:
    """A number that may be large, in few characters."""
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}" if value < 1e6 else f"{value:.1e}"
