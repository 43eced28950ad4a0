"""Packing: small whole numbers without gaps between their bits, and float32 numbers as bytes.

Number ``i`` of width ``w`` takes bits ``i·w`` to ``i·w + w − 1``, lowest first; bit ``j`` of the
whole is bit ``j mod 8``, from the lowest, of byte ``⌊j / 8⌋``. Bits after the last number are zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vertizo.core.errors import MalformedError
from vertizo.core.plugins.lazy_import import torch

if TYPE_CHECKING:
    from torch import Tensor

Whole = np.ndarray[Any, np.dtype[np.unsignedinteger[Any]]]


def packed_size(count: int, width: int) -> int:
    """Bytes of so many numbers of that width."""
    return (count * width + 7) // 8


def pack(numbers: NDArray[Any], width: int) -> bytes:
    """The bytes of non-negative whole numbers below 2^width; ``width`` is 1 to 32."""
    if width in (8, 16):
        return numbers.astype("<u1" if width == 8 else "<u2").tobytes()
    if width == 1:
        return np.packbits(numbers.astype(bool), bitorder="little").tobytes()
    if 8 % width == 0:
        in_byte = 8 // width
        padded = np.zeros(-(-numbers.size // in_byte) * in_byte, np.uint8)
        padded[: numbers.size] = numbers.reshape(-1)
        packed = padded[::in_byte].copy()
        for place in range(1, in_byte):
            packed |= padded[place::in_byte] << (place * width)
        return packed.tobytes()
    octets = numbers.astype("<u4").reshape(-1, 1).view(np.uint8)
    bits = np.unpackbits(octets, axis=1, count=width, bitorder="little")
    return np.packbits(bits, bitorder="little").tobytes()


def unpack(data: memoryview, count: int, width: int) -> Whole:
    """Read numbers; ``data`` has exactly their size, MalformedError if bits follow the last."""
    packed = np.frombuffer(data, np.uint8)
    unused = packed.size * 8 - count * width
    if unused and packed[-1] >> (8 - unused):
        raise MalformedError(f"bits are set after the last of {count} packed numbers")
    if width == 8:
        return packed.copy()
    if width == 16:
        return packed.view("<u2").astype(np.uint16)
    if width == 1:
        return np.unpackbits(packed, count=count, bitorder="little")
    if 8 % width == 0:
        in_byte, mask = 8 // width, (1 << width) - 1
        numbers = np.empty((packed.size, in_byte), np.uint8)
        for place in range(in_byte):
            numbers[:, place] = (packed >> (place * width)) & mask
        return numbers.reshape(-1)[:count]
    bits = np.unpackbits(packed, count=count * width, bitorder="little").reshape(count, width)
    octets = np.zeros((count, 4), np.uint8)
    filled = np.packbits(bits, axis=1, bitorder="little")
    octets[:, : filled.shape[1]] = filled
    return octets.view("<u4").reshape(-1)


def pack_floats(numbers: Tensor) -> bytes:
    """The numbers as float32, 4 bytes each, little endian."""
    return numbers.to(torch.float32).numpy().astype("<f4", copy=False).tobytes()


def unpack_floats(data: memoryview) -> Tensor:
    """Read float32 numbers, [len(data) / 4]."""
    return torch.from_numpy(np.frombuffer(data, "<f4").astype(np.float32))
