"""The interface of codecs: arrays into bytes and back; the bytes are all that is sent.

A codec holds no state and is its own configuration: both sides make the same one from the same
options. A *row* below is the last axis of an array, which is what one record has; an array of one
axis is one row.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from vertizo.core.errors import MalformedError
from vertizo.core.options import Options
from vertizo.core.plugins.lazy_import import torch
from vertizo.protocol.codecs import packing

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 3.4028234663852886e38
"""Largest float32."""
Scale = Literal["array", "record"]
"""What one scale is for: each point of a query (else the whole array), or each row."""


class Codec(Protocol):
    """A way of writing arrays as bytes."""

    @property
    def name(self) -> str:
        """The name that chooses it in a configuration."""

    @property
    def keeps_differences(self) -> bool:
        """Whether points that are close to each other keep their distance in decoding."""

    @property
    def keeps_two_numbers(self) -> bool:
        """Whether an array of two numbers, as two losses are, comes back exactly."""

    @property
    def mixes_records(self) -> bool:
        """Whether what is decoded for one record depends on the others of its array."""

    def size(self, shape: tuple[int, ...]) -> int:
        """Bytes of an array of that shape, whatever its numbers are."""

    def encode(self, array: Tensor) -> memoryview:
        """The bytes that are sent for a float32 array."""

    def decode(self, data: memoryview, shape: tuple[int, ...]) -> Tensor:
        """The float32 array of that shape, the caller's own; MalformedError for other bytes."""


def check_size(data: memoryview, shape: tuple[int, ...], expected: int) -> None:
    """Raise MalformedError unless ``data`` has that size, for a shape that can be allocated.

    Sides of an empty array are bounded as well: PyTorch multiplies them for its strides.
    """
    if len(data) != expected or math.prod(max(side, 1) for side in shape) >= 2**48:
        raise MalformedError(f"{len(data)} bytes for shape {shape}; {expected} were expected")


def rows_of(shape: tuple[int, ...]) -> tuple[int, int]:
    """Number of rows, and numbers in one."""
    return math.prod(shape[:-1]), shape[-1] if shape else 1


def held(array: Tensor, are_finite: Tensor) -> Tensor:
    """Cut numbers to the range of float32 where what they were made of is finite."""
    return torch.where(are_finite, array.clamp(-LARGEST, LARGEST), array)


class Grouped(Options):
    """A codec of groups: equal, consecutive parts of an array that have a scale of their own.

    Bytes: the floats of all groups (float32), then a packed code for each number or pair. A group
    with a NaN or an infinity has no finite number after decoding.
    """

    if TYPE_CHECKING:
        scale: Scale

    keeps_differences: ClassVar[bool] = False
    floats: ClassVar[int] = 1
    """Floats of each group."""

    @property
    def mixes_records(self) -> bool:
        """Whether one scale is for all records."""
        return self.scale == "array"

    @abstractmethod
    def _codes_of(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Number of codes of an array that is not empty, and bits of one."""

    @abstractmethod
    def _coded(self, numbers: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Floats, group by group, and codes of [groups, numbers], an array of that shape."""

    @abstractmethod
    def _decoded(self, floats: Tensor, codes: packing.Whole, shape: tuple[int, ...]) -> Tensor:
        """The numbers in order, float32, of floats [groups, floats] and codes."""

    def _groups(self, shape: tuple[int, ...]) -> int:
        if not math.prod(shape):
            return 0
        if self.scale == "record":
            return rows_of(shape)[0]
        return shape[0] if len(shape) == 3 else 1

    def size(self, shape: tuple[int, ...]) -> int:
        """Bytes: 4 for each float, and the codes' bits rounded up."""
        if not math.prod(shape):
            return 0
        return 4 * self.floats * self._groups(shape) + packing.packed_size(*self._codes_of(shape))

    def encode(self, array: Tensor) -> memoryview:
        """The floats of all groups, then the codes."""
        shape = tuple(array.shape)
        groups = self._groups(shape)
        if not groups:
            return memoryview(b"")
        floats, codes = self._coded(array.reshape(groups, -1), shape)
        packed = packing.pack(codes.numpy(), self._codes_of(shape)[1])
        return memoryview(packing.pack_floats(floats) + packed)

    def decode(self, data: memoryview, shape: tuple[int, ...]) -> Tensor:
        """The array of that shape; MalformedError for other bytes."""
        check_size(data, shape, self.size(shape))
        groups = self._groups(shape)
        if not groups:
            return torch.zeros(shape)
        end = 4 * self.floats * groups
        floats = packing.unpack_floats(data[:end]).view(groups, -1)
        return self._decoded(
            floats, packing.unpack(data[end:], *self._codes_of(shape)), shape
        ).view(shape)
