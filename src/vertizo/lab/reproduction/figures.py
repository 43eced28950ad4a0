"""The figures that a study reads from finished runs, each with its unit."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveInt, Tag

from vertizo.core.options import Options, chosen_by
from vertizo.lab.comparison import Measure, bytes_to, first_reaching, value_of
from vertizo.privacy.epsilon_text import bound_text, is_bounded

SIZES = {"MB": 1e6, "GB": 1e9}
Size = Literal["MB", "GB"]
ENDLESS = 1e6
"""ε from which on it is not shown: such noise is next to nothing, and there for the clip alone."""


@dataclass(frozen=True)
class Finished:
    """A finished run: its summary, its evaluations and its folder."""

    summary: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    folder: Path = Path()

    @property
    def table(self) -> int:
        """Bytes that filled the embedding table before the first round."""
        return int(self.summary.get("bytes_table", 0))


class Figure(Options):
    """One number of a run."""

    name: str
    digits: ClassVar[int] = 2
    of_controls: ClassVar[bool] = False
    """Whether controls have it too, for comparison."""
    is_goal: ClassVar[bool] = False
    """Whether a run without one is a run that did not get there."""
    is_share: ClassVar[bool] = False

    @property
    def words(self) -> str:
        """The figure's name beside an axis."""
        return self.name.replace("-", " ")

    @property
    def unit(self) -> str:
        """The unit of `read`."""
        return "%" if self.is_share else str(getattr(self, "in_", ""))

    def read(self, run: Finished) -> float | None:
        """Read the number from a run, in its unit; None where the run has none."""
        found = self.find(run)
        if found is None:
            return None
        return 100 * found if self.is_share else found / SIZES.get(self.unit, 1.0)

    @abstractmethod
    def find(self, run: Finished) -> float | None:
        """Find the unscaled number in a run: a share in [0, 1], bytes, or another number."""


class _OfSummary(Figure):
    key: ClassVar[str]
    section: ClassVar[str | None] = None
    """Of the summary; None for its top."""

    def find(self, run: Finished) -> float | None:
        summary = run.summary if self.section is None else run.summary.get(self.section) or {}
        return summary.get(self.key)


class _TestAccuracy(_OfSummary):
    """Accuracy on the test records, of the model that is kept."""

    is_share, of_controls, key = True, True, "test_accuracy"
    name: Literal["test-accuracy"] = "test-accuracy"


class _TestLoss(_OfSummary):
    """Loss on the test records, of the model that is kept."""

    digits, of_controls, key = 4, True, "test_loss"
    name: Literal["test-loss"] = "test-loss"


class _RawAccuracy(_OfSummary):
    """Accuracy on the test records of the head that stays with the label holder."""

    is_share, of_controls, key, section = True, True, "test_accuracy", "raw_head"
    name: Literal["raw-accuracy"] = "raw-accuracy"


class _RawAuc(_OfSummary):
    """AUC on the test records of the head that stays with the label holder."""

    digits, of_controls, key, section = 4, True, "test_auc", "raw_head"
    name: Literal["raw-auc"] = "raw-auc"


class _Clipped(_OfSummary):
    """Share of values that the clip cut."""

    is_share, key = True, "clip_fraction"
    name: Literal["clipped"] = "clipped"


class _AtEpoch(Figure):
    """A figure of the evaluation that first reached an epoch; the last one without."""

    is_share, of_controls = True, True
    name: Literal["at-epoch"] = "at-epoch"
    epoch: float | None = Field(default=None, ge=0)
    of: Literal["accuracy", "train_accuracy"] = "accuracy"

    def find(self, run: Finished) -> float | None:
        rows = [r for r in run.metrics if self.epoch is None or r["epoch"] >= self.epoch - 1e-9]
        return value_of(rows[-1 if self.epoch is None else 0], self.of) if rows else None


class _BytesTo(Figure):
    """Bytes in both directions until an accuracy was first reached."""

    is_goal = True
    name: Literal["bytes-to"] = "bytes-to"
    accuracy: float = Field(gt=0, lt=1)
    by: Measure = "validation"
    """train: the running accuracy between two evaluations."""
    in_: Size = Field(default="MB", alias="in")

    def find(self, run: Finished) -> float | None:
        return bytes_to(run.metrics, self.accuracy, self.by, run.table)


class _Bytes(Figure):
    """Bytes that were sent, in the paper's number of epochs: they are the same in each."""

    name: Literal["bytes"] = "bytes"
    way: Literal["up", "down", "both"] = "both"
    epochs: PositiveInt | None = None
    """Unset: those of the run."""
    in_: Size = Field(default="MB", alias="in")

    def find(self, run: Finished) -> float:
        ways = ("up", "down") if self.way == "both" else (self.way,)
        sent = sum(run.summary[f"bytes_{way}"] for way in ways)
        scale = 1.0 if self.epochs is None else self.epochs / run.summary["epochs"]
        return float(sent * scale + (run.table if self.way != "down" else 0))


class _AccuracyAt(Figure):
    """The best accuracy of all evaluations before so many bytes were sent."""

    is_share, of_controls = True, True
    name: Literal["accuracy-at"] = "accuracy-at"
    megabytes: float = Field(gt=0)

    @property
    def words(self) -> str:
        return f"best validation accuracy within {self.megabytes:g} MB"

    def find(self, run: Finished) -> float | None:
        most = self.megabytes * 1e6 - run.table
        rows = (row for row in run.metrics if row["bytes_up"] + row["bytes_down"] <= most)
        found = (value_of(row, "accuracy") for row in rows)
        return max((value for value in found if value is not None), default=None)


class _FirstReaching(Figure):
    """A column of the first evaluation that reached an accuracy."""

    is_goal = True
    column: ClassVar[str]
    accuracy: float = Field(gt=0, lt=1)

    def find(self, run: Finished) -> float | None:
        row = first_reaching(run.metrics, self.accuracy)
        return None if row is None else float(row[self.column])


class _RoundsTo(_FirstReaching):
    """Rounds until an accuracy was first reached."""

    digits, column = 0, "round"
    name: Literal["rounds-to"] = "rounds-to"


class _SecondsTo(_FirstReaching):
    """Seconds of training and evaluations until an accuracy was first reached."""

    digits, column = 1, "seconds"
    name: Literal["seconds-to"] = "seconds-to"


FigureChoice = Annotated[
    Annotated[_TestAccuracy, Tag("test-accuracy")]
    | Annotated[_TestLoss, Tag("test-loss")]
    | Annotated[_RawAccuracy, Tag("raw-accuracy")]
    | Annotated[_RawAuc, Tag("raw-auc")]
    | Annotated[_AtEpoch, Tag("at-epoch")]
    | Annotated[_BytesTo, Tag("bytes-to")]
    | Annotated[_Bytes, Tag("bytes")]
    | Annotated[_AccuracyAt, Tag("accuracy-at")]
    | Annotated[_RoundsTo, Tag("rounds-to")]
    | Annotated[_SecondsTo, Tag("seconds-to")]
    | Annotated[_Clipped, Tag("clipped")],
    chosen_by("name", "test-accuracy"),
]
USUAL = _TestAccuracy()


def held(summary: Mapping[str, Any]) -> str | None:
    """Describe in a few words the ε that holds for a run; None for a run without noise."""
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
    """Format a number that may be large in few characters."""
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}" if value < 1e6 else f"{value:.1e}"
