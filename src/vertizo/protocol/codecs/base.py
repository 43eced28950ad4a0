"""What a codec must do: an array into bytes and back, the bytes being all that is sent.

A codec holds no state and is its own configuration: both sides make the same one from the same
options. A *row* below is the last axis of an array, which is what one record has; an array of one
axis is one row.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, Protocol

from vertizo.core.errors import MalformedError

if TYPE_CHECKING:
    from torch import Tensor

Scale = Literal["array", "record"]
"""What one scale is for: each point of a query (else the whole array), or each row."""


class Codec(Protocol):
    """One way of writing arrays."""

    @property
    def name(self) -> str:
        """What chooses it in a configuration."""

    @property
    def keeps_differences(self) -> bool:
        """Whether points that are close to each other are as far apart after decoding."""

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
        """The float32 array of that shape, which is the caller's own.

        Raises:
            MalformedError: the bytes are not this codec's for that shape.
        """


def check_size(data: memoryview, shape: tuple[int, ...], expected: int) -> None:
    """MalformedError unless there are so many bytes, for a shape that can be allocated.

    Sides of an empty array are bounded as well: PyTorch multiplies them for its strides.
    """
    if len(data) != expected or math.prod(max(side, 1) for side in shape) >= 2**48:
        raise MalformedError(f"{len(data)} bytes for shape {shape}; {expected} were expected")


def rows_of(shape: tuple[int, ...]) -> tuple[int, int]:
    """Number of rows, and numbers in one."""
    return math.prod(shape[:-1]), shape[-1] if shape else 1


def groups_of(shape: tuple[int, ...], scale: Scale) -> int:
    """Number of equal, consecutive parts of an array that have a scale of their own."""
    if not math.prod(shape):
        return 0
    if scale == "record":
        return rows_of(shape)[0]
    return shape[0] if len(shape) == 3 else 1
