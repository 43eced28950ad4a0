"""Which records make up which batch: a fresh permutation every epoch, cut in order.

Each record is in exactly one batch of an owner's epoch, which is what the exact accounting of the
replies rests on. Batch number n is a function of the stream and n: nothing needs to be saved.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from vertizo.core import arrays
from vertizo.core.randomness import Stream


@dataclass(frozen=True)
class Augmentation:
    """Crops and mirrors images at random; only the query's number decides how."""

    stream: Stream
    """The client's own randomness."""
    crop: int
    """Pixels of zeros on each side, out of which an image of the old size is cut."""
    flip: bool
    """Whether half of the images, by chance, have left and right exchanged."""

    def __call__(self, number: int, images: Tensor) -> Tensor:
        """[batch, channels, height, width] → the same, each image by itself."""
        batch, _, height, width = images.shape
        generator = self.stream.generator(number)
        down, right = generator.integers(0, 2 * self.crop + 1, (2, batch, 1))
        rows, columns = down + np.arange(height), right + np.arange(width)
        if self.flip:
            mirrored = generator.random((batch, 1)) < 0.5
            columns = np.where(mirrored, columns[:, ::-1], columns)
        which, down, right = (
            arrays.here(torch.from_numpy(np.ascontiguousarray(part)), images.device)
            for part in (np.arange(batch)[:, None, None], rows[:, :, None], columns[:, None, :])
        )
        whole = pad(images, (self.crop,) * 4).permute(0, 2, 3, 1)
        cut = whole[which, down, right]
        return cut.permute(0, 3, 1, 2).contiguous()


class Batches:
    """One owner's batches of D records, by its own stream: B each, or fewer in an epoch's last."""

    def __init__(self, records: int, size: int, stream: Stream) -> None:
        self.records, self.size, self._stream = records, size, stream
        self.per_epoch = -(-records // size)
        """Batches in an epoch, ⌈D/B⌉."""
        self._epoch: tuple[int, NDArray[np.int64]] | None = None

    def ids(self, number: int) -> Tensor:
        """Record IDs of batch ``number``, int64 [batch]."""
        epoch, position = divmod(number, self.per_epoch)
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = epoch, self._stream.generator(epoch).permutation(self.records)
        return torch.from_numpy(self._epoch[1][position * self.size : (position + 1) * self.size])
