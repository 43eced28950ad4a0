"""Early stopping: training ends early by evaluations on validation records alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vertizo.config.sections.early_stopping import EarlyStopping
from vertizo.core.state import Stateful
from vertizo.party.metrics import quality


@dataclass
class Stopping(Stateful):
    """How many evaluations brought no improvement, and whether the goal was reached."""

    STATE = ("waited", "mark", "reached")

    options: EarlyStopping
    waited: int = 0
    """Evaluations since the last improvement."""
    mark: dict[str, float] = field(default_factory=dict)
    """Validation figures of the last improvement; empty before the first evaluation."""
    reached: bool = False
    """Whether an evaluation has reached the accuracy that is the goal."""

    def hear(self, row: Mapping[str, Any]) -> None:
        """Note the figures of an evaluation on validation records, after the first round."""
        better = not self.mark or quality(row) > quality(self.mark)
        if better and self.mark and self.options.min_delta:
            better = _figure(row) - _figure(self.mark) > self.options.min_delta
        self.waited = 0 if better else self.waited + 1
        if better:
            self.mark = {key: row[key] for key in row if key.startswith("validation_")}
        goal = self.options.accuracy
        self.reached |= goal is not None and row["validation_accuracy"] >= goal

    @property
    def is_due(self) -> bool:
        """Whether training is to end."""
        patience = self.options.patience
        return self.reached or (patience is not None and self.waited >= patience)


def _figure(row: Mapping[str, Any]) -> float:
    """The figure that models are chosen by: a share for classes, else the negative loss."""
    first, loss = quality(row)
    return first if "validation_accuracy" in row else loss
