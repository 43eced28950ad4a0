"""One run as its label holder knows it, simulated or served."""

from __future__ import annotations

from dataclasses import dataclass

from vertizo.config.schema import ExperimentConfig
from vertizo.data.vertical import VerticalData
from vertizo.party.server import ServerParty
from vertizo.privacy.statement import Statement
from vertizo.protocol.messages import Purpose


@dataclass(frozen=True)
class Job:
    """The label holder's side of a run, made and ready to begin."""

    config: ExperimentConfig
    """Complete."""
    data: VerticalData
    party: ServerParty
    statement: Statement
    """What the whole run guarantees."""
    rounds: int
    """Server steps in all."""
    queries: int
    """Of each client, in all."""
    is_charged: bool = False
    """Whether it is charged to a ledger that outlives the process."""

    @property
    def synchronous(self) -> bool:
        """Whether all clients go in step."""
        return self.config.simulation.timing == "synchronous"

    @property
    def rounds_per_epoch(self) -> int:
        """Server steps in which every client passes over its records once."""
        return self.queries // self.config.epochs * (1 if self.synchronous else self.party.clients)

    @property
    def evaluate_every(self) -> int:
        """Server steps between two evaluations."""
        return self.config.evaluate_every or self.rounds_per_epoch

    @property
    def progress(self) -> Purpose:
        """The partition that is scored on the way."""
        return "validation" if len(self.data.labels["validation"]) else "test"
