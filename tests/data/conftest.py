"""Small IDX files, and a mirror on this machine that serves them."""

from __future__ import annotations

import gzip
import hashlib
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from vertizo.data.datasets.idx import IdxFile, IdxSet

NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
TRAIN, TEST = 7, 3

IdxBytes = Callable[[NDArray[np.uint8]], bytes]
Plain = dict[str, bytes]


@pytest.fixture(scope="session")
def idx_bytes() -> IdxBytes:
    """An array as the content of an IDX file."""

    def encode(array: NDArray[np.uint8]) -> bytes:
        sides = struct.pack(f">{array.ndim}I", *array.shape)
        return bytes([0, 0, 8, array.ndim]) + sides + array.tobytes()

    return encode


@pytest.fixture(scope="session")
def plain(idx_bytes: IdxBytes) -> Plain:
    """Four small files of an MNIST kind, unpacked: 7 training records and 3 for testing."""
    rng = np.random.default_rng(0)
    arrays = [
        array
        for count in (TRAIN, TEST)
        for array in (
            rng.integers(0, 256, (count, 28, 28), dtype=np.uint8),
            rng.integers(0, 10, count, dtype=np.uint8),
        )
    ]
    return {name: idx_bytes(array) for name, array in zip(NAMES, arrays, strict=True)}


@pytest.fixture
def put(plain: Plain) -> Callable[..., Path]:
    """Write the four files into a folder, gzipped or not; ``changes`` replaces contents."""

    def write(folder: Path, *, packed: bool = True, **changes: Any) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in {**plain, **changes}.items():
            if packed:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0))
            else:
                (folder / name).write_bytes(content)
        return folder

    return write


@dataclass
class Mirror:
    """A web server on 127.0.0.1."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    announced: dict[str, int] = field(default_factory=dict)
    """Lengths that are announced instead of the true ones."""
    nonsense: set[str] = field(default_factory=set)
    """Names that are answered with what is not HTTP."""
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def mirrors(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Mirror]]:
    """Make mirrors; each serves ``files`` by name and answers 404 for others."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")
    servers: list[ThreadingHTTPServer] = []

    def make(files: dict[str, bytes] | None = None) -> Mirror:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.rpartition("/")[2]
                mirror.asked.append(name)
                if name in mirror.nonsense:
                    self.wfile.write(b"hello\r\n\r\n")
                    return
                if name not in mirror.files:
                    self.send_error(404)
                    return
                body = mirror.files[name]
                self.send_response(200)
                self.send_header("Content-Length", str(mirror.announced.get(name, len(body))))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        mirror = Mirror(f"http://127.0.0.1:{server.server_address[1]}/", dict(files or {}))
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        return mirror

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def published(plain: Plain) -> dict[str, bytes]:
    """The four files as a mirror has them."""
    return {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in plain.items()}


@pytest.fixture
def small_set(published: dict[str, bytes]) -> Callable[..., IdxSet]:
    """The set of the four small files, with these mirrors."""

    def make(*urls: str) -> IdxSet:
        files = [
            IdxFile(name, hashlib.sha256(body).hexdigest()) for name, body in published.items()
        ]
        return IdxSet("small", "small", urls, *files)

    return make
