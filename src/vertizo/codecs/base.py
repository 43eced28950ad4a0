"""What a codec must do: an array into bytes and back, the bytes being all that is sent."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Codec(Protocol):
    """One direction of one link; may hold state of its own (error feedback)."""

    name: str

    def encode(self, array: Tensor) -> memoryview:
        """The bytes that are sent for a float32 array."""

    def decode(self, data: memoryview, shape: tuple[int, ...]) -> Tensor:
        """The float32 array of that shape.

        Raises:
            MalformedError: the bytes are not this codec's for that shape.
        """
