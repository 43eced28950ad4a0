"""What the label holder checks of a query's records and embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vertizo.core import kernels, validate
from vertizo.core.errors import RepeatedRecordError
from vertizo.party.checks import ids_in_range
from vertizo.protocol.messages import Query


class Vetting:
    """Checks queries of one federation.

    Args:
        records: D.
        batch_size: nominal B, the most records of one query.
        points: embeddings of each record in one query.
        dims: d_h of every client, in order.
        bound: H_max, the largest absolute value of an embedding.
        tolerant: whether values beyond it are mended; they are refused otherwise.
    """

    def __init__(
        self,
        records: int,
        batch_size: int,
        points: int,
        dims: Sequence[int],
        bound: float,
        *,
        tolerant: bool,
    ) -> None:
        self._records = records
        self._batch_size = batch_size
        self._points = points
        self._dims = tuple(dims)
        self._bound = bound
        self._tolerant = tolerant
        self._places = np.zeros(records, np.int32)

    def check(self, query: Query) -> None:
        """Raise RefusedError unless it names known records, each once, in the shape agreed on."""
        who = f"the embeddings of client {query.client}"
        ids_in_range(query.ids, self._records, self._batch_size, query.largest)
        batch = query.ids.numel()
        validate.shape(who, query.embeddings, (self._points, batch, self._dims[query.client]))
        if not kernels.distinct(self._places, query.ids.numpy()):
            raise RepeatedRecordError(f"client {query.client} names a record twice in one batch")

    def bounded(self, query: Query) -> Query:
        """A query whose embeddings are within the bound: mended, or refused.

        Under noise nothing that an honest client may send by accident is refused.
        """
        if self._tolerant:
            mended = validate.mended(query.embeddings, self._bound)
            return query if mended is query.embeddings else replace(query, embeddings=mended)
        who = f"the embeddings of client {query.client}"
        validate.bounded(who, query.embeddings, self._bound)
        return query
