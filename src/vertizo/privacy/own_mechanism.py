"""The base class of mechanisms from outside this package, named by import path or entry point."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vertizo.core.randomness import Stream
from vertizo.privacy.options import PrivacyConfig
from vertizo.privacy.plan import LABELS, NoPrivacy
from vertizo.privacy.statement import Statement


class OwnMechanism(NoPrivacy):
    """Passes values on unchanged; override `total` and `each` to change what leaves the server.

    Its runs have no guarantee, since nothing accounts for it. ``options`` is the section
    ``privacy``; the mechanism itself heeds its ``clip``, ``noise_std``, ``epsilon`` and ``delta``.
    Releases are divided by the nominal batch size.
    """

    STATE = ("_made",)

    def __init__(self, options: PrivacyConfig, batch_size: int, stream: Stream) -> None:
        super().__init__(batch_size)
        self.options = options
        self.batch_size = batch_size
        self._stream = stream
        self._made = 0

    def generator(self) -> np.random.Generator:
        """Fresh randomness for one release; a resumed run continues with the next."""
        self._made += 1
        return self._stream.generator(self._made - 1)

    def statement(
        self, *, server_is_private: bool, covers: Sequence[str] = LABELS, records: int | None = None
    ) -> Statement:
        """State that nothing is guaranteed: nobody has accounted for this mechanism."""
        name = self.options.mechanism
        return Statement("none", f"No privacy guarantee: privacy.mechanism {name!r} declares none.")
