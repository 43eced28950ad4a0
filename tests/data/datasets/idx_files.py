"""Four small IDX files, and where they lie."""

from __future__ import annotations

import gzip
import hashlib
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vertizo.data.datasets.idx import FILES, IdxSet

NAMES = tuple(name.removesuffix(".gz") for name in FILES)
TRAIN, TEST = 7, 3


def encoded(array: NDArray[np.uint8]) -> bytes:
    """An array as the content of an IDX file."""
    sides = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes([0, 0, 8, array.ndim]) + sides + array.tobytes()


def _plain() -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    arrays = []
    for count in (TRAIN, TEST):
        arrays.append(rng.integers(0, 256, (count, 28, 28), dtype=np.uint8))
        arrays.append(rng.integers(0, 10, count, dtype=np.uint8))
    return {name: encoded(array) for name, array in zip(NAMES, arrays, strict=True)}


PLAIN = _plain()
"""Four small files of an MNIST kind, unpacked: 7 training records and 3 for testing."""
PUBLISHED = {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in PLAIN.items()}
"""The four files as a mirror has them."""


def put(folder: Path, *, packed: bool = True, **changes: Any) -> Path:
    """Write the four files into a folder, gzipped or not; ``changes`` replaces contents."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in {**PLAIN, **changes}.items():
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0))
        else:
            (folder / name).write_bytes(content)
    return folder


def small_set(*urls: str) -> IdxSet:
    """The set of the four small files, with these mirrors."""
    sums = tuple(hashlib.sha256(PUBLISHED[name]).hexdigest() for name in FILES)
    return IdxSet("small", urls, sums, mean=0.5, spread=0.5)
