"""Vectors of texts by a frozen encoder: computed once, then kept in the cache.

A party encodes its own tokens and nothing is fitted, so that the numbers depend on no label, and a
record's on no other record. Needs the extra ``text``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from vertizo.core import digests
from vertizo.core.errors import DataError
from vertizo.data.datasets import files
from vertizo.models.architectures import text
from vertizo.protocol.messages import Purpose

TOKENS_AT_ONCE = 4096
"""Tokens of one batch, counted as texts times the length of the shortest."""


def encoded_parts(
    values: Mapping[Purpose, Tensor], chosen: Mapping[Purpose, Tensor], checkpoint: str
) -> dict[Purpose, Tensor]:
    """The vectors of one party's texts, by purpose; errors as of `encoded`.

    ``chosen`` are row numbers of training and validation records. Their texts are encoded together
    in that order, so that every seed's choice among the same records finds the same file.
    """
    order = torch.cat(list(chosen.values())).argsort()
    texts = torch.cat([values[purpose] for purpose in chosen])
    vectors = encoded(texts[order], checkpoint)[order.argsort()]
    parts = torch.split(vectors, [len(ids) for ids in chosen.values()])
    return {**dict(zip(chosen, parts, strict=True)), "test": encoded(values["test"], checkpoint)}


def encoded(tokens: Tensor, checkpoint: str) -> Tensor:
    """Mean vectors of texts' tokens by an encoder, float32 [texts, hidden].

    ``tokens`` are integers [texts, length]; a text without any becomes zeros. The first call
    computes, with a progress bar on a terminal, and continues an interrupted one; later calls read
    a file of the cache, named by a hash of the tokens and the encoder's weights.

    Raises:
        ConfigError: the encoder cannot be loaded, or the tokens are not its own.
        DataError: the cache cannot be used.
        RunError: the file is damaged.
    """
    if not len(tokens):
        return torch.zeros(0, _make(checkpoint, tokens).width)
    done = files.home(None) / "text-vectors" / f"{_digest(tokens, checkpoint)}.npy"
    try:
        if not done.is_file():
            from filelock import FileLock

            done.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(done.with_suffix(".lock")):
                if not done.is_file():
                    _compute(tokens, _make(checkpoint, tokens), done)
        digests.check(done, "remove it, and it is computed anew")
        return torch.from_numpy(np.load(done))
    except OSError as error:
        raise DataError(
            f"vectors of texts cannot be kept in {done.parent}: {error.strerror or error}; "
            "set XDG_CACHE_HOME to a folder that can be written"
        ) from None


def _digest(tokens: Tensor, checkpoint: str) -> str:
    """A hash of the tokens and of the encoder's files."""
    made = blake2b(digest_size=20)
    for file in sorted(text.folder(checkpoint).iterdir()):
        if file.name == "config.json" or file.suffix in (".safetensors", ".bin"):
            made.update(file.read_bytes())
    made.update(repr((str(tokens.dtype), tuple(tokens.shape))).encode())
    made.update(tokens.contiguous().numpy().data)
    return made.hexdigest()


def _make(checkpoint: str, tokens: Tensor) -> text.Text:
    with torch.random.fork_rng(devices=[]):
        return text.Text(text.Spec(checkpoint), tokens.shape[1], "mean", None).eval()


def _compute(tokens: Tensor, encoder: text.Text, done: Path) -> None:
    """Fill a file beside ``done`` and move it there; rows of NaN are not computed yet."""
    part, shape = done.with_suffix(".part"), (len(tokens), encoder.width)
    try:
        vectors = np.load(part, mmap_mode="r+")
    except (FileNotFoundError, ValueError, EOFError):
        begun = done.with_suffix(".begun")  # a file of zeros, until it is filled
        np.lib.format.open_memmap(begun, "w+", np.float32, shape)[:] = np.nan
        os.replace(begun, part)
        vectors = np.load(part, mmap_mode="r+")
    left, console = np.flatnonzero(np.isnan(vectors[:, 0])), Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("encoding texts", total=len(tokens), completed=len(tokens) - len(left))
        for ids in _batches((tokens != 0).sum(1).numpy(), left):
            batch = tokens[torch.from_numpy(ids)]
            longest = max(1, int((batch != 0).sum(1).max()))
            with torch.inference_mode():
                vectors[ids] = encoder(batch[:, :longest]).numpy()
            bar.advance(task, len(ids))
    vectors.flush()
    from filelock import FileLock

    with FileLock(done.parent / ".lock"), digests.replacing(done, digests.sha256_of(part)):
        os.replace(part, done)


def _batches(lengths: NDArray[np.int64], left: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Batch texts of about the same length, the longest first: little padding is computed.

    A batch has `TOKENS_AT_ONCE` tokens at most, padding included, or one text.
    """
    order = left[np.argsort(-lengths[left], kind="stable")]
    start = 0
    while start < len(order):
        size = max(1, TOKENS_AT_ONCE // max(1, int(lengths[order[start]])))
        yield order[start : start + size]
        start += size
