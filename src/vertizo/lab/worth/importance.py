"""Permutation importance: how much worse a trained federation predicts with shuffled columns.

Breiman (2001): the values of a column, or of all columns of a party together, are exchanged between
the test records at random, and the parties predict again. Nothing is trained, so that it costs no
privacy of training labels; it shows what these models use, not what new models could do without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vertizo.core.names import Head
from vertizo.core.randomness import Stream
from vertizo.data.vertical import VerticalData
from vertizo.lab.comparison import mean_and_spread
from vertizo.party.closing_scores import headline
from vertizo.party.metrics import scores
from vertizo.run.experiment import Experiment
from vertizo.run.loop.federation import Federation
from vertizo.run.loop.traffic import rows_at_once
from vertizo.run.references import plain
from vertizo.run.trained.prediction import Predictor, logits_of


class Permuted:
    """The parties of a finished run, whose ``head`` predicts test records with permuted columns."""

    def __init__(self, run: Path, head: Head, seed: int) -> None:
        predictor = Predictor.load(run, head)
        self.data: VerticalData = Experiment(predictor.config).data()
        self._run, self._raw = str(run), predictor.raw_head
        self._parties: Federation = predictor.parties(self.data)
        self._task, self._labels = plain(self.data.task), self.data.labels["test"]
        self._stream = Stream.from_seed(seed).child("permutation of test records")
        self._frames = [self._frames_of(client) for client in range(len(self.data.parties))]
        self._base = self._score(self._frames)

    def __iter__(self) -> Iterator[tuple[str, str | None]]:
        """Yield every party (with None), and every named column of it."""
        own = () if self.data.own is None else (self.data.own.name,)
        for party in (*own, *self.data.parties):
            yield party, None
            yield from ((party, column) for column in self._columns(party))

    def losses(self, party: str, column: str | None, repeats: int) -> list[float]:
        """Measure how much the headline figure gets worse by each of so many permutations."""
        places = None if column is None else self._columns(party)[column]
        return [self._loss(party, places, repeat) for repeat in range(repeats)]

    def _columns(self, party: str) -> dict[str, list[int]]:
        preparation = self.data.preparation
        return {} if preparation is None else preparation.parties[party].places

    def _loss(self, party: str, places: Sequence[int] | None, repeat: int) -> float:
        order = torch.from_numpy(self._stream.generator(repeat).permutation(len(self._labels)))

        def exchanged(values: Tensor) -> Tensor:
            if places is None:
                return values[order]
            changed = values.clone()
            changed[:, places] = values[order][:, places]
            return changed

        scoring = self._parties.server.scoring
        if party not in self.data.parties:
            own = scoring.own
            assert own is not None, "the label holder has columns"
            scoring.own = {**own, "test": exchanged(own["test"])}
            try:
                return self._base - self._score(self._frames)
            finally:
                scoring.own = own
        client = self.data.parties.index(party)
        member = self._parties.clients[client]
        features = member.features
        member.features = {**features, "test": exchanged(features["test"])}
        try:
            frames = [*self._frames]
            frames[client] = self._frames_of(client)
        finally:
            member.features = features
        return self._base - self._score(frames)

    def _frames_of(self, client: int) -> list[bytes]:
        rows, side = len(self._labels), self._parties.server.side
        step = rows_at_once(side.table.dims[client])
        upload = self._parties.clients[client].upload
        return [upload("test", at, min(at + step, rows)) for at in range(0, rows, step)]

    def _score(self, frames: Sequence[Sequence[bytes]]) -> float:
        """Predict from uploaded frames, and return the headline figure; larger is better."""
        server = self._parties.server
        for own in frames:
            for frame in own:
                server.receive_upload(frame)
        found = scores(self._task, logits_of(server, self._raw, self._run), self._labels)
        name = headline(self._task)
        return found[name] if name in ("auc", "accuracy") else -found[name]


def importances(
    runs: Sequence[Path], head: Head, repeats: int, progress: Callable[[float], None] | None
) -> list[dict[str, Any]]:
    """Measure the importance of every party and column over all runs and permutations.

    ``progress`` is called with the finished share. The column of a party as a whole is None; the
    spread of a single loss is 0.
    """
    found: dict[tuple[str, str | None], list[float]] = {}
    for number, run in enumerate(runs):
        permuted = Permuted(run, head, number)
        about = list(permuted)
        for place, (party, column) in enumerate(about):
            losses = permuted.losses(party, column, repeats)
            found.setdefault((party, column), []).extend(losses)
            if progress is not None:
                progress((number + (place + 1) / len(about)) / len(runs))
    figures = ((*about, *mean_and_spread(losses)) for about, losses in found.items())
    return [
        {"party": party, "column": column, "value": mean, "spread": spread or 0.0}
        for party, column, mean, spread in figures
    ]
