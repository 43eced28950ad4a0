"""Image tables that keep a byte for each number on a card, and give back the same float32."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vertizo.core import arrays

LEVELS = 256
CHUNK = 2**24
"""Bytes of a table that are copied to a card at a time."""


@dataclass(frozen=True)
class LevelTable:
    """A table of images whose channels have at most 256 different numbers each, as 8-bit images do.

    Scaling pixels gives each channel one float32 for each of 256 levels. Kept are a pixel's level
    and its channel's numbers, in which rows of the table are looked up, the same to the bit.
    """

    levels: Tensor
    """uint8 [records, channels, ...]"""
    numbers: Tensor
    """float32 [channels · 256], the numbers of one channel after the other."""

    def rows(self, ids: Tensor) -> Tensor:
        """Rows by their IDs, int64 [batch]: float32 [batch, channels, ...], on its device."""
        levels = arrays.rows(self.levels, ids)
        channels = levels.shape[1]
        starts = torch.arange(0, channels * LEVELS, LEVELS, dtype=torch.int32, device=levels.device)
        places = levels.int() + starts.view(channels, *[1] * (levels.ndim - 2))
        return self.numbers.index_select(0, places.reshape(-1)).view(levels.shape)


def level_table(table: Tensor, device: torch.device) -> LevelTable | None:
    """Copy images [records, channels, height, width] to a device, in a quarter of their memory.

    None if a channel has more than 256 different numbers, or if they are no float32 images.
    """
    if table.dtype != torch.float32 or table.ndim != 4 or not table.numel():
        return None
    bits = table.view(torch.int32)  # zero has two signs, and both stay
    rows = max(1, CHUNK // (bits[0].nbytes or 1))
    known = []
    for channel in range(table.shape[1]):
        found = torch.empty(0, dtype=torch.int32, device=device)
        for some in torch.split(bits[:, channel], rows):
            found = torch.unique(torch.cat([found, some.to(device).reshape(-1)]))
            if len(found) > LEVELS:
                return None
        known.append(found)
    levels = torch.empty(table.shape, dtype=torch.uint8, device=device)
    numbers = torch.zeros(len(known), LEVELS, device=device)
    for channel, found in enumerate(known):
        numbers[channel, : len(found)] = found.view(torch.float32)
        for start in range(0, len(table), rows):
            some = bits[start : start + rows, channel].to(device)
            levels[start : start + rows, channel] = torch.searchsorted(found, some.contiguous())
    return LevelTable(levels, numbers.view(-1))
