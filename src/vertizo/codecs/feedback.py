"""Error feedback: what coding took from a record's array is added to its next one.

Kept by the sender alone, for each record (Seide et al. 2014; Karimireddy et al. 2019). A codec that
loses much, such as top-k, then loses nothing for good: it is late.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Feedback:
    """What one sender still owes for each record.

    A query's points all get what is owed, and what they lose is averaged over them: for a pair
    ``h±`` that is what its midpoint lost.

    Args:
        records: D.
    """

    def __init__(self, records: int) -> None:
        self._records = records
        self._owed: Tensor | None = None

    def corrected(self, ids: Tensor, array: Tensor) -> Tensor:
        """The array [..., batch, n] with what is owed to these records added."""
        if self._owed is None:
            self._owed = torch.zeros(self._records, array.shape[-1])
        return array + self._owed.index_select(0, ids)

    def absorb(self, ids: Tensor, wanted: Tensor, sent: Tensor) -> None:
        """Note what is owed once ``sent`` is what the receiver sees of ``wanted``.

        Where coding broke a number, nothing is owed: the receiver will refuse the array.
        """
        assert self._owed is not None
        lost = (wanted - sent).nan_to_num_(0.0, 0.0, 0.0)
        if lost.dim() == 3:
            lost = lost.mean(0)
        self._owed.index_copy_(0, ids, lost)

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must hold."""
        return {} if self._owed is None else {"owed": self._owed}

    def load(self, state: dict[str, Tensor]) -> None:
        """Go on from ``state``."""
        owed = state.get("owed")
        self._owed = None if owed is None else owed.clone()
