"""No compression: the numbers themselves, in 4 or 2 bytes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from vertizo.core.options import Options
from vertizo.core.plugins.lazy_import import torch
from vertizo.protocol.codecs.base import check_size

if TYPE_CHECKING:
    from torch import Tensor

FloatName = Literal["float32", "float16", "bfloat16"]


class NoCompression(Options):
    """Numbers as they are: float32, or rounded to float16 or bfloat16 (dtype).

    >>> codec = NoCompression(dtype="float16")
    >>> codec.decode(codec.encode(torch.tensor([1.0, 2.5])), (2,)).tolist()
    [1.0, 2.5]
    """

    keeps_differences: ClassVar[bool] = True
    mixes_records: ClassVar[bool] = False

    name: Literal["none"] = "none"
    dtype: FloatName = "float32"
    """What numbers are rounded to."""

    @property
    def keeps_two_numbers(self) -> bool:
        """Only float32 does; the others round."""
        return self.dtype == "float32"

    def size(self, shape: tuple[int, ...]) -> int:
        """4 or 2 bytes a number."""
        return math.prod(shape) * (4 if self.dtype == "float32" else 2)

    def encode(self, array: Tensor) -> memoryview:
        """4 or 2 bytes a number, little endian, row by row."""
        dtype = self.dtype
        if dtype == "float32":
            numbers = array.numpy()
        elif dtype == "bfloat16":  # which NumPy does not have
            numbers = array.to(torch.bfloat16).view(torch.int16).numpy()
        else:
            with np.errstate(over="ignore"):  # what float16 cannot hold becomes infinite
                numbers = array.numpy().astype(np.float16)
        return np.ascontiguousarray(numbers).reshape(-1).view(np.uint8).data

    def decode(self, data: memoryview, shape: tuple[int, ...]) -> Tensor:
        """The array; MalformedError unless ``data`` has exactly its size."""
        check_size(data, shape, self.size(shape))
        dtype = self.dtype
        if dtype == "bfloat16":
            bits = torch.from_numpy(np.frombuffer(data, np.int16).reshape(shape).copy())
            return bits.view(torch.bfloat16).to(torch.float32)
        numbers = np.frombuffer(data, dtype).reshape(shape)
        return torch.from_numpy(numbers.astype(np.float32))  # a copy: frames are read-only
