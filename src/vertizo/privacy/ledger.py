"""How often each record was charged, and the filter that refuses to go further."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vertizo.errors import BudgetError, RepeatedRecordError
from vertizo.validate import positive


class Ledger:
    """Participations of every record, with each client's share of them.

    The charge depends on record IDs and public constants only, so that a refusal says nothing
    about the data. Each client has a share of its own: none can exhaust a record for the others.

    This one lives in memory and serves simulations, whose guarantee is that of one run.

    Args:
        records: D.
        clients: M.
        per_client: how many releases to each client may depend on one record.
    """

    def __init__(self, records: int, clients: int, per_client: int) -> None:
        positive("participations per client", per_client)
        self.per_client = per_client
        self._counts = torch.zeros(clients, records, dtype=torch.int32)

    @property
    def max_participations(self) -> int:
        """The most replies that may ever depend on one record: all clients' shares."""
        return self.per_client * self._counts.shape[0]

    @property
    def spent(self) -> int:
        """The most replies that depend on one record so far, over all clients."""
        return int(self._counts.sum(0).max()) if self._counts.numel() else 0

    def charge(self, client: int, ids: Tensor, entries: int = 1) -> None:
        """``entries`` more releases to ``client`` depend on these records.

        Raises:
            BudgetError: some record is at its limit; nothing was charged.
            RepeatedRecordError: a record occurs twice; nothing was charged.
        """
        if np.unique(ids.numpy()).size != ids.numel():
            raise RepeatedRecordError("a record occurs twice in one batch")
        counts = self._counts[client]
        after = counts.index_select(0, ids) + entries
        over = int((after > self.per_client).sum())
        if over:
            raise BudgetError(
                f"{over} of {ids.numel()} records of this batch were already used in "
                f"{self.per_client} replies to client {client}, which is its whole share"
            )
        counts.index_copy_(0, ids, after)

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint of a simulation must hold."""
        return {"counts": self._counts}

    def load(self, state: dict[str, Tensor]) -> None:
        """Go on from ``state``."""
        self._counts.copy_(state["counts"])
