"""How a configuration chooses any codec."""

from __future__ import annotations

from typing import Annotated

from pydantic import Tag

from vertizo.codecs.chain import Chain
from vertizo.codecs.lattice import Lattice
from vertizo.codecs.none import NoCompression
from vertizo.codecs.paired import Paired
from vertizo.codecs.sign import Sign
from vertizo.codecs.top_k import TopK
from vertizo.codecs.uniform import Uniform
from vertizo.options import chosen_by

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
