"""Which records make up which batch: a fresh permutation every epoch, cut in order.

Each record is in exactly one batch of an owner's epoch, which is what the exact accounting of the
replies rests on. Batch number n is a function of the stream and n: nothing needs to be saved.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vertizo.core.randomness import Stream


class Batches:
    """The batches of one owner of D records: B records each, or fewer in an epoch's last.

    The permutations are drawn from the owner's own stream.
    """

    def __init__(self, records: int, size: int, stream: Stream) -> None:
        self.records, self.size, self._stream = records, size, stream
        self.per_epoch = -(-records // size)
        """Batches in an epoch, ⌈D/B⌉."""
        self._epoch: tuple[int, Tensor] | None = None

    def ids(self, number: int) -> Tensor:
        """Record IDs of batch ``number``, int64 [batch]."""
        epoch, position = divmod(number, self.per_epoch)
        if self._epoch is None or self._epoch[0] != epoch:
            permutation = self._stream.generator(epoch).permutation(self.records)
            self._epoch = epoch, torch.from_numpy(permutation)
        return self._epoch[1][position * self.size : (position + 1) * self.size]
