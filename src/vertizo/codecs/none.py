"""No compression: the numbers themselves, in 4 or 2 bytes."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from vertizo.errors import MalformedError

FloatName = Literal["float32", "float16", "bfloat16"]
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class NoCompression:
    """Numbers as they are; float16 and bfloat16 round them to half the bytes.

    >>> codec = NoCompression("float16")
    >>> codec.decode(codec.encode(torch.tensor([1.0, 2.5])), (2,)).tolist()
    [1.0, 2.5]
    """

    name = "none"

    def __init__(self, dtype: FloatName = "float32") -> None:
        self._dtype = _DTYPES[dtype]

    def encode(self, array: Tensor) -> bytes:
        """4 or 2 bytes a number, little endian, row by row."""
        return array.to(self._dtype).contiguous().view(torch.uint8).numpy().tobytes()

    def decode(self, data: bytes, shape: tuple[int, ...]) -> Tensor:
        """The array; MalformedError unless ``data`` has exactly its size."""
        expected = math.prod(shape) * self._dtype.itemsize
        if len(data) != expected:
            raise MalformedError(f"{len(data)} bytes for shape {shape}; {expected} were expected")
        if not data:
            return torch.zeros(shape)
        # A copy, because PyTorch does not know read-only memory.
        array = torch.frombuffer(bytearray(data), dtype=self._dtype)
        return array.to(torch.float32).view(shape)
