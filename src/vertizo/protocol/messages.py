"""The messages that parties exchange, before they are encoded."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Literal, cast

if TYPE_CHECKING:
    from torch import Tensor


Purpose = Literal["train", "validation", "test", "teacher"]
"""What embeddings are for. ``teacher``: numbers of the training records that private labels are
made with, before all else."""


class WirePurpose(Enum):
    """A `Purpose` as frames name it: ``table`` for that of the training records."""

    train = "table"
    validation = "validation"
    test = "test"
    teacher = "teacher"

    @property
    def own(self) -> Purpose:
        """The `Purpose` that it stands for."""
        return cast("Purpose", self.name)


@dataclass(frozen=True)
class Query:
    """Client to server: embeddings of a batch at one or several points."""

    client: int
    number: int
    """The client's own count of its queries, from 0, without gaps."""
    ids: Tensor
    """Record IDs, int64 [batch]."""
    embeddings: Tensor
    """float32 [points, batch, d_h]; the method says which points."""
    batch: int | None = None
    """The number of the batch that ``ids`` are, sent in place of them; None where the other side
    does not know the order of records."""


@dataclass(frozen=True)
class Reply:
    """Server to client: what the method's client half needs for its update."""

    client: int
    number: int
    """The number of the query that is answered."""
    values: Tensor
    """float32, of a shape that the method says."""


@dataclass(frozen=True)
class Upload:
    """Client to server: plain embeddings of many records, to fill the table or to evaluate."""

    client: int
    purpose: Purpose
    ids: Tensor
    """Row numbers within the training, validation or test records, int64 [rows]."""
    embeddings: Tensor
    """float32 [1, rows, d_h]."""


@dataclass(frozen=True)
class Batch:
    """Server to client, in synchronous rounds: the records that all clients answer for."""

    number: int
    ids: Tensor
    """Record IDs, int64 [batch]."""
    batch: int | None = None
    """See `Query.batch`."""


Message = Query | Reply | Upload | Batch
