"""A member's side of online scores: it finds rows by their keys, and sends their embeddings.

It learns which records the label holder asks about, and when; the label holder learns which of
them it has.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from vertizo.core.errors import DataError
from vertizo.data.own_tables.keyed import KeyedTable
from vertizo.network.serving import frames
from vertizo.network.serving.frames import Found, Ready, Want
from vertizo.network.serving.options import JoinConfig
from vertizo.network.serving.trained_model import MemberModel
from vertizo.network.transport.base import Channel
from vertizo.ops.scoring import LOOKED_UP
from vertizo.ops.scoring.lookup import Lookup
from vertizo.run.trained.prediction import in_place_of_tests


class ScoringMember:
    """Answers the label holder for as long as it asks.

    Args:
        config: the member's.
        table: the party's table, in which rows are found.
        channel: to the label holder.
        notice: takes a line for people.

    Raises:
        RunError: the job is not over here.
    """

    def __init__(
        self,
        config: JoinConfig,
        table: KeyedTable,
        channel: Channel,
        notice: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._federation = config.federation.name
        self._model = MemberModel(config.federation.folder)
        self._lookup = Lookup(table, self._model.preparation, notice)
        self._channel, self._notice = channel, notice
        self.answered = self.found = 0
        """Numbers of keys that were asked for and that were found, since the start."""

    def run(self) -> None:
        """Answer until the channel is closed; RunError if the label holder refuses."""
        terms = frames.greet(self._channel.ask, self._federation)
        width = self._model.preparation.width
        made = self._model.party(terms, in_place_of_tests(torch.zeros(0, width)))
        ready = Ready(terms.job, made.embedding_dim, (0, 0, 0), b"", False, False)
        ask, said = frames.encode(ready), False
        while True:
            want = frames.expect(self._channel.ask(ask), Want)
            if self.found and not said:
                said = True
                self._notice(LOOKED_UP)
            self.answered += len(want.keys)
            try:
                places, features = self._lookup.features(want.keys)
            except DataError:
                ask = frames.encode(Found(terms.job, want.number, None))
                continue
            ask = frames.encode(Found(terms.job, want.number, tuple(places)))
            if places:
                made.party.features = in_place_of_tests(features)
                ask += made.party.upload("test", 0, len(places))
            self.found += len(places)
