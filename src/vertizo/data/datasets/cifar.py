"""The loader of CIFAR-10, from binary batches, Python batches, or JPEG images in npz files.

JPEG loses detail, so that figures on it are not figures on CIFAR-10; the data set is then called
``cifar-10 (JPEG)``, also in every summary.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertizo.core.errors import ConfigError, DataError
from vertizo.data.datasets import files
from vertizo.data.options import DataConfig
from vertizo.data.pooled import Pooled
from vertizo.data.tabular.frames import first_line
from vertizo.models.losses import Classification

BATCH = 10_000
"""Images in one of the six published batches."""
PIXELS = 3 * 32 * 32
MEANS, SPREADS = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
"""Means and standard deviations of red, green and blue that are in general use for CIFAR-10."""
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
HOMES = ("cifar-10", "cifar10")
JPEG_FILES = ("cifar10-train-jpeg.npz", "cifar10-test-jpeg.npz")

Batch = tuple[NDArray[np.uint8], Tensor]
"""Pixels [records, 3, 32, 32] and labels [records]."""


def load(root: Path | None, _: DataConfig) -> Pooled:
    """Load the best form that is found: binary batches, else Python batches, else JPEG.

    DataError where there is none, or a file is damaged.
    """
    batches = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    binary = [f"{name}.bin" for name in batches]
    forms: list[tuple[str, list[str], Callable[[Path], Batch]]] = [
        ("cifar-10-batches-bin", binary, binary_batch),
        ("cifar-10-batches-py", batches, python_batch),
        ("", list(JPEG_FILES), jpegs),
    ]
    for folder, names, read in forms:
        places = [folder] if folder else []
        places += [f"{home}/{folder}" if folder else home for home in HOMES]
        found = files.find(root, [*places, *HOMES], names)
        if found is not None:
            *train, test = (read(found / name) for name in names)
            pixels = torch.empty(sum(len(labels) for _, labels in train), 3, 32, 32)
            start = 0
            for images, _labels in train:
                pixels[start : start + len(images)] = files.scaled(images, MEANS, SPREADS)
                start += len(images)
            return Pooled(
                "cifar-10" if folder else "cifar-10 (JPEG)",
                *(pixels, torch.cat([labels for _, labels in train])),
                *(files.scaled(test[0], MEANS, SPREADS), test[1]),
                Classification(len(CLASSES)),
                class_names=CLASSES,
            )
    raise files.missing("cifar-10", root, forms[0][0], forms[0][1])


def binary_batch(path: Path) -> Batch:
    """Read a batch of the binary version: for each image a label and 3,072 bytes.

    DataError for another length, or a label beyond 9.
    """
    content = np.frombuffer(path.read_bytes(), np.uint8)
    if content.size != BATCH * (PIXELS + 1):
        raise DataError(
            f"{path} has {content.size} bytes; a batch has {BATCH} images of {PIXELS + 1} bytes"
        )
    records = content.reshape(BATCH, PIXELS + 1)
    labels = files.check_labels(path, records[:, 0], BATCH, len(CLASSES))
    return records[:, 1:].reshape(-1, 3, 32, 32), labels


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that makes NumPy arrays and plain values, and refuses all other objects.

    A pickle may otherwise call any function of any module while it is read.
    """

    _RECONSTRUCT = np.empty(0).__reduce__()[0]

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return self._RECONSTRUCT
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR-10 batch needs")


def python_batch(path: Path) -> Batch:
    """Read a batch of the Python version: a pickled dictionary of ``data`` and ``labels``.

    DataError where it is no such dictionary, or would run code.
    """
    try:
        content = _ArraysOnly(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except Exception as error:  # a damaged pickle raises nearly anything
        raise DataError(f"{path} is not a readable Python batch: {first_line(error)}") from None
    if not isinstance(content, dict):
        raise DataError(f"{path} holds a {type(content).__name__}, not a Python batch")
    data, labels = (content.get(key.encode(), content.get(key)) for key in ("data", "labels"))
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape != (BATCH, PIXELS):
        raise DataError(f"{path}: data is not an array of bytes of shape [{BATCH}, {PIXELS}]")
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise DataError(f"{path}: labels is not a list of whole numbers")
    checked = files.check_labels(path, np.array(labels, np.int64), BATCH, len(CLASSES))
    return data.reshape(-1, 3, 32, 32), checked


def jpegs(path: Path) -> Batch:
    """Read JPEG images from an npz file: number i is ``header + body[offsets[i]:offsets[i+1]]``.

    DataError where arrays are missing or do not fit, or an image is damaged.
    """
    stored = files.arrays(
        path, {"header": (None,), "body": (None,), "offsets": (None,), "labels": (None,)}
    )
    offsets = stored["offsets"].astype(np.int64)
    count = len(offsets) - 1
    labels = files.check_labels(path, stored["labels"], max(count, 0), len(CLASSES))
    if offsets[0] != 0 or offsets[-1] != len(stored["body"]) or (np.diff(offsets) < 0).any():
        raise DataError(f"{path}: offsets do not divide its body of {len(stored['body'])} bytes")
    _image_reader()  # before threads ask for it
    header, body = (stored[key].astype(np.uint8).tobytes() for key in ("header", "body"))
    pixels = np.empty((count, 3, 32, 32), np.uint8)

    def decode(run: range) -> None:
        for index in run:
            content = header + body[offsets[index] : offsets[index + 1]]
            pixels[index] = _decoded(content, f"{path}: image {index}")

    # The decoder releases the interpreter's lock.
    runs = [range(start, min(start + 1000, count)) for start in range(0, count, 1000)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(decode, runs))
    return pixels, labels


def _image_reader() -> Any:
    """Pillow's module of images; ConfigError where it is not installed."""
    try:
        from PIL import Image
    except ImportError:
        raise ConfigError("JPEG images need the extra: pip install 'vertizo[images]'") from None
    return Image


def _decoded(content: bytes, name: str) -> NDArray[np.uint8]:
    """Decode one JPEG to pixels [3, 32, 32]."""
    image_reader = _image_reader()
    try:
        with image_reader.open(io.BytesIO(content), formats=["JPEG"]) as image:
            if image.size != (32, 32) or image.mode != "RGB":
                raise DataError(f"{name} is {image.mode} of {image.size}; RGB of 32×32 is expected")
            return np.asarray(image).transpose(2, 0, 1)
    except (OSError, ValueError, SyntaxError) as error:
        reason = "no JPEG" if "cannot identify" in str(error) else str(error)
        raise DataError(f"{name} is damaged: {reason}") from None
