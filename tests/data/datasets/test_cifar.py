"""CIFAR-10 in its three forms, small."""

from __future__ import annotations

import io
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from tests.data.refusals import refused

from vertizo.core.errors import ConfigError, DataError
from vertizo.data.datasets import catalog, cifar

BATCHES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
COUNT = 4


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar, "BATCH", COUNT)


def batch(seed: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (COUNT, 3072), dtype=np.uint8)
    return pixels, rng.integers(0, 10, COUNT, dtype=np.uint8)


def binary(folder: Path, **changes: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for seed, name in enumerate(BATCHES):
        pixels, labels = batch(seed)
        content = np.concatenate([labels[:, np.newaxis], pixels], 1).tobytes()
        (folder / f"{name}.bin").write_bytes(changes.get(name, content))
    return folder


def python(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for seed, name in enumerate(BATCHES):
        pixels, labels = batch(seed)
        content = {b"data": pixels, b"labels": labels.tolist(), b"batch_label": b"one of six"}
        (folder / name).write_bytes(pickle.dumps(changes.get(name, content), protocol=3))
    return folder


def jpeg(folder: Path, count: int = 6, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in cifar.JPEG_FILES:
        images = []
        for index in range(count):
            stream = io.BytesIO()
            colour = Image.new("RGB", (32, 32), (40 * index, 10, 250))
            colour.save(stream, "JPEG", quality=95, subsampling=0)
            images.append(stream.getvalue())
        # What all of them begin with: quantisation and Huffman tables.
        different = (len(set(column)) > 1 for column in zip(*images, strict=False))
        header = images[0][: next((at for at, is_so in enumerate(different) if is_so), 20)]
        bodies = [image[len(header) :] for image in images]
        arrays = {
            "header": np.frombuffer(header, np.uint8),
            "body": np.frombuffer(b"".join(bodies), np.uint8),
            "offsets": np.cumsum([0, *map(len, bodies)]),
            "labels": np.arange(count, dtype=np.uint8),
            **changes,
        }
        kept = {key: value for key, value in arrays.items() if value is not None}
        np.savez(folder / name, **kept)
    return folder


def refuse(root: Path, *words: str) -> None:
    refused(words, DataError, catalog.load, "cifar-10", root)


def test_batches(tmp_path: Path) -> None:
    pixels, labels = batch(5)
    expected = torch.from_numpy(pixels.reshape(-1, 3, 32, 32) / 255)
    for write, folder in ((binary, "cifar-10-batches-bin"), (python, "cifar-10-batches-py")):
        for outer in (".", "cifar-10", "cifar10"):
            root = tmp_path / f"{folder} {outer}"
            write(root / outer / folder)
            pooled = catalog.load("cifar-10", root)
            assert pooled.name == "cifar-10"
            assert pooled.train.shape == (5 * COUNT, 3, 32, 32)
            assert pooled.test.shape == (COUNT, 3, 32, 32)
            assert pooled.class_names == cifar.CLASSES
            assert pooled.test_labels.tolist() == labels.tolist()
            for channel, (mean, spread) in enumerate(zip(cifar.MEANS, cifar.SPREADS, strict=True)):
                wanted = ((expected[:, channel] - mean) / spread).float()
                torch.testing.assert_close(pooled.test[:, channel], wanted)
            assert pooled.train_labels[:COUNT].tolist() == batch(0)[1].tolist()
    assert catalog.load("cifar-10", binary(tmp_path)).name == "cifar-10"  # directly in the root


def test_jpeg_goes_by_another_name(tmp_path: Path) -> None:
    jpeg(tmp_path / "cifar10")
    pooled = catalog.load("cifar-10", tmp_path)
    assert pooled.name == "cifar-10 (JPEG)"
    assert pooled.train.shape == (6, 3, 32, 32)
    assert pooled.train_labels.tolist() == list(range(6))
    red = pooled.train[:, 0].mean((1, 2)) * 0.2470 + 0.4914
    torch.testing.assert_close(red * 255, torch.arange(6.0) * 40, atol=3, rtol=0)
    # Lossless forms go first.
    python(tmp_path / "cifar-10-batches-py")
    assert catalog.load("cifar-10", tmp_path).name == "cifar-10"


def test_damaged_binary_batches(tmp_path: Path) -> None:
    content = (binary(tmp_path) / "data_batch_2.bin").read_bytes()
    binary(tmp_path, data_batch_2=content[:-1])
    refuse(tmp_path, "data_batch_2.bin", str(len(content) - 1), "3073")
    content = (binary(tmp_path) / "data_batch_1.bin").read_bytes()
    binary(tmp_path, data_batch_1=bytes([10]) + content[1:])
    refuse(tmp_path, "label 10; there are 0 to 9")


class _Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch evil",)


class _EvilArray:
    def __reduce__(self) -> Any:
        return np.load, ("evil.npy",)


def test_a_pickle_that_would_run_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for content in (_Evil(), {b"data": _EvilArray()}, {b"labels": print}):
        refuse(python(tmp_path, data_batch_1=content), "data_batch_1", "it asks for")
        assert not (tmp_path / "evil").exists()


def test_a_pickle_of_something_else(tmp_path: Path) -> None:
    data, labels = np.zeros((COUNT, 3072), np.uint8), [0] * COUNT
    rows: list[tuple[Any, str]] = [
        ([1, 2], "list"),
        ({b"labels": labels}, "data"),
        ({b"data": data[:, :3], b"labels": labels}, "data"),
        ({b"data": data.astype(float), b"labels": labels}, "data"),
        ({b"data": data}, "labels"),
        ({b"data": data, b"labels": [0]}, "1 labels"),
        ({b"data": data, b"labels": ["a"] * COUNT}, "labels"),
        ({b"data": data, b"labels": [11] * COUNT}, "label 11"),
    ]
    for number, (content, word) in enumerate(rows):
        refuse(python(tmp_path / f"cifar-{number}", data_batch_3=content), "data_batch_3", word)
    path = python(tmp_path) / "test_batch"
    path.write_bytes(path.read_bytes()[:-100])
    refuse(tmp_path, "test_batch is not a readable Python batch")


def test_wrong_jpeg_files(tmp_path: Path) -> None:
    stream = io.BytesIO()
    Image.new("RGB", (16, 16)).save(stream, "JPEG")
    body = np.frombuffer(stream.getvalue(), np.uint8)
    small = {"header": body[:0], "body": body, "offsets": [0, len(body)], "labels": [0]}
    rows: list[tuple[dict[str, Any], str]] = [
        ({"labels": None}, "does not have labels"),
        ({"labels": np.arange(5)}, "6 records but 5 labels"),
        ({"labels": np.full(6, 10)}, "label 10"),
        ({"offsets": np.zeros(7, np.int64)}, "offsets"),
        ({"offsets": np.zeros((7, 1), np.int64)}, "offsets"),
        ({"offsets": np.zeros(0, np.int64), "labels": np.zeros(0, np.int64)}, "no records"),
        ({"header": np.zeros(8)}, "header"),
        ({"header": np.zeros(8, np.uint8)}, "image 0 is damaged: no JPEG"),
        (small, "RGB of (16, 16); RGB of 32×32 is expected"),
    ]
    for changes, word in rows:
        refuse(jpeg(tmp_path, **changes), word, cifar.JPEG_FILES[0])
    for content in (b"", b"hello", b"PK\x03\x04 and no more"):
        (jpeg(tmp_path) / cifar.JPEG_FILES[0]).write_bytes(content)
        refuse(tmp_path, "not a readable npz file")


@pytest.mark.full
def test_the_jpeg_files_that_were_found() -> None:
    root = Path(os.environ.get("VERTIZO_DATA", "nowhere"))
    path = root / "cifar10" / cifar.JPEG_FILES[1]
    if not path.is_file():
        pytest.skip("VERTIZO_DATA has no cifar10")
    pixels, labels = cifar.jpegs(path)
    assert pixels.shape == (10_000, 3, 32, 32)
    assert np.bincount(labels).tolist() == [1000] * 10
    assert np.abs(pixels.mean((0, 2, 3)) / 255 - cifar.MEANS).max() < 0.01


def test_pixels_agree_with_the_lossless_ones() -> None:
    """The first image of the first class is where its original is."""
    root = Path(os.environ.get("VERTIZO_DATA", "nowhere")) / "cifar10"
    if not (root / "cifar10-lossless-first4000.npz").is_file():
        pytest.skip("VERTIZO_DATA has no cifar10")
    with np.load(root / cifar.JPEG_FILES[0]) as z:
        header, offsets = z["header"].tobytes(), z["offsets"]
        body = z["body"][: offsets[1]].tobytes()
    with np.load(root / "cifar10-lossless-first4000.npz") as z:
        original = z["x_train"][int(np.argmax(z["y_train"] == 0))].transpose(2, 0, 1)
    decoded = cifar._decoded(header + body, "image 0")
    assert np.abs(decoded.astype(int) - original).mean() < 12


def test_jpegs_without_pillow_name_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jpeg(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ConfigError, match=r"pip install 'vertizo\[images\]'"):
        catalog.load("cifar-10", tmp_path)
