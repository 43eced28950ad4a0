"""What trials are compared by: a figure on the validation records, of the model that a run keeps.

A run keeps the model of the evaluation with the highest validation accuracy, and the lowest loss
among equals; for a regression that with the lowest loss. A trial is worth what that model is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from vertizo.core.errors import ConfigError
from vertizo.data.vertical import VerticalData
from vertizo.models.losses import Classification
from vertizo.party.metrics import quality

ObjectiveName = Literal["accuracy", "auc", "average_precision", "loss", "rmse"]


@dataclass(frozen=True)
class Standing:
    """How good the model is that a run would keep by now."""

    value: float
    """The objective's figure."""
    loss: float
    """Validation loss; decides between equals."""


@dataclass(frozen=True)
class Objective:
    """A figure on the validation records."""

    name: ObjectiveName

    @property
    def maximised(self) -> bool:
        """Whether more is better."""
        return self.name not in ("loss", "rmse")

    def standing(self, rows: Sequence[Mapping[str, Any]]) -> Standing | None:
        """Of the model that a run keeps; None while nothing was evaluated after the start."""
        trained = [row for row in rows if row["round"] > 0]
        if not trained:
            return None
        kept = max(trained, key=quality)
        return Standing(kept[f"validation_{self.name}"], kept["validation_loss"])

    def better_first(self, standing: Standing) -> tuple[float, float]:
        """A key to sort by: the best first, and among equals the one with the lower loss."""
        return -standing.value if self.maximised else standing.value, standing.loss


def choose(name: str | None, data: VerticalData) -> Objective:
    """The objective of that name, or the usual one.

    Args:
        name: None for the area under the ROC curve with two classes, accuracy with more, and the
            root of the mean squared error for a regression.
        data: with validation records.

    Raises:
        ConfigError: there are no validation records, or they have no such figure.
    """
    labels = data.labels["validation"]
    if not labels.numel():
        raise ConfigError(
            "data.validation is 0, or leaves no record; a search compares trials by validation "
            "records: use 0.1 or more"
        )
    offered: tuple[ObjectiveName, ...] = ("rmse", "loss")
    if isinstance(data.task, Classification):
        both = data.task.outputs == 2 and 0 < int(labels.sum()) < labels.numel()
        offered = ("auc", "average_precision", "accuracy") if both else ("accuracy",)
        offered = (*offered, "loss")
    if name is None:
        return Objective(offered[0])
    found = next((each for each in get_args(ObjectiveName) if each == name), None)
    if found not in offered:
        raise ConfigError(
            f"--objective {name}: validation records of {data.name} have {', '.join(offered)}"
        )
    return Objective(found)
