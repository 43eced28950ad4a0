"""A search for records that move a release by more than its sensitivity, 2C for a clip C.

Releases before noise are compared for two batches that differ in one record: large and nearly
constant rows (a normalisation divides by what rounding left of their spread), subnormal ones, ones
that cancel, weights of any size (`vertizo.testing.hard_rows`). The search climbs: it keeps the row
that moved a release furthest and varies it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from vertizo.models.losses import Classification, MultiLabel, Task
from vertizo.party.server_model import ServerSide
from vertizo.privacy.clipping import Clip
from vertizo.privacy.noise.mechanisms import NoiseSource
from vertizo.protocol.messages import Query
from vertizo.testing import federations
from vertizo.testing.demands import demand
from vertizo.testing.hard_rows import Rows
from vertizo.testing.subject import Subject

LARGEST = 1e6
"""The default of server.embedding_bound."""
WEIGHTS = np.array([0.0, 1e-6, 1.0, 30.0, 1e6, 1e30], np.float32)
Batch: TypeAlias = tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]
"""Rows, labels, and perhaps weights of records."""


class Heard(NoiseSource):
    """A noise source that adds no noise and records the sums it is given."""

    name, is_secret, noise_std = "none", False, 1.0

    def __init__(self, clip_norm: float) -> None:
        self.clip_norm = clip_norm
        self.releases: list[Tensor] = []

    def onto(self, release: int, total: Tensor) -> Tensor:
        """Record a sum; AssertionError unless it is in float64, where rounding moves nothing."""
        demand(total.dtype == torch.float64, f"a release is summed in {total.dtype}")
        self.releases.append(total.clone())
        return total


class Game(Protocol):
    """The interface of what is searched: it gives the releases of a batch, before noise."""

    clip: float

    def released(self, *batch: Tensor) -> list[Tensor]:
        """All releases for rows, labels and perhaps weights."""


class Replies:
    """The releases of one reply; a row is all that a client sends of a record.

    Args:
        subject: the method.
        clip: C.
        more: changes of the configuration, by dotted keys.
        task: a task in place of the federation's own, with as many outputs.
    """

    def __init__(
        self,
        subject: Subject,
        clip: float,
        more: Mapping[str, Any] | None = None,
        task: Task | None = None,
    ) -> None:
        own = {"server.update": "none", **federations.GAUSSIAN, "privacy.clip": clip}
        self.clip = clip
        self._side: ServerSide = subject.build({**(more or {}), **own}).server.side
        if task is not None:
            self._side.model.task = task
        self.points = self._side.method.points
        self.width = self.points * federations.DIM
        """Numbers in a row."""
        self._heard = Heard(clip)
        plan: Any = self._side.plan
        plan._noise = self._heard
        self.parameters = self._side.model.parameters
        """w_0."""

    def released(self, *batch: Tensor) -> list[Tensor]:
        """Releases of one reply to client 0, from an embedding table of zeros."""
        joined, self._side.labels, *weights = batch
        self._side.weights = weights[0] if weights else None
        self._side.table.values.zero_()
        sent = joined.view(len(joined), self.points, -1).transpose(0, 1).contiguous()
        self._heard.releases.clear()
        with np.errstate(all="ignore"):
            self._side.answer([Query(0, 0, torch.arange(len(joined)), sent)], 1)
        return list(self._heard.releases)


def moved(game: Game, one: Batch, other: Batch) -> float:
    """Distance between the releases of two batches, divided by 2C√k for k releases of each.

    The batches differ in their first record.
    """
    pairs = list(zip(game.released(*one), game.released(*other), strict=True))
    demand(all(bool(a.isfinite().all()) for a, _ in pairs), "a release is not finite")
    apart = math.sqrt(sum(float((a - b).square().sum()) for a, b in pairs))
    return apart / (Clip(game.clip).sensitivity * math.sqrt(len(pairs)))


class Search:
    """A climbing search for the pair of neighbouring batches whose releases are furthest apart.

    Args:
        width: numbers in a row, of which ``tokens`` at the end are tokens.
        task: the task that labels are drawn for.
        tries: number of pairs of batches to try.
        codes: number of columns behind the first two that hold a category.
        weighs: whether records have weights.
        seed: seed of all draws.
    """

    def __init__(
        self,
        width: int,
        task: Task,
        tries: int,
        *,
        tokens: int = 0,
        codes: int = 0,
        weighs: bool = False,
        seed: int = 0,
    ) -> None:
        self._task, self._tries = task, tries
        self._tokens, self._codes, self._weighs = tokens, codes, weighs
        self._random = np.random.default_rng(seed)
        self._rows = Rows(self._random, width, LARGEST)

    def furthest(self, game: Game) -> float:
        """The largest of `moved` that was found; above 1, a release is not bounded."""
        found: list[tuple[float, Tensor]] = []
        for turn in range(self._tries):
            old = max(found, key=lambda one: one[0])[1] if found and turn % 2 else None
            row = self._row() if old is None else self._shaped(self._rows.varied(old))
            found.append((moved(game, *self._neighbours(row)), row))
        return max(ratio for ratio, _ in found)

    def _row(self) -> Tensor:
        return self._shaped(self._rows.fresh())

    def _shaped(self, row: Tensor) -> Tensor:
        """Put tokens and codes in place of some numbers of a row."""
        tokens, codes = self._tokens, self._codes
        if tokens:
            row[-tokens:] = torch.from_numpy(self._random.integers(0, 16, tokens)).float()
        if codes:
            row[2 : 2 + codes] = float(self._random.integers(0, 5))
        return row

    def _neighbours(self, row: Tensor) -> tuple[Batch, Batch]:
        """A batch with that row and random others, and one whose first record differs."""
        companions = [self._row() for _ in range(self._random.integers(0, 4))]
        rows = torch.stack([row, *companions])
        labels = self._labels(len(rows))
        other, changed = rows.clone(), labels.clone()
        if self._random.random() < 0.3:
            other[0] = self._row()
        classes = self._task.outputs
        if isinstance(self._task, MultiLabel):  # some of a record's labels, or all
            changed[0] = self._labels(1)[0] if self._random.random() < 0.5 else 1 - labels[0]
        else:
            changed[0] = (labels[0] + 1) % classes if classes > 1 else -labels[0]
        if not self._weighs:
            return (rows, labels), (other, changed)
        one, another = torch.from_numpy(self._random.choice(WEIGHTS, (2, len(rows))))
        another[1:] = one[1:]
        if self._random.random() < 0.5:
            another[0] = one[0]
        return (rows, labels, one), (other, changed, another)

    def _labels(self, count: int) -> Tensor:
        if isinstance(self._task, MultiLabel):
            return torch.from_numpy(
                self._random.integers(0, 2, (count, self._task.outputs))
            ).float()
        if self._task.outputs > 1:
            return torch.from_numpy(self._random.integers(0, self._task.outputs, count))
        return torch.from_numpy(self._random.standard_normal(count)).float()


def a_record_moves_no_release_too_far(
    subject: Subject, clips: tuple[float, ...] = (1e-3, 1.0), tries: int = 50
) -> float:
    """Check that no record moves a reply further than its clip allows; return the largest ratio."""
    found = 0.0
    for clip in clips:
        game = Replies(subject, clip)
        search = Search(game.width, Classification(federations.CLASSES), tries)
        found = max(found, search.furthest(game))
        words = f"{subject}: a record moves what is released by {found:.6g} times its sensitivity"
        demand(found <= 1 + 1e-12, words)
    return found
