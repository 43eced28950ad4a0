"""Pixels as numbers for a model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def scaled(pixels: NDArray[np.uint8], means: Sequence[float], spreads: Sequence[float]) -> Tensor:
    """Levels 0 to 255 to ``(p/255 − mean)/spread`` of each channel.

    Args:
        pixels: [records, channels, height, width].
        means: of each channel, public constants.
        spreads: likewise.

    Returns:
        Float32 of the same shape.
    """
    result = torch.empty(pixels.shape, dtype=torch.float32)
    for channel, (mean, spread) in enumerate(zip(means, spreads, strict=True)):
        levels = (np.arange(256, dtype=np.float32) / np.float32(255) - mean) / spread
        np.take(levels.astype(np.float32), pixels[:, channel], out=result[:, channel].numpy())
    return result
