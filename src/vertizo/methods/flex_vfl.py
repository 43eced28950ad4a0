"""Flex-VFL: every party makes as many local steps as it has time for.

Castiglia et al. (2023), for parties of unlike speed:

1. The server names a batch; every client sends its embeddings ``h_m`` [batch, d_h].
2. The server answers each client with ``∂L/∂h_m`` [batch, d_h] and makes Q_0 steps of its own on
   the round's embeddings.
3. Client m makes its own number Q_m of steps ``w_m ← w_m − η_m (∂h_m/∂w_m)ᵀ ∂L/∂h_m`` with what it
   was told. A slow client makes few, so that nobody waits long.

The steps are in `vertizo.methods.first_order`.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, PositiveInt

from vertizo.core.errors import ConfigError
from vertizo.core.names import Timing
from vertizo.methods.first_order import FirstOrder


class FlexVfl(FirstOrder):
    """First-order clients in step, each with a number of local steps of its own."""

    paper: ClassVar[str] = "Flex-VFL (flexible VFL with heterogeneous parties)"
    timings: ClassVar[tuple[Timing, ...]] = ("synchronous",)

    name: Literal["flex-vfl"] = "flex-vfl"
    local_steps: tuple[PositiveInt, ...] = Field(default=(2,), min_length=1)
    """Q_m, one number for each client in order, or one for all of them."""
    server_local_steps: PositiveInt = 2
    """Q_0, steps of the server for one exchange."""

    @property
    def server_steps(self) -> int:
        """Q_0."""
        return self.server_local_steps

    def check(self, clients: int) -> None:
        """Raises ConfigError unless there is one number of steps, or one for each client."""
        if len(self.local_steps) not in (1, clients):
            raise ConfigError(
                f"method.local_steps has {len(self.local_steps)} numbers for {clients} clients; "
                "give one for each, or one for all"
            )

    def steps_of(self, client: int) -> int:
        """Q_m."""
        return self.local_steps[client if len(self.local_steps) > 1 else 0]
