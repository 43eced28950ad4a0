"""A ledger of all clients, as a run of some of them sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from vertizo.privacy.accounting.events import Charges
from vertizo.privacy.ledger.base import Answered, Entry, Ids, Ledger


class LedgerView(Ledger):
    """The ledger of all clients, for a run of some of them.

    Args:
        whole: the open ledger of all clients; whoever opened it closes it.
        seats: each client's number in that ledger, in the order of the run's own.
    """

    def __init__(self, whole: Ledger, seats: Sequence[int]) -> None:
        self._whole, self._seats = whole, tuple(seats)
        self.share = whole.share

    @property
    def charged(self) -> Ids:  # type: ignore[override]
        """Units charged, [clients, records], of the run's own clients."""
        return self._whole.charged[list(self._seats)]

    @property
    def counted(self) -> str:
        """See `Ledger.counted`."""
        return self._whole.counted

    def charges(self) -> Charges | None:
        """See `Ledger.charges`."""
        return self._whole.charges()

    @property
    def steps(self) -> int:
        """See `Ledger.steps`."""
        return self._whole.steps

    def admit(self, client: int, ids: Tensor, cost: int) -> None:
        """See `Ledger.admit`."""
        self._whole.admit(self._seats[client], ids, cost)

    def commit(self, entries: Sequence[Entry]) -> None:
        """See `Ledger.commit`."""
        self._whole.commit([replace(one, client=self._seats[one.client]) for one in entries])

    def begin_step(self, number: int) -> None:
        """See `Ledger.begin_step`."""
        self._whole.begin_step(number)

    def settle(self) -> None:
        """See `Ledger.settle`."""
        self._whole.settle()

    def answered(self, client: int) -> Answered | None:
        """See `Ledger.answered`."""
        return self._whole.answered(self._seats[client])
