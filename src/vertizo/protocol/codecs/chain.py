"""The chain codec: codecs that select values, and one that writes what they select.

Bytes: the places that each selecting codec chose, in order, then the last codec's bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import model_validator

from vertizo.core.options import Options
from vertizo.protocol.codecs.base import check_size
from vertizo.protocol.codecs.catalog import BasicCodec
from vertizo.protocol.codecs.top_k import TopK
from vertizo.protocol.codecs.uniform import Uniform

if TYPE_CHECKING:
    from torch import Tensor


class Chain(Options):
    """Every codec but the last selects (top-k); the last one writes the values that are left.

    The values of a query of several points have several points as well, and a record's values are a
    row, so that the last codec's scales are for what they would be for without a selection.

    >>> import torch
    >>> codec = Chain(codecs=(TopK(fraction=0.5), Uniform(bits=1)))
    >>> array = torch.tensor([1.0, -4.0, 3.0, 0.5])
    >>> codec.decode(codec.encode(array), (4,)).tolist(), len(codec.encode(array))
    ([0.0, -4.0, 3.0, 0.0], 10)
    """

    keeps_differences: ClassVar[bool] = False
    keeps_two_numbers: ClassVar[bool] = False

    name: Literal["chain"] = "chain"
    codecs: tuple[BasicCodec, ...] = (TopK(), Uniform())

    @model_validator(mode="after")
    def _composes(self) -> Chain:
        if len(self.codecs) < 2:
            raise ValueError(f"a chain has {len(self.codecs)} codecs; it needs at least two")
        for codec in self.codecs[:-1]:
            if not isinstance(codec, TopK):
                raise ValueError(
                    f"{codec.name!r} selects nothing, so that no codec can follow it in a chain; "
                    "only 'top-k' selects"
                )
        return self

    @property
    def mixes_records(self) -> bool:
        """As the last codec does: nothing is selected across records."""
        return self.codecs[-1].mixes_records

    @property
    def _selecting(self) -> tuple[TopK, ...]:
        return tuple(codec for codec in self.codecs[:-1] if isinstance(codec, TopK))

    def size(self, shape: tuple[int, ...]) -> int:
        """Bytes of all places, and the last codec's of the values."""
        places = 0
        for codec in self._selecting:
            places += codec.places_size(shape)
            shape = codec.kept(shape)
        return places + self.codecs[-1].size(shape)

    def encode(self, array: Tensor) -> memoryview:
        """The places, then the values."""
        parts = []
        for codec in self._selecting:
            places, array = codec.split(array)
            parts.append(places)
        parts.append(bytes(self.codecs[-1].encode(array)))
        return memoryview(b"".join(parts))

    def decode(self, data: memoryview, shape: tuple[int, ...]) -> Tensor:
        """The array of that shape; MalformedError for other bytes."""
        check_size(data, shape, self.size(shape))
        steps = []
        for codec in self._selecting:
            end = codec.places_size(shape)
            steps.append((codec, data[:end], shape))
            data, shape = data[end:], codec.kept(shape)
        array = self.codecs[-1].decode(data, shape)
        for codec, places, before in reversed(steps):
            array = codec.join(places, array, before)
        return array
