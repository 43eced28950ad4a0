"""Embeddings of whole partitions, put together from the pieces that clients upload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vertizo.core.errors import RefusedError, RepeatedRecordError
from vertizo.party.checks import ids_in_range, is_bounded, misshapen, unbounded
from vertizo.protocol.messages import Purpose, Upload


class Uploads:
    """What came of each partition so far.

    Args:
        dims: d_h of every client, in order.
        bound: the largest absolute value accepted in an embedding.
    """

    def __init__(self, dims: Sequence[int], bound: float) -> None:
        self._dims = tuple(dims)
        self._bound = bound
        self._rows: dict[Purpose, Tensor] = {}
        self._there: dict[tuple[int, Purpose], Tensor] = {}

    def check(self, upload: Upload, rows: int) -> None:
        """Raise RefusedError unless it is a piece of a partition with so many rows."""
        ids_in_range(upload.ids, rows, rows)
        if not torch.all(upload.ids[1:] > upload.ids[:-1]):
            raise RepeatedRecordError(f"client {upload.client} uploads rows twice or out of order")
        who = f"the upload of client {upload.client}"
        shape = (1, upload.ids.numel(), self._dims[upload.client])
        if upload.embeddings.shape != shape:
            raise misshapen(who, upload.embeddings, shape)
        if not is_bounded(upload.embeddings, self._bound):
            raise unbounded(who, self._bound)

    def note(self, upload: Upload, rows: int) -> bool:
        """Count a piece, wherever it is kept; whether any of its rows was missing."""
        key = upload.client, upload.purpose
        if key not in self._there:
            self._there[key] = torch.zeros(rows, dtype=torch.bool)
        there = self._there[key]
        is_new = not bool(there[upload.ids].all())
        there[upload.ids] = True
        return is_new

    def is_complete(self, client: int, purpose: Purpose) -> bool:
        """Whether every row of a client's partition came, of one that has rows."""
        there = self._there.get((client, purpose))
        return there is not None and bool(there.all())

    def put(self, upload: Upload, rows: int) -> None:
        """Keep a piece that was checked."""
        if upload.purpose not in self._rows:
            self._rows[upload.purpose] = torch.full((rows, sum(self._dims)), torch.nan)
        start = sum(self._dims[: upload.client])
        columns = self._rows[upload.purpose].narrow(1, start, self._dims[upload.client])
        columns.index_copy_(0, upload.ids, upload.embeddings[0])

    def take(self, purpose: Purpose) -> Tensor:
        """All clients' embeddings of a partition, [rows, Σ d_h]; they are used up.

        Raises:
            RefusedError: some are missing.
        """
        rows = self._rows.get(purpose)
        if rows is None or bool(rows.isnan().any()):
            raise RefusedError(f"some client has not uploaded its {purpose} embeddings")
        del self._rows[purpose]
        self.forget(purpose)
        return rows

    def forget(self, purpose: Purpose) -> None:
        """What came of a partition is asked for again."""
        self._there = {key: there for key, there in self._there.items() if key[1] != purpose}

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold; the table's rows are the table's."""
        there = [[*key, rows] for key, rows in self._there.items() if key[1] in self._rows]
        return {"rows": self._rows, "there": there}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``."""
        self._rows = dict(state["rows"])
        self._there = {(client, purpose): rows for client, purpose, rows in state["there"]}
