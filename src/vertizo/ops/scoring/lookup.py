"""Lookup of a party's records by keys, as features that its model takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vertizo.core.errors import DataError
from vertizo.core.text.messages import Alarm
from vertizo.data.own_tables.keyed import KeyedTable
from vertizo.data.prepared import raw_matrix
from vertizo.data.tabular.columns import Source, unknown
from vertizo.data.tabular.preprocessing import Preprocessing

if TYPE_CHECKING:
    import polars as pl


class Lookup:
    """Finds rows in a table and prepares them as in training; for any thread.

    ``notice`` takes a line for people. DataError if the table lacks a column that the model takes.
    """

    def __init__(
        self, table: KeyedTable, prepare: Preprocessing, notice: Callable[[str], None]
    ) -> None:
        self._table, self._prepare, self._notice = table, prepare, notice
        self._told, self._noted = "", set[str]()
        table.need(prepare.columns)

    def features(self, keys: Sequence[str]) -> tuple[list[int], Tensor]:
        """The places in ``keys`` of records that the model can take, and their features.

        Features are float32 [places, width]. A row with a value that its column could not have in
        training counts as missing: people are told, and other scores go on. DataError if the table
        cannot be read, of which people are told too.
        """
        try:
            places, frame = self._table.rows(keys)
        except DataError as error:
            self._tell(f"{error}; nothing is scored until it can be read")
            raise
        if not places:
            self._told = ""
            return [], torch.empty(0, self._prepare.width)

        def prepared(some: slice) -> Tensor:
            own = self._prepare
            known = own.columns, own.levels, own.dates
            return own(raw_matrix(frame[some], *known, name=self._table.name))

        try:
            found = prepared(slice(None))
        except DataError as error:
            self._tell(f"{error}; such records are not scored")
        else:
            self._told = ""
            self._note(frame)
            return places, found
        kept: list[tuple[int, Tensor]] = []
        for row, place in enumerate(places):
            try:
                kept.append((place, prepared(slice(row, row + 1))))
            except DataError:
                continue
        rows = [one for _, one in kept] or [torch.empty(0, self._prepare.width)]
        return [place for place, _ in kept], torch.cat(rows)

    def _note(self, frame: pl.DataFrame) -> None:
        """Tell people once of each column with values that training did not know."""
        own = self._prepare
        found = unknown(Source(self._table.name, frame), own.levels, own.columns, own.dates)
        for column in found.keys() - self._noted:
            self._noted.add(column)
            self._notice(f"note: {found[column]}")

    def _tell(self, words: str) -> None:
        """Tell people of a mistake, unless it is the same as last time."""
        if self._told != words:
            self._told = words
            self._notice(Alarm(words))
