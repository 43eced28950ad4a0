"""Ways to cut the features of each record between parties.

rows      horizontal strips of pixels
patches   a grid of rectangles, as square as the number of parties allows
halves    upper and lower half of an image
sides     left and right half of an image
even      all values of a record, flattened, in equal runs
columns   named columns of a table
segments  equal runs of consecutive tokens
views     one view each; fewer parties hold equal runs of views, stacked as channels

Equal parts are of other sizes where `data.sizes` says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from vertizo.core.errors import ConfigError
from vertizo.core.names import SplitName
from vertizo.core.text.suggestions import nearest
from vertizo.data.pooled import Kind, Pooled

Piece = Callable[[Tensor], Tensor]
"""Maps records to one party's part of them."""

_FITTING: Mapping[Kind, tuple[SplitName, ...]] = {
    "images": ("rows", "patches", "halves", "sides", "even"),
    "table": ("columns", "even"),
    "tokens": ("segments",),
    "views": ("views", "even"),
}
"""The splits of each kind of record, the usual one first."""
_WORDS: Mapping[Kind, str] = {
    "images": "consists of images",
    "table": "is a table",
    "tokens": "consists of token sequences",
    "views": "consists of views",
}


def describe(pooled: Pooled) -> str:
    """Say what kind of data a data set has, in words: ``digits consists of images``."""
    return f"{pooled.name} {_WORDS[pooled.kind]}"


def pieces(
    pooled: Pooled,
    split: SplitName | None,
    parties: int | None,
    columns: Mapping[str, Sequence[str]] | None,
    sizes: Sequence[int] | None = None,
) -> tuple[tuple[str, ...], list[Piece]]:
    """Names of the parties, and for each the function that takes its part of records.

    The parts are equal, or of the given ``sizes``. ConfigError names a split and the data that it
    does not fit.
    """
    fitting = _FITTING[pooled.kind]
    if split is None:
        split = "even" if sizes and pooled.kind in ("images", "table") else fitting[0]
    if split not in fitting:
        *others, last = (repr(name) for name in fitting)
        advice = f"{', '.join(others)} or {last}" if others else last
        raise ConfigError(f"data.split is {split!r} but {describe(pooled)}; use {advice}")
    if columns is not None and split != "columns":
        raise ConfigError(f"data.columns needs data.split 'columns', not {split!r}")
    if sizes and split in ("columns", "patches"):
        raise ConfigError(
            f"data.sizes is set but data.split {split!r} shares no single side; use 'even'"
        )
    if split == "columns":
        return _named(pooled, parties, columns)
    shape = pooled.train.shape[1:]
    if split in ("halves", "sides"):
        if parties not in (None, 2) or len(sizes or (1, 1)) != 2:
            raise ConfigError(
                f"data.parties is {parties or len(sizes or ())} but data.split {split!r} makes 2"
            )
        side = -2 if split == "halves" else -1
        parts = _strips(shape[side], sizes or 2, side)
    elif split == "rows":
        parts = _strips(shape[-2], sizes or parties or 4, -2)
    elif split == "patches":
        parts = _patches(shape, parties or 4)
    elif split == "segments":
        parts = _strips(shape[0], sizes or parties or 1, 1)
    elif split == "views":
        # [records, views, channels, height, width] to [records, views·channels, height, width]
        runs = _strips(shape[0], sizes or parties or shape[0], 1)
        parts = [_after(run, lambda views: views.flatten(1, 2)) for run in runs]
    else:
        flat = _strips(math.prod(shape), sizes or parties or 4, -1)
        parts = [_after(lambda values: values.flatten(1), strip) for strip in flat]
    return tuple(f"party{index}" for index in range(len(parts))), parts


def _patches(shape: torch.Size, count: int) -> list[Piece]:
    down = next(n for n in range(math.isqrt(count), 0, -1) if count % n == 0)
    if down > shape[-2] or count // down > shape[-1]:
        raise ConfigError(
            f"data.parties is {count}, which makes {down} by {count // down} patches of images "
            f"of {shape[-2]} by {shape[-1]} pixels; use a number with smaller factors"
        )
    lines, bands = _strips(shape[-2], down, -2), _strips(shape[-1], count // down, -1)
    return [_after(line, band) for line in lines for band in bands]


def _strips(size: int, shared: int | Sequence[int], side: int) -> list[Piece]:
    """Strips along one side: so many equal ones, the last with the remainder, or of given sizes.

    ConfigError names the side and what does not fit into it.
    """
    if isinstance(shared, int):
        if not 1 <= shared <= size:
            raise ConfigError(
                f"data.parties is {shared} but there are {size} to share; use 1 to {size}"
            )
        each = size // shared
        shared = [*[each] * (shared - 1), size - each * (shared - 1)]
    if sum(shared) != size:
        raise ConfigError(
            f"data.sizes adds up to {sum(shared)} but there are {size} to share; give sizes that "
            f"add up to {size}"
        )

    def strip(start: int, length: int, values: Tensor) -> Tensor:
        return values.narrow(side, start, length)

    starts = accumulate(shared, initial=0)
    return [partial(strip, start, length) for start, length in zip(starts, shared, strict=False)]


def _after(first: Piece, second: Piece) -> Piece:
    return lambda values: second(first(values))


def _named(
    pooled: Pooled, parties: int | None, columns: Mapping[str, Sequence[str]] | None
) -> tuple[tuple[str, ...], list[Piece]]:
    known = pooled.columns or ()
    groups = (pooled.groups or {}) if columns is None else columns
    if not groups and (parties is None or columns is not None):
        raise ConfigError(
            f"{pooled.name} has no parties of its own; name them and their columns in data.columns,"
            " or give data.parties"
        )
    if columns is None and parties is not None and parties != len(groups):
        strips = _strips(len(known), parties, -1)
        return tuple(f"party{index}" for index in range(parties)), strips
    if parties is not None and parties != len(groups):
        raise ConfigError(f"data.parties is {parties} but data.columns names {len(groups)}")
    owner: dict[str, str] = {}
    for party, wanted in groups.items():
        if not wanted:
            raise ConfigError(f"data.columns gives {party!r} no columns")
        for column in wanted:
            if column not in known:
                raise ConfigError(
                    f"data.columns gives {party!r} the column {column!r}, "
                    f"which {pooled.name} does not have{nearest(column, known)}"
                )
            if column in owner:
                whom = f"both {owner[column]!r} and {party!r}"
                if owner[column] == party:
                    whom = f"{party!r} twice"
                raise ConfigError(f"data.columns gives {column!r} to {whom}")
            owner[column] = party

    def select(wanted: Sequence[str]) -> Piece:
        index = torch.tensor([known.index(column) for column in wanted])
        return lambda values: values.index_select(1, index)

    return tuple(groups), [select(wanted) for wanted in groups.values()]
