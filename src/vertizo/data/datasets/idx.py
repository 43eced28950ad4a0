"""IDX files (MNIST, Fashion-MNIST): found in a folder, or downloaded once and checked."""

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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vertizo.core.errors import DataError

TIMEOUT = 20.0
"""Seconds that a mirror may stay silent."""


@dataclass(frozen=True)
class IdxFile:
    """One published file."""

    name: str
    sha256: str
    """Of the gzipped file."""


@dataclass(frozen=True)
class IdxSet:
    """The four files of one data set."""

    name: str
    folder: str
    mirrors: tuple[str, ...]
    train_images: IdxFile
    train_labels: IdxFile
    test_images: IdxFile
    test_labels: IdxFile

    @property
    def files(self) -> tuple[IdxFile, ...]:
        """All four."""
        return (self.train_images, self.train_labels, self.test_images, self.test_labels)


MNIST = IdxSet(
    name="mnist",
    folder="mnist",
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    train_images=IdxFile(
        "train-images-idx3-ubyte.gz",
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    ),
    train_labels=IdxFile(
        "train-labels-idx1-ubyte.gz",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    ),
    test_images=IdxFile(
        "t10k-images-idx3-ubyte.gz",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    ),
    test_labels=IdxFile(
        "t10k-labels-idx1-ubyte.gz",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
)

FASHION_MNIST = IdxSet(
    name="fashion-mnist",
    folder="fashion-mnist",
    mirrors=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    train_images=IdxFile(
        "train-images-idx3-ubyte.gz",
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    ),
    train_labels=IdxFile(
        "train-labels-idx1-ubyte.gz",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    ),
    test_images=IdxFile(
        "t10k-images-idx3-ubyte.gz",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    ),
    test_labels=IdxFile(
        "t10k-labels-idx1-ubyte.gz",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
)


def folder_of(files: IdxSet, root: Path | None, *, cache: Path) -> Path:
    """The folder that holds all four files, filled by download if need be.

    ``root`` may hold them in a folder of the set's name, or directly. Without a root, a download
    goes to ``cache``.

    Raises:
        DataError: the files are nowhere and cannot be had; says what to put where.
    """
    home = root if root is not None else cache
    candidates = [home / files.folder, home]
    for folder in candidates:
        if all(_present(folder, file) is not None for file in files.files):
            return folder
    target = candidates[0]
    for file in files.files:
        if _present(target, file) is not None:
            continue
        problem = _download(file, files.mirrors, target)
        if problem is not None:
            raise DataError(
                f"{files.name}: {file.name} is not in {target} and could not be downloaded "
                f"({problem}); put {', '.join(_missing(target, files))} there, or set data.root or "
                "VERTIZO_DATA to the folder that has them"
            )
    return target


def _missing(folder: Path, files: IdxSet) -> list[str]:
    return [file.name for file in files.files if _present(folder, file) is None]


def _present(folder: Path, file: IdxFile) -> Path | None:
    """The file, gzipped or unpacked."""
    for name in (file.name, file.name.removesuffix(".gz")):
        if (folder / name).is_file():
            return folder / name
    return None


def _download(file: IdxFile, mirrors: Sequence[str], target: Path) -> str | None:
    """Fetch a file into ``target``; None, or why it could not be had."""
    problem = "no mirror is known"
    for mirror in mirrors:
        try:
            with urllib.request.urlopen(mirror + file.name, timeout=TIMEOUT) as response:
                content: bytes = response.read()
        except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
            problem = str(getattr(error, "reason", None) or error or type(error).__name__)
            continue
        if hashlib.sha256(content).hexdigest() != file.sha256:
            problem = f"{mirror} has another file under that name"
            continue
        return _put(content, target, file.name)
    return problem


def _put(content: bytes, target: Path, name: str) -> str | None:
    """Write a file whole or not at all; None, or why it could not be written."""
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


def read(folder: Path, file: IdxFile) -> NDArray[np.uint8]:
    """The array of one file, of the shape that its header says.

    Raises:
        DataError: not an IDX file of bytes, or of another length than announced.
    """
    path = _present(folder, file)
    if path is None:
        raise DataError(f"{folder / file.name} is missing")
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
