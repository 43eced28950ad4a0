"""Embeddings in half precision."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from vertizo.core.options import Chosen
from vertizo.protocol.codecs.base import check_size


class Half(Chosen):
    """16 bits a number: 11 of precision, up to 65,504; what is larger arrives as infinite."""

    keeps_differences: ClassVar[bool] = True
    keeps_two_numbers: ClassVar[bool] = False
    mixes_records: ClassVar[bool] = False

    def size(self, shape: tuple[int, ...]) -> int:
        return 2 * math.prod(shape)

    def encode(self, array: Tensor) -> memoryview:
        halves = array.contiguous().to(torch.float16).numpy()
        return memoryview(halves.astype("<f2", copy=False).tobytes())

    def decode(self, data: memoryview, shape: tuple[int, ...]) -> Tensor:
        check_size(data, shape, self.size(shape))
        halves = np.frombuffer(data, "<f2").astype(np.float32)
        return torch.from_numpy(halves).view(shape)
