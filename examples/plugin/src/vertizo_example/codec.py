"""Embeddings in 16 bits a number, with one exponent for each row."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from vertizo.core.errors import MalformedError
from vertizo.core.options import Chosen
from vertizo.protocol.codecs.base import check_size

LARGEST = 2**15 - 1
NOT_FINITE = 2**15 - 1
"""In the place of the exponent of a row that has a number which is not finite."""


class SharedExponent(Chosen):
    """Block floating point: of each row an exponent e, and each number as k 2^e / 32767, k whole.

    A number is off by 1/32767 of the largest of its row at most. Bytes: exponents, then all k, each
    a little-endian int16.
    """

    keeps_differences: ClassVar[bool] = True
    keeps_two_numbers: ClassVar[bool] = False
    mixes_records: ClassVar[bool] = False  # a row is one record's

    def size(self, shape: tuple[int, ...]) -> int:
        return 2 * (_rows(shape) + math.prod(shape))

    def encode(self, array: Tensor) -> memoryview:
        shape = tuple(array.shape)
        numbers = array.contiguous().numpy().reshape(_rows(shape), -1 if array.numel() else 0)
        finite = np.isfinite(numbers).all(1)
        numbers = np.where(finite[:, None], numbers, 0).astype(np.float64)
        _, exponents = np.frexp(np.abs(numbers).max(1, initial=0.0))
        whole = np.rint(np.ldexp(numbers, -exponents[:, None]) * LARGEST)
        told = np.where(finite, exponents, NOT_FINITE)
        return memoryview(told.astype("<i2").tobytes() + whole.astype("<i2").tobytes())

    def decode(self, data: memoryview, shape: tuple[int, ...]) -> Tensor:
        check_size(data, shape, self.size(shape))
        found = np.frombuffer(data, "<i2").astype(np.int32)
        exponents, whole = found[: _rows(shape), None], found[_rows(shape) :]
        finite = exponents != NOT_FINITE
        if (np.abs(exponents[finite]) > 149).any():  # what float32 has, subnormal numbers included
            raise MalformedError("an exponent is beyond those of float32")
        rows = whole.reshape(len(exponents), -1 if len(whole) else 0) / LARGEST
        limit = np.finfo(np.float32).max
        numbers = np.ldexp(rows, np.where(finite, exponents, 0)).clip(-limit, limit)
        numbers = np.where(finite, numbers, np.nan).astype(np.float32)
        return torch.from_numpy(numbers.reshape(shape))


def _rows(shape: tuple[int, ...]) -> int:
    """How many there are with numbers: along all axes but the last."""
    return math.prod(shape[:-1]) if math.prod(shape) else 0
