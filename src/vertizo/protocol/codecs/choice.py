"""How a configuration chooses any codec."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vertizo.protocol.codecs.base import Codec
from vertizo.protocol.codecs.catalog import CODECS

if TYPE_CHECKING:
    CodecChoice = Codec
else:
    CodecChoice = CODECS.choice("none")
