"""The codecs by name, and how a codec's own option chooses one that is no composition of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vertizo.core.plugins.registry import Registry
from vertizo.protocol.codecs.base import Codec

_HERE = "vertizo.protocol.codecs"
CODECS: Registry[type[Codec]] = Registry(
    "codec",
    {
        "none": f"{_HERE}.none:NoCompression",
        "uniform": f"{_HERE}.uniform:Uniform",
        "top-k": f"{_HERE}.top_k:TopK",
        "sign": f"{_HERE}.sign:Sign",
        "lattice": f"{_HERE}.lattice:Lattice",
        "paired": f"{_HERE}.paired:Paired",
        "chain": f"{_HERE}.chain:Chain",
    },
    base="vertizo.core.options:Chosen",
    protocol=Codec,
)
_BASIC = ("none", "uniform", "top-k", "sign", "lattice")

if TYPE_CHECKING:
    BasicCodec = Codec
    RoundingCodec = Codec
else:
    BasicCodec = CODECS.choice("none", _BASIC)
    RoundingCodec = CODECS.choice("uniform", _BASIC)
