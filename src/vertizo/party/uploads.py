"""Embeddings of whole partitions, put together from the pieces that clients upload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vertizo.core.errors import RefusedError, RepeatedRecordError
from vertizo.core.state import Stateful
from vertizo.party.checks import Watch, ids_in_range, misshapen
from vertizo.protocol.messages import Purpose, Upload


@dataclass(eq=False)
class Uploads(Stateful):
    """The rows that came of each partition so far; its state lacks those that the table keeps."""

    STATE = ("_rows", "_pieces")

    dims: Sequence[int]
    """d_h of every client, in order."""
    bound: float
    """The largest absolute value accepted in an embedding."""
    _rows: dict[Purpose, Tensor] = field(default_factory=dict)
    _there: dict[tuple[int, Purpose], Tensor] = field(default_factory=dict)

    def check(self, upload: Upload, rows: int) -> None:
        """Raise RefusedError unless it is a valid piece of a partition with so many rows."""
        ids_in_range(upload.ids, rows, rows)
        if not torch.all(upload.ids[1:] > upload.ids[:-1]):
            raise RepeatedRecordError(f"client {upload.client} uploads rows twice or out of order")
        who, dim = f"the upload of client {upload.client}", self.dims[upload.client]
        shape = 1, upload.ids.numel(), dim
        if upload.embeddings.shape != shape:
            raise misshapen(who, upload.embeddings, shape)
        Watch().check(who, upload.embeddings, self.bound)

    def take_in(self, upload: Upload, rows: int, *, keep: bool) -> bool:
        """Count a checked piece, and keep it if asked to; return whether any row was missing."""
        client, purpose = upload.client, upload.purpose
        there = self._there.get((client, purpose))
        if there is None:
            there = self._there[client, purpose] = torch.zeros(rows, dtype=torch.bool)
        is_new = not bool(there[upload.ids].all())
        there[upload.ids] = True
        if keep:
            if purpose not in self._rows:
                self._rows[purpose] = torch.full((rows, sum(self.dims)), torch.nan)
            columns = self._rows[purpose].narrow(1, sum(self.dims[:client]), self.dims[client])
            columns.index_copy_(0, upload.ids, upload.embeddings[0])
        return is_new

    def is_complete(self, client: int, purpose: Purpose) -> bool:
        """Whether every row of a client's partition came; false while none did."""
        there = self._there.get((client, purpose))
        return there is not None and bool(there.all())

    def take(self, purpose: Purpose) -> Tensor:
        """Take out a partition's embeddings, [rows, Σ d_h]; RefusedError where some are missing."""
        rows = self._rows.get(purpose)
        if rows is None or bool(rows.isnan().any()):
            raise RefusedError(f"some client has not uploaded its {purpose} embeddings")
        del self._rows[purpose]
        self.forget(purpose)
        return rows

    def forget(self, purpose: Purpose) -> None:
        """Forget which rows of a partition came: they are asked for again."""
        self._there = {key: there for key, there in self._there.items() if key[1] != purpose}

    @property
    def _pieces(self) -> list[tuple[int, Purpose, Tensor]]:
        """Which rows came: [client, partition, bool for each row]."""
        return [(*key, there) for key, there in self._there.items() if key[1] in self._rows]

    @_pieces.setter
    def _pieces(self, pieces: Sequence[tuple[int, Purpose, Tensor]]) -> None:
        self._there = {(client, purpose): there for client, purpose, there in pieces}
