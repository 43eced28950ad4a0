"""A member's side of online scores: it finds rows by their keys, and sends their embeddings.

It learns which records the label holder asks about, and when; the label holder learns which of
them it has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vertizo.core.errors import DataError
from vertizo.core.notices import Alarm
from vertizo.core.version import VERSION
from vertizo.data.keyed import KeyedTable
from vertizo.data.tabular.prepared import raw_matrix
from vertizo.network import frames
from vertizo.network.finished import MemberModel
from vertizo.network.frames import Found, Hello, Ready, Terms, Want
from vertizo.network.options import JoinConfig
from vertizo.network.transport import Channel
from vertizo.run.prediction import in_place_of_tests


class ScoringMember:
    """Answers the label holder for as long as it asks.

    Args:
        config: the member's.
        table: where rows are found.
        channel: to the label holder.
        notice: takes a line about what people should know.

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
        self._table, self._channel, self._notice = table, channel, notice
        self._told = ""
        self.answered = self.found = 0
        """Keys that were asked for, and those that were there, since the start."""

    def run(self) -> None:
        """Until the channel is closed, or the label holder refuses, which is a RunError."""
        hello = Hello(frames.PROTOCOL, self._federation, VERSION)
        terms = frames.expect(self._channel.ask(frames.encode(hello)), Terms)
        width = self._model.preparation.width
        made = self._model.party(terms, in_place_of_tests(torch.zeros(0, width)))
        ready = Ready(terms.job, made.embedding_dim, (0, 0, 0), b"", False, False)
        ask = frames.encode(ready)
        while True:
            want = frames.expect(self._channel.ask(ask), Want)
            places, features = self._features(want.keys)
            ask = frames.encode(Found(terms.job, want.number, tuple(places)))
            if places:
                made.party.features = in_place_of_tests(features)
                ask += made.party.upload("test", 0, len(places))
            self.answered += len(want.keys)
            self.found += len(places)

    def _features(self, keys: Sequence[str]) -> tuple[list[int], Tensor]:
        """Places in ``keys`` of records that can be embedded, and their features.

        A table that cannot be read has none of them, and a row that holds what it could not in
        training is none: people are told, and other scores go on.
        """
        try:
            places, frame = self._table.rows(keys)
        except DataError as error:
            self._tell(error)
            return [], torch.empty(0)
        if not places:
            return [], torch.empty(0)
        prepare = self._model.preparation

        def features(some: slice) -> Tensor:
            rows = frame[some]
            matrix = raw_matrix(rows, prepare.columns, prepare.levels, name=self._table.name)
            return prepare(matrix)

        try:
            return places, features(slice(None))
        except DataError as error:
            self._tell(error)
        kept: list[tuple[int, Tensor]] = []
        for row, place in enumerate(places):
            try:
                kept.append((place, features(slice(row, row + 1))))
            except DataError:
                continue
        if not kept:
            return [], torch.empty(0)
        return [place for place, _ in kept], torch.cat([one for _, one in kept])

    def _tell(self, error: DataError) -> None:
        """Tell people once for each mistake on end."""
        if self._told != (words := str(error)):
            self._told = words
            self._notice(Alarm(f"{words}; such records are not scored"))
