"""Error feedback: what coding takes from a record's arrays is not lost for good.

There are two kinds of arrays, and a way for each:

* an *embedding* is a state: the next one replaces it. Both sides remember what the receiver has of
  each record, and only the difference to it is coded (`Received`; Richtárik et al. 2021, for VFL
  Valdeira et al. 2024). As training settles the differences shrink, and the error with them.
* a *gradient* is a step: what counts is the sum of all. The sender remembers what it still owes
  each record and adds it to the next (`Feedback`; Seide et al. 2014, Karimireddy et al. 2019).

Both need a codec that loses less than it is given, which `loss_of` measures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vertizo.core.plugins.lazy_import import torch
from vertizo.core.randomness import Stream
from vertizo.core.state import Stateful
from vertizo.protocol.codecs.base import Codec

if TYPE_CHECKING:
    from torch import Tensor

MOST = 0.9
"""Share of an array's square that a codec may lose for feedback to settle."""


class Received(Stateful):
    """One client's embeddings as the receiver has them, by record; both sides keep them alike."""

    STATE = ("_rows",)

    def __init__(self, records: int, dim: int) -> None:
        self._rows = torch.zeros(records, dim)

    def known(self, ids: Tensor) -> Tensor:
        """The embeddings of these records, [batch, d_h]: subtracted before coding, added after."""
        return self._rows.index_select(0, ids)

    def learn(self, ids: Tensor, embeddings: Tensor) -> None:
        """Note that embeddings [points, batch, d_h] arrived; of several points the mean is kept."""
        self._rows.index_copy_(0, ids, embeddings.mean(0))


class Feedback(Stateful):
    """What one sender's coding has lost of each record's replies, and it still owes."""

    STATE = ("_owed",)

    def __init__(self, records: int) -> None:
        self._records = records
        self._owed: Tensor | None = None

    def corrected(self, ids: Tensor, array: Tensor) -> Tensor:
        """Add what is owed to these records to an array [batch, n]."""
        if self._owed is None:
            self._owed = torch.zeros(self._records, array.shape[-1])
        return array + self._owed.index_select(0, ids)

    def absorb(self, ids: Tensor, wanted: Tensor, sent: Tensor) -> None:
        """Note what is owed once ``sent`` is what the receiver sees of ``wanted``.

        Where coding broke a number, nothing is owed: the receiver will refuse the array.
        """
        assert self._owed is not None
        self._owed.index_copy_(0, ids, (wanted - sent).nan_to_num_(0.0, 0.0, 0.0))


def loss_of(codec: Codec, batch: int) -> float:
    """Share of a normal array's square that a codec loses, [1, batch, 64]."""
    numbers = Stream.from_seed(0).child("feedback").generator().standard_normal((1, batch, 64))
    array = torch.from_numpy(numbers).to(torch.float32)
    lost = codec.decode(codec.encode(array), tuple(array.shape)) - array
    return float(lost.square().sum() / array.square().sum())
