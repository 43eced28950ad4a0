"""How a configuration chooses any codec."""

from __future__ import annotations

from typing import Annotated

from pydantic import Tag

from vertizo.core.options import chosen_by
from vertizo.protocol.codecs.chain import Chain
from vertizo.protocol.codecs.lattice import Lattice
from vertizo.protocol.codecs.none import NoCompression
from vertizo.protocol.codecs.paired import Paired
from vertizo.protocol.codecs.sign import Sign
from vertizo.protocol.codecs.top_k import TopK
from vertizo.protocol.codecs.uniform import Uniform

CodecChoice = Annotated[
    Annotated[NoCompression, Tag("none")]
    | Annotated[Uniform, Tag("uniform")]
    | Annotated[TopK, Tag("top-k")]
    | Annotated[Sign, Tag("sign")]
    | Annotated[Lattice, Tag("lattice")]
    | Annotated[Paired, Tag("paired")]
    | Annotated[Chain, Tag("chain")],
    chosen_by("name", "none"),
]
