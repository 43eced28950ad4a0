"""Random crops and mirror images of training images, which a client makes by itself.

VFL-CZOFO's CIFAR-10 has it: each party pads, crops and mirrors its part of an image on its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
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
