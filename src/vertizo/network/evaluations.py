"""Which evaluation is under way, and which was the best: for a federation that waits for nobody.

An evaluation asks every client for its embeddings of one partition. Each uploads them when it next
hears of it, and remembers the parameters that it made them with; once all are there they are
scored, with the server's parameters of that moment. So what is scored, all parties can go back to.
Embeddings that came are kept as queries are: a label holder that was killed asks nobody twice.
In synchronous rounds nobody goes on before it answered, so that an evaluation is of one round; a
round that is closed without somebody drops the evaluation that waits for it.
In asynchronous rounds an evaluation that somebody has not answered by the time the next is due is
dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from vertizo.party.metrics import quality
from vertizo.protocol.messages import Purpose

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

    def waits_for(self, client: int, purpose: Purpose, number: int) -> bool:
        """Whether this is the one under way, and a client has not answered it."""
        return (purpose, number) == (self.purpose, self.number) and client in self.waiting

    @property
    def is_answered(self) -> bool:
        """Whether one is under way that everybody answered: it can be scored."""
        return self.purpose is not None and not self.waiting

    def end(self) -> None:
        """What was under way was scored, or given up."""
        self.purpose = None
        self.waiting = set()

    def is_best(self, row: dict[str, Any]) -> bool:
        """Whether these validation figures beat the best so far."""
        return self.best is None or quality(row) > quality(self.best)

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold, beside the embeddings that came."""
        under_way = None if self.purpose is None else [self.purpose, self.model]
        waiting = sorted(self.waiting)
        return {
            "number": self.number,
            "under_way": under_way,
            "waiting": waiting,
            "best": self.best,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from ``state``."""
        self.number, self.best = state["number"], state["best"]
        if self.best is not None:
            assert {"number", "validation_loss"} <= self.best.keys(), "as it was scored"
        self.end()
        if state["under_way"] is not None:
            self.purpose, self.model = state["under_way"]
            self.waiting = set(state.get("waiting", range(self.clients)))
