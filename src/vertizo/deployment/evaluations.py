"""Which evaluation is under way, and which was the best: for a federation that waits for nobody.

An evaluation asks every client for its embeddings of one partition. Each uploads them when it next
hears of it, and remembers the parameters that it made them with; once all are there they are
scored, with the server's parameters of that moment. So what is scored, all parties can go back to.
In asynchronous rounds an evaluation that somebody has not answered by the time the next is due is
dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from vertizo.messages import Purpose
from vertizo.metrics import quality

Which = Literal["now", "best"]


@dataclass
class Evaluations:
    """Of one job."""

    clients: int
    number: int = 0
    """Of the one under way, or else of the last."""
    purpose: Purpose | None = None
    """Of the one under way; None between two."""
    model: Which = "now"
    waiting: set[int] = field(default_factory=set)
    """The clients that have not answered it."""
    best: dict[str, Any] | None = None
    """The figures of the best one so far, and its number."""

    def begin(self, purpose: Purpose, model: Which = "now") -> None:
        """Start one; what is under way is dropped."""
        self.number += 1
        self.purpose, self.model = purpose, model
        self.waiting = set(range(self.clients))

    def answered(self, client: int, purpose: Purpose, number: int) -> bool:
        """Note that a client's upload is complete; whether all are there now."""
        if self.purpose is None or (purpose, number) != (self.purpose, self.number):
            return False  # of one that was dropped
        self.waiting.discard(client)
        return not self.waiting

    def end(self) -> None:
        """What was under way was scored, or given up."""
        self.purpose = None
        self.waiting = set()

    def is_best(self, row: dict[str, Any]) -> bool:
        """Whether these validation figures beat the best so far."""
        return self.best is None or quality(row) > quality(self.best)

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold; who answered is asked again."""
        under_way = None if self.purpose is None else [self.purpose, self.model]
        return {"number": self.number, "under_way": under_way, "best": self.best}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from ``state``."""
        self.number, self.best = state["number"], state["best"]
        self.end()
        if state["under_way"] is not None:
            self.purpose, self.model = state["under_way"]
            self.waiting = set(range(self.clients))
