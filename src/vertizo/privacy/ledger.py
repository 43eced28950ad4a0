"""What each record was charged, and the filter that refuses to go further.

Defined in docs/mathematics.md, Composition and budgets.

The charge depends on record IDs and public constants only, so that a refusal says nothing about the
data. Each client has a share of its own of every record: none can exhaust a record for the others.
A query is admitted before anything is computed, and charged, together with its reply, before the
reply leaves.

Spending is counted in whole `UNIT`s of μ², the squared parameter of Gaussian differential privacy,
in which Gaussian releases compose by addition: sums of any length are exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol, SupportsBytes

import numpy as np
import torch
from torch import Tensor

from vertizo.core.errors import BudgetError, RepeatedRecordError, UnknownRecordError
from vertizo.core.validate import non_negative

UNIT = 1e-12
"""μ² of one unit of spending."""


def units(mu: float) -> int:
    """The spending of a μ-GDP release, in units, rounded up."""
    return math.ceil(mu * mu / UNIT)


def mu_of_units(spent: int) -> float:
    """μ of that much spending."""
    return math.sqrt(spent * UNIT)


def digest(frame: bytes) -> bytes:
    """What a ledger keeps of a frame: BLAKE2b, 32 bytes."""
    return blake2b(frame, digest_size=32).digest()


@dataclass(frozen=True)
class Entry:
    """One answered query, as it is charged."""

    client: int
    number: int
    """Of the client's query in this run."""
    query: SupportsBytes
    """The query's frame, as it came."""
    ids: Tensor
    """The records that are charged, int64 [batch]."""
    cost: int
    """Units charged to each of them."""
    reply: SupportsBytes
    """The frame that will leave."""


@dataclass(frozen=True)
class Answered:
    """The last answered query of a client, as a ledger that outlived its process remembers it."""

    number: int
    digest: bytes
    """`digest` of the query's frame."""
    reply: bytes


class Ledger(Protocol):
    """Knows what every record was charged, and refuses what would overspend."""

    def admit(self, client: int, ids: Tensor, cost: int) -> None:
        """Find that these records may each be charged ``cost`` units for a reply to ``client``.

        Changes nothing.

        Raises:
            BudgetError: some record would be taken past the client's share of it.
            RepeatedRecordError, UnknownRecordError: the IDs are no set of known records.
        """

    def commit(self, entries: Sequence[Entry]) -> None:
        """Charge all of these and keep their replies, or none; then the replies may leave."""

    def begin_step(self, number: int) -> None:
        """Charge every record for step ``number`` of the server on a secret sample.

        Raises:
            BudgetError: all steps were made.
        """

    def settle(self) -> None:
        """A run that went on has repeated what it will repeat: the rest is charged as new."""

    def answered(self, client: int) -> Answered | None:
        """The last answered query of a client in this run, if the ledger outlives its process."""

    @property
    def counted(self) -> str:
        """What its budget is for, in words."""

    @property
    def steps(self) -> int:
        """Secret steps charged in this run."""

    @property
    def spent(self) -> int:
        """Units charged to the record that was charged most, over all clients."""

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint of a simulation must hold; a durable ledger is no part of any."""

    def load(self, state: dict[str, Any]) -> None:
        """Go on from ``state``."""


class MemoryLedger:
    """For simulations, whose guarantee is that of one run.

    Args:
        records: D.
        clients: M.
        share: units that one record may be charged for replies to one client.
        steps: secret steps that may be made.
    """

    counted = "this run alone; tuning is not counted"

    def __init__(self, records: int, clients: int, share: int, steps: int = 0) -> None:
        non_negative("a client's share of a record", share)
        self.share = share
        self._most_steps = steps
        self._steps = 0
        self._spent = np.zeros((clients, records), np.int64)

    @property
    def spent(self) -> int:
        """Units charged to the record that was charged most, over all clients."""
        return int(self._spent.sum(0).max(initial=0))

    @property
    def steps(self) -> int:
        """Secret steps charged so far."""
        return self._steps

    def admit(self, client: int, ids: Tensor, cost: int) -> None:
        """As of a `Ledger`."""
        check_admissible(self._spent[client], client, ids, cost, self.share)

    def commit(self, entries: Sequence[Entry]) -> None:
        """As of a `Ledger`."""
        for entry in entries:
            self._spent[entry.client, entry.ids.numpy()] += entry.cost

    def begin_step(self, number: int) -> None:
        """As of a `Ledger`."""
        check_step(number, self._steps, self._most_steps)
        self._steps += 1

    def settle(self) -> None:
        """Nothing is ever repeated."""

    def answered(self, client: int) -> Answered | None:
        """None: it does not outlive its process."""
        return None

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint of a simulation must hold."""
        return {"spent": torch.from_numpy(self._spent), "steps": torch.tensor(self._steps)}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from ``state``."""
        self._spent[...] = state["spent"].numpy()
        self._steps = int(state["steps"])


def check_admissible(
    spent: np.ndarray[Any, np.dtype[np.int64]], client: int, ids: Tensor, cost: int, share: int
) -> None:
    """Raise unless each of ``ids`` may be charged ``cost`` more units, of ``share`` in all.

    ``spent`` holds what each record was charged for replies to this client, [records].

    Raises:
        BudgetError, RepeatedRecordError, UnknownRecordError: see `Ledger.admit`.
    """
    rows = ids.numpy()
    if rows.size and not 0 <= rows.min() <= rows.max() < spent.size:
        raise UnknownRecordError(f"a record ID outside 0 to {spent.size - 1}")
    if np.unique(rows).size != rows.size:
        raise RepeatedRecordError("a record occurs twice in one batch")
    over = int(np.count_nonzero(spent.take(rows) + cost > share))
    if over:
        times = f"{share // cost} such replies" if cost else "nothing"
        raise BudgetError(
            f"{over} of {rows.size} records of this batch have no more left for client {client}, "
            f"whose share of a record is {times}"
        )


def check_step(number: int, made: int, most: int) -> None:
    """Raise BudgetError unless secret step ``number`` is the next one, of ``most`` in all."""
    if made >= most:
        raise BudgetError(f"all {most} steps on secret samples were made")
    if number != made:
        raise BudgetError(f"secret step {number}; {made} is the next one")
