"""`Subject`: a method with options and a timing, in the small federation of a check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vertizo.config.schema import ExperimentConfig
from vertizo.core.names import Timing
from vertizo.methods.base import Method
from vertizo.protocol.codecs.base import Codec
from vertizo.run.loop.federation import Federation
from vertizo.testing import federations
from vertizo.testing.federations import Named, Tape


@dataclass(frozen=True)
class Subject:
    """A method with its options, in one timing."""

    method: Named
    timing: Timing
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Changes of the configuration, by dotted keys."""

    def __str__(self) -> str:
        name = self.method if isinstance(self.method, str) else self.method.__qualname__
        return f"{name}, {self.timing}, {dict(self.changes)}"

    def config(self, more: Mapping[str, Any] | None = None) -> ExperimentConfig:
        """The small configuration of `vertizo.testing.federations`, changed."""
        return federations.config(self.method, self.timing, {**self.changes, **(more or {})})

    @property
    def options(self) -> Method:
        """The method as configured."""
        return self.config().method

    @property
    def up(self) -> Codec:
        """The codec of its queries."""
        return self.config().codecs.up

    @property
    def askers(self) -> list[int]:
        """Clients whose queries make one answer: all of them if synchronous, else one."""
        return [0, 1, 2] if self.timing == "synchronous" else [1]

    def build(self, more: Mapping[str, Any] | None = None, **options: Any) -> Federation:
        """Build a federation that has not started."""
        changes = {**self.changes, **(more or {})}
        return federations.build(self.method, self.timing, changes, **options)

    def ran(
        self, more: Mapping[str, Any] | None = None, *, rounds: int | None = None
    ) -> tuple[Federation, Tape]:
        """Run a federation for so many server steps, or to its end, and record its frames."""
        changes = {**self.changes, **(more or {})}
        return federations.ran(self.method, self.timing, changes, rounds=rounds)

    def large_steps(self) -> dict[str, Any]:
        """Changes for a smoothing at which differences of losses keep enough digits."""
        changes = {}
        if "smoothing" in type(self.options).model_fields:
            changes["method.smoothing"] = 0.05
        if self.options.server_update != "sgd":
            changes["server.smoothing"] = 0.05
        return changes

    def rates(self) -> dict[str, Any]:
        """Learning rates and epochs for it: gradients allow larger steps than estimates do.

        ZOO-VFL needs smaller steps at the server, and then more of them, which is the weakness that
        VFL-Cascaded shows of it.
        """
        zeroth_order = self.options.server_update != "sgd"
        estimated = self.options.estimated_dimensions(1, 1, 1) > 0
        return {
            "client.optimizer.learning_rate": 0.03 if estimated else 0.1,
            "server.optimizer.learning_rate": 0.02 if zeroth_order else 0.1,
            "epochs": 40 if zeroth_order else 20,
        }

    def lively(self) -> dict[str, Any]:
        """Changes for momentum on both sides and lost messages, with rates that do not diverge.

        A server that moves by forward differences goes √d_0 times as far as by its gradient; at the
        others' rate, with momentum, its weights would explode, and with them the clients' slopes.
        """
        return {
            "epochs": 3,
            "client.optimizer.momentum": 0.9,
            "server.optimizer.momentum": 0.9,
            "server.optimizer.learning_rate": 0.1 if self.options.server_update == "sgd" else 3e-3,
            "simulation.drop": 0.2,
        }
