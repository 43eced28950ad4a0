"""A ledger of more clients than a run has: each is charged what is its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from vertizo.privacy.accounting.events import Charges
from vertizo.privacy.ledger.base import Answered, Entry, Ids, Ledger


class LedgerView(Ledger):
    """The ledger of all parties, for a run of some of them.

    Args:
        whole: of all clients; open, and closed by whoever opened it.
        seats: each client's number in it, in the order of the run's own.
    """

    def __init__(self, whole: Ledger, seats: Sequence[int]) -> None:
        self._whole, self._seats = whole, tuple(seats)
        self.share = whole.share

    @property
    def charged(self) -> Ids:  # type: ignore[override]
        """As of a `Ledger`; of the run's own clients."""
        return self._whole.charged[list(self._seats)]

    @property
    def counted(self) -> str:
        """As of a `Ledger`."""
        return self._whole.counted

    def charges(self) -> Charges | None:
        """As of a `Ledger`."""
        return self._whole.charges()

    @property
    def steps(self) -> int:
        """As of a `Ledger`."""
        return self._whole.steps

    def admit(self, client: int, ids: Tensor, cost: int) -> None:
        """As of a `Ledger`."""
        self._whole.admit(self._seats[client], ids, cost)

    def commit(self, entries: Sequence[Entry]) -> None:
        """As of a `Ledger`."""
        self._whole.commit([replace(one, client=self._seats[one.client]) for one in entries])

    def begin_step(self, number: int) -> None:
        """As of a `Ledger`."""
        self._whole.begin_step(number)

    def settle(self) -> None:
        """As of a `Ledger`."""
        self._whole.settle()

    def answered(self, client: int) -> Answered | None:
        """As of a `Ledger`."""
        return self._whole.answered(self._seats[client])
