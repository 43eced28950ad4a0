"""No compression: the numbers themselves, in 4 or 2 bytes."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from vertizo.errors import MalformedError

FloatName = Literal["float32", "float16", "bfloat16"]


class NoCompression:
    """Numbers as they are; float16 and bfloat16 round them to half the bytes.

    >>> codec = NoCompression("float16")
    >>> codec.decode(codec.encode(torch.tensor([1.0, 2.5])), (2,)).tolist()
    [1.0, 2.5]
    """

    name = "none"

    def __init__(self, dtype: FloatName = "float32") -> None:
        self._dtype = dtype
        self._size = 4 if dtype == "float32" else 2

    def encode(self, array: Tensor) -> memoryview:
        """4 or 2 bytes a number, little endian, row by row."""
        if self._dtype == "bfloat16":  # which NumPy does not have
            numbers = array.to(torch.bfloat16).view(torch.int16).numpy()
        else:
            with np.errstate(over="ignore"):  # what float16 cannot hold becomes infinite
                numbers = array.numpy().astype(self._dtype, copy=False)
        return np.ascontiguousarray(numbers).reshape(-1).view(np.uint8).data

    def decode(self, data: memoryview, shape: tuple[int, ...]) -> Tensor:
        """The array; MalformedError unless ``data`` has exactly its size."""
        expected = math.prod(shape) * self._size
        if len(data) != expected or math.prod(max(side, 1) for side in shape) >= 2**48:
            raise MalformedError(f"{len(data)} bytes for shape {shape}; {expected} were expected")
        if self._dtype == "bfloat16":
            bits = torch.from_numpy(np.frombuffer(data, np.int16).reshape(shape).copy())
            return bits.view(torch.bfloat16).to(torch.float32)
        numbers = np.frombuffer(data, self._dtype).reshape(shape)
        return torch.from_numpy(numbers.astype(np.float32))  # a copy: frames are read-only
