"""Loaders of IDX files (MNIST, Fashion-MNIST), found in a folder, or downloaded and checked."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import math
import os
import struct
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vertizo.core.errors import DataError
from vertizo.data.datasets import files
from vertizo.data.options import DataConfig
from vertizo.data.pooled import Pooled
from vertizo.models.losses import Classification

TIMEOUT = 20.0
"""Seconds that a mirror may stay silent."""

FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
"""Files of every data set: images and labels for training, images and labels for testing."""
CLASSES = 10


@dataclass(frozen=True)
class IdxSet:
    """A published data set; its files are in a folder of its name."""

    name: str
    mirrors: tuple[str, ...]
    sha256: tuple[str, ...]
    """Digest of each of `FILES`, gzipped."""
    mean: float
    """Mean of the pixels, as a share of the brightest; a public constant."""
    spread: float
    """Standard deviation of the pixels, likewise."""


MNIST = IdxSet(
    "mnist",
    (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
    mean=0.1307,
    spread=0.3081,
)
FASHION_MNIST = IdxSet(
    "fashion-mnist",
    ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    (
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
    mean=0.2860,
    spread=0.3530,
)


def loader(published: IdxSet) -> Callable[[Path | None, DataConfig], Pooled]:
    """Make the loader of a data set; pixels become ``(p/255 − mean)/spread``."""

    def load(root: Path | None, _: DataConfig) -> Pooled:
        folder = folder_of(published, files.home(root))

        def half(images: str, labels: str) -> tuple[Tensor, Tensor]:
            pixels, classes = _read(folder, images, sides=3), _read(folder, labels, sides=1)
            checked = files.check_labels(folder / labels, classes, len(pixels), CLASSES)
            scaled = files.scaled(pixels[:, np.newaxis], [published.mean], [published.spread])
            return scaled, checked

        return Pooled(published.name, *half(*FILES[:2]), *half(*FILES[2:]), Classification(CLASSES))

    return load


mnist = loader(MNIST)
fashion_mnist = loader(FASHION_MNIST)


def folder_of(wanted: IdxSet, home: Path) -> Path:
    """Find the folder with all four files: ``home``, or the set's own in it.

    The latter is filled by download if need be. DataError, where that fails, says what to put
    where.
    """
    target = home / wanted.name
    for folder in (target, home):
        if not _absent(folder):
            return folder
    for name, sha256 in zip(FILES, wanted.sha256, strict=True):
        if name not in _absent(target):
            continue
        problem = _download(name, sha256, wanted.mirrors, target)
        if problem is not None:
            raise DataError(
                f"{wanted.name}: {name} is not in {target} and could not be downloaded "
                f"({problem}); put {', '.join(_absent(target))} there, or set data.root or "
                "VERTIZO_DATA to the folder that has them"
            )
    return target


def _absent(folder: Path) -> list[str]:
    return [name for name in FILES if _present(folder, name) is None]


def _present(folder: Path, file: str) -> Path | None:
    """The path of a file, gzipped or unpacked; None where it is missing."""
    places = (folder / file, folder / file.removesuffix(".gz"))
    return next((place for place in places if place.is_file()), None)


def _download(name: str, sha256: str, mirrors: Sequence[str], target: Path) -> str | None:
    """Download a file to ``target``, whole or not at all; return None, or why it failed."""
    problem = "no mirror is known"
    for mirror in mirrors:
        try:
            with urllib.request.urlopen(mirror + name, timeout=TIMEOUT) as response:
                content: bytes = response.read()
        except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
            problem = str(getattr(error, "reason", None) or error or type(error).__name__)
            continue
        if hashlib.sha256(content).hexdigest() != sha256:
            problem = f"{mirror} has another file under that name"
            continue
        partial = target / f"{name}.partial"
        try:
            target.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(content)
            os.replace(partial, target / name)
        except OSError as error:
            if partial.exists():
                partial.unlink()
            return f"{target} cannot be written: {error.strerror}"
        return None
    return problem


def _read(folder: Path, name: str, *, sides: int) -> NDArray[np.uint8]:
    values = read(folder, name)
    if values.ndim != sides:
        raise DataError(
            f"{folder / name} holds an array of {values.ndim} sides; it must have {sides}"
        )
    return values


def read(folder: Path, name: str) -> NDArray[np.uint8]:
    """Read the array of one file, in the shape that its header says.

    DataError where it is no IDX file of bytes, or not as long as announced.
    """
    path = _present(folder, name)
    if path is None:
        raise DataError(f"{folder / name} is missing")
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if len(content) < 4 or content[:3] != b"\x00\x00\x08" or not 1 <= content[3] <= 4:
        raise DataError(f"{path} is not an IDX file of bytes: it starts with {content[:4]!r}")
    sides = content[3]
    start = 4 + 4 * sides
    if len(content) < start:
        raise DataError(f"{path} ends in its header, after {len(content)} bytes")
    shape = struct.unpack_from(f">{sides}I", content, 4)
    if len(content) - start != math.prod(shape):
        raise DataError(f"{path} has {len(content) - start} bytes of data for shape {shape}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
