"""The top-k codec: the largest numbers of every row, and where they were.

Bytes: places, then values (float32, row by row, by rising column). Places of a row of d numbers, k
of them kept, are a bitmap of d bits or k packed columns of ⌈log₂ d⌉ bits, whichever is less (the
bitmap where they are equal), and nothing where all are kept; all rows follow without gaps.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from vertizo.core.errors import MalformedError
from vertizo.core.options import Options
from vertizo.core.plugins.lazy_import import torch
from vertizo.protocol.codecs.base import check_size, rows_of
from vertizo.protocol.codecs.none import NoCompression
from vertizo.protocol.codecs.packing import pack, packed_size, unpack

if TYPE_CHECKING:
    from torch import Tensor

_VALUES = NoCompression()


class TopK(Options):
    """The numbers of largest absolute value of every row; the others become zero.

    NaN counts as largest. Nothing is selected across records; an array of one axis is one row.

    >>> codec = TopK(fraction=0.5)
    >>> codec.decode(codec.encode(torch.tensor([1.0, -4.0, 3.0, 0.5])), (4,)).tolist()
    [0.0, -4.0, 3.0, 0.0]
    """

    keeps_differences: ClassVar[bool] = False
    keeps_two_numbers: ClassVar[bool] = False
    mixes_records: ClassVar[bool] = False

    name: Literal["top-k"] = "top-k"
    fraction: float = Field(default=0.1, gt=0, le=1)
    """Share of a row's numbers that is kept: the nearest whole number, and at least one."""

    def kept(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the values that are kept: the last axis is shorter."""
        if not math.prod(shape):
            return shape
        return (*shape[:-1], max(1, round(self.fraction * rows_of(shape)[1])))

    def places_size(self, shape: tuple[int, ...]) -> int:
        """Bytes of the places."""
        rows, columns = rows_of(shape)
        kept = self.kept(shape)[-1]  # all of an empty array
        if kept == columns:
            return 0
        return packed_size(rows * min(columns, kept * _width(columns)), 1)

    def size(self, shape: tuple[int, ...]) -> int:
        """Bytes of the places, and 4 for each value."""
        return self.places_size(shape) + _VALUES.size(self.kept(shape))

    def split(self, array: Tensor) -> tuple[bytes, Tensor]:
        """Split an array into its places and its values, in the shape that `kept` says."""
        shape = tuple(array.shape)
        rows, columns = rows_of(shape)
        kept = self.kept(shape)
        if not array.numel() or kept[-1] == columns:
            return b"", array.reshape(kept)
        numbers = array.reshape(rows, columns)
        places = numbers.abs().topk(kept[-1], dim=1, sorted=False).indices.sort(dim=1).values
        values = numbers.gather(1, places).view(kept)
        if columns > kept[-1] * _width(columns):
            return pack(places.numpy(), _width(columns)), values
        bitmap = torch.zeros(rows, columns, dtype=torch.bool).scatter_(1, places, True)
        return pack(bitmap.numpy(), 1), values

    def join(self, places: memoryview, values: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Join places and values to the array of that shape; ``places`` must have their size.

        MalformedError where they are not as many different ones as there are values.
        """
        rows, columns = rows_of(shape)
        if values.numel() == math.prod(shape):
            return values.view(shape)
        kept = values.shape[-1]
        array = torch.zeros(rows, columns)
        if columns > kept * _width(columns):
            found = unpack(places, rows * kept, _width(columns)).astype(np.int64)
            indices = found.reshape(rows, kept)
            if indices.max() >= columns or (np.diff(indices, axis=1) <= 0).any():
                raise MalformedError(f"columns of kept values do not rise from 0 to {columns - 1}")
            array.scatter_(1, torch.from_numpy(indices), values.view(rows, kept))
        else:
            bitmap = unpack(places, rows * columns, 1).reshape(rows, columns)
            if (np.count_nonzero(bitmap, axis=1) != kept).any():
                raise MalformedError(f"a row has not {kept} kept values of {columns}")
            array[torch.from_numpy(bitmap.view(bool))] = values.reshape(-1)
        return array.view(shape)

    def encode(self, array: Tensor) -> memoryview:
        """The places, then the values."""
        places, values = self.split(array)
        return memoryview(places + bytes(_VALUES.encode(values)))

    def decode(self, data: memoryview, shape: tuple[int, ...]) -> Tensor:
        """The array of that shape; MalformedError for other bytes."""
        check_size(data, shape, self.size(shape))
        end = self.places_size(shape)
        return self.join(data[:end], _VALUES.decode(data[end:], self.kept(shape)), shape)


def _width(columns: int) -> int:
    """Bits of a column's number."""
    return (columns - 1).bit_length()
