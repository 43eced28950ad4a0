"""Named random streams: every draw in the package has a stream with a name, and a number in it.

A :class:`Stream` is a key and nothing else. A child's key is a keyed hash of its name, so that
nobody who knows a child can find its parent or its siblings; a keyed hash of n seeds the n-th draw.
Drawing changes no state: a run that resumes needs counters only, and a party may re-create any draw
at any time.

One federation in one process derives all its streams from one seed (`Stream.from_seed`), so
that a run can be repeated; a party on a machine of its own takes a key from the operating system's
entropy once and keeps it (`vertizo.network.serving.store`). The noise of a serving label holder
uses no stream at all; the noise of a member's embeddings does, and is called no guarantee.

Seeds are 64 bits wide and go to NumPy's bit generators, which use all of them. PyTorch's CPU
generator keeps only the low 32 bits of a seed, few enough to search for somebody who has seen two
perturbed embeddings. It is used to initialise models, to draw dropout's masks and to begin the
search for principal directions, whose result depends on features alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from threading import RLock

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

from vertizo.core.plugins.lazy_import import torch

_default_generator = RLock()


class Stream:
    """A named source of seeds.

    >>> root = Stream.from_seed(7)
    >>> root.child("client", 0).seed() == root.child("client", 1).seed()
    False
    >>> root.child("noise").seed(3) == Stream.from_seed(7).child("noise").seed(3)
    True
    """

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        self._key = key

    @classmethod
    def from_seed(cls, seed: int) -> Stream:
        """Make a stream from an integer seed: repeatable, and open to all who know the seed."""
        return cls(blake2b(str(int(seed)).encode(), digest_size=32, person=b"vertizo").digest())

    @classmethod
    def from_os(cls) -> Stream:
        """Make a stream from the operating system's entropy, which nobody else can know."""
        return cls(os.urandom(32))

    @property
    def key(self) -> bytes:
        """The secret of 32 bytes: it gives every draw of this stream and of those below it."""
        return self._key

    def child(self, *name: str | int) -> Stream:
        """The stream of that name below this one; names of different parts never collide."""
        return Stream(blake2b(repr(name).encode(), key=self._key, digest_size=32).digest())

    def seed(self, counter: int = 0) -> int:
        """The 64-bit seed of draw number ``counter``."""
        data = counter.to_bytes(8, "little")
        return int.from_bytes(blake2b(data, key=self._key, digest_size=8).digest(), "little")

    def generator(self, counter: int = 0) -> np.random.Generator:
        """A NumPy generator for draw number ``counter``."""
        return generator(self.seed(counter))

    @contextmanager
    def torch_default(self, counter: int = 0, device: torch.device | None = None) -> Iterator[None]:
        """Seed PyTorch's default generators from this stream inside the block; restore them after.

        PyTorch's initialisers draw from them. They are of the whole process, so one thread at a
        time is inside. A card given as ``device`` has a generator of its own.
        """
        cards = [device] if device is not None and device.type == "cuda" else []
        with _default_generator, torch.random.fork_rng(devices=cards):
            torch.default_generator.manual_seed(self.seed(counter))
            for card in cards:
                with torch.cuda.device(card):
                    torch.cuda.manual_seed(self.seed(counter))
            yield


class _Words(ISeedSequence):
    """A seed without hashing, as SFC64's author seeds it; NumPy's hashing would take 10 µs."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def generate_state(self, n_words: int, dtype: object = np.uint64) -> NDArray[np.uint64]:
        return np.full(n_words, self._seed, np.uint64)


def generator(seed: int) -> np.random.Generator:
    """The NumPy generator of a 64-bit seed (SFC64: small, fast, passes PractRand)."""
    return np.random.Generator(np.random.SFC64(_Words(seed)))  # type: ignore[arg-type]
