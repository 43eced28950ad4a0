"""Where the files of a named data set are, and which records are set apart for testing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from vertizo.core.errors import DataError
from vertizo.core.randomness import Stream

TEST_SHARE = 0.2
"""Of a data set that has no test records of its own."""


def cache() -> Path:
    """Where downloads go, and files are looked for when no folder is named."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "vertizo"


def find(root: Path | None, folders: Sequence[str], names: Sequence[str]) -> Path | None:
    """The first folder that has all the files: below ``root``, ``root`` itself, or None."""
    home = root if root is not None else cache()
    for folder in (*(home / name for name in folders), home):
        if all((folder / name).is_file() for name in names):
            return folder
    return None


def missing(name: str, root: Path | None, folder: str, names: Sequence[str]) -> DataError:
    """What to say when `find` found nothing."""
    home = root if root is not None else cache()
    return DataError(
        f"{name}: its files are not in {home / folder}; put {', '.join(names)} there, or set "
        "data.root or VERTIZO_DATA to the folder that has them"
    )


def folder_of(name: str, root: Path | None, folder: str, names: Sequence[str]) -> Path:
    """What `find` finds.

    Raises:
        DataError: nothing; says what to put where.
    """
    found = find(root, [folder], names)
    if found is None:
        raise missing(name, root, folder, names)
    return found


def set_apart(records: int, share: float | None) -> tuple[Tensor, Tensor]:
    """IDs of training and of test records, both ascending, by a shuffle.

    The shuffle is the same in every run, whatever its seed, so that runs are compared on the same
    test records.

    >>> train, test = set_apart(10, 0.3)
    >>> len(train), len(test), sorted(torch.cat([train, test]).tolist()) == list(range(10))
    (7, 3, True)

    Args:
        records: how many there are, at least 2.
        share: of the test records, in (0, 1); None for `TEST_SHARE`.
    """
    order = torch.from_numpy(Stream.from_seed(0).child("test").generator().permutation(records))
    count = min(max(round((TEST_SHARE if share is None else share) * records), 1), records - 1)
    return order[count:].sort()[0], order[:count].sort()[0]
