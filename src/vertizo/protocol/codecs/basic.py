"""The codecs that are no composition of others, and how a configuration chooses one."""

from __future__ import annotations

from typing import Annotated

from pydantic import Tag

from vertizo.core.options import chosen_by
from vertizo.protocol.codecs.lattice import Lattice
from vertizo.protocol.codecs.none import NoCompression
from vertizo.protocol.codecs.sign import Sign
from vertizo.protocol.codecs.top_k import TopK
from vertizo.protocol.codecs.uniform import Uniform

_Basic = (
    Annotated[NoCompression, Tag("none")]
    | Annotated[Uniform, Tag("uniform")]
    | Annotated[TopK, Tag("top-k")]
    | Annotated[Sign, Tag("sign")]
    | Annotated[Lattice, Tag("lattice")]
)
BasicCodec = Annotated[_Basic, chosen_by("name", "none")]
RoundingCodec = Annotated[_Basic, chosen_by("name", "uniform")]
"""The same where ``uniform`` is what is used unless another is named."""
