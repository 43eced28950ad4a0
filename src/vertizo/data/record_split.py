"""The split into training, validation and test records: at random, by class, or by time.

A random split follows from the number of records, and every party with the seed can make it. A
split by class depends on labels, one by time on a column of the label holder's: then the label
holder tells the others the chosen rows (`ChosenRows`).
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vertizo.core.errors import ConfigError, DataError
from vertizo.core.randomness import Stream
from vertizo.data.options import DataConfig
from vertizo.models.losses import Classification, Task
from vertizo.protocol.messages import Purpose

TEST_SHARE = 0.2
"""Share of test records of a data set that has none of its own."""


@dataclass(frozen=True)
class Criterion:
    """What decides the choice of records: times or classes; neither means at random."""

    times: Tensor | None = None
    """Times [records], in any unit: the newest are taken first; of equal ones, the last rows."""
    classes: Tensor | None = None
    """Classes, int64 [records]: the same share of each is taken."""

    def order(self, records: int, stream: Stream) -> Tensor:
        """All row numbers, in the order in which they are taken."""
        if self.times is not None:
            return torch.argsort(self.times, stable=True).flip(0)
        return torch.from_numpy(stream.generator().permutation(records))

    def first(self, order: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The first ``count`` rows, of each class its share, and the rest; both in order."""
        if self.classes is None:
            return order[:count], order[count:]
        classes = self.classes[order]
        exact = classes.bincount() * (min(count, len(order)) / max(1, len(order)))
        wanted = exact.floor().to(torch.int64)  # and one more where most is left over
        left_over = torch.argsort(exact - wanted, descending=True, stable=True)
        wanted[left_over[: min(count, len(order)) - int(wanted.sum())]] += 1
        taken = torch.zeros(len(order), dtype=torch.bool)
        for number, share in enumerate(wanted.tolist()):
            taken[(classes == number).nonzero().flatten()[:share]] = True
        return order[taken], order[~taken]

    def of(self, rows: Tensor) -> Criterion:
        """The criterion for some rows."""
        return Criterion(*(None if x is None else x[rows] for x in (self.times, self.classes)))


AT_RANDOM = Criterion()


def criterion_of(
    options: DataConfig, name: str, task: Task, labels: Tensor, times: Tensor | None
) -> Criterion:
    """The criterion of data.stratify and data.time; ConfigError to stratify without classes."""
    if not options.stratify:
        return Criterion(times)
    if not isinstance(task, Classification):
        raise ConfigError(
            f"data.stratify is true but {name} is a regression, without classes; leave it out"
        )
    return Criterion(classes=labels)


def set_apart(
    records: int, share: float | None, by: Criterion = AT_RANDOM
) -> tuple[Tensor, Tensor]:
    """IDs of training and of test records, at least one of each, both ascending.

    A random choice is the same in every run, whatever its seed, so that runs are compared on the
    same test records. ``share`` is that of test records, in (0, 1); None for `TEST_SHARE`.

    >>> train, test = set_apart(10, 0.3)
    >>> len(train), len(test), sorted(torch.cat([train, test]).tolist()) == list(range(10))
    (7, 3, True)
    >>> set_apart(4, 0.5, Criterion(torch.tensor([2.0, 1.0, 4.0, 3.0])))
    (tensor([0, 1]), tensor([2, 3]))
    """
    order = by.order(records, Stream.from_seed(0).child("test"))
    count = min(max(round((TEST_SHARE if share is None else share) * records), 1), records - 1)
    test, train = by.first(order, count)
    return train.sort()[0], test.sort()[0]


def choose(
    records: int, validation: float, limit: int | None, stream: Stream, by: Criterion = AT_RANDOM
) -> dict[Purpose, Tensor]:
    """Choose training and validation records: row numbers, ascending.

    At most ``limit`` records are used, of which ``validation`` is the share that validates. Every
    party with the stream makes the same random choice.
    """
    order = by.order(records, stream)
    if limit is not None:
        order = by.first(order, limit)[0]
    held_out, train = by.first(order, round(validation * order.numel()))
    return {"train": train.sort()[0], "validation": held_out.sort()[0]}


@dataclass(frozen=True)
class ChosenRows:
    """A label holder's choice for parties that cannot make it: one purpose for each row.

    >>> rows = {"train": torch.tensor([0, 3]), "validation": torch.tensor([1])}
    >>> ChosenRows.of(5, rows).rows(5)["validation"]
    tensor([1])
    """

    text: str
    """A byte for each row of the first table, packed: from 1 its place in `PURPOSES`, else 0."""

    PURPOSES: ClassVar[tuple[Purpose, ...]] = ("train", "validation", "test")

    @classmethod
    def of(cls, records: int, rows: Mapping[Purpose, Tensor]) -> ChosenRows:
        """Pack rows by purpose."""
        marks = torch.zeros(records, dtype=torch.uint8)
        for number, purpose in enumerate(cls.PURPOSES, 1):
            if purpose in rows:
                marks[rows[purpose]] = number
        return cls(base64.b85encode(zlib.compress(marks.numpy().tobytes(), 9)).decode())

    def rows(self, records: int) -> dict[Purpose, Tensor]:
        """Unpack row numbers by purpose, ascending; DataError unless they fit ``records``."""
        try:
            unpack = zlib.decompressobj()
            marks = unpack.decompress(base64.b85decode(self.text), records + 1)
        except (ValueError, binascii.Error, zlib.error):
            raise DataError("the label holder's choice of records is damaged") from None
        if not unpack.eof or len(marks) != records or max(marks, default=0) > len(self.PURPOSES):
            raise DataError(
                f"the label holder's choice of records is not of {records:,} of them; "
                "run `vertizo align` first"
            )
        found = torch.tensor(list(marks))
        return {
            purpose: (found == number).nonzero().flatten()
            for number, purpose in enumerate(self.PURPOSES, 1)
        }
