"""IDX files: parsing, finding and downloading them."""

from __future__ import annotations

import gzip
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from tests.data.datasets.idx_files import PUBLISHED, encoded, put, small_set
from tests.data.refusals import refused
from tests.rows import examples

from vertizo.core.errors import DataError
from vertizo.data.datasets import idx

FILE = "x.gz"
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut off": lambda whole: whole[: len(whole) // 2],
    "not gzip": lambda whole: b"hello" + whole,
    "empty": lambda whole: b"",
    "overwritten in the middle": lambda whole: whole[:60] + b"\xff" * 60 + whole[120:],
    "overwritten behind its header": lambda whole: whole[:10] + b"\xff" * 20 + whole[30:],
    "wrong checksum": lambda whole: whole[:-8] + bytes(4) + whole[-4:],
}


class TestRead:
    @settings(max_examples=examples(30), deadline=None)
    @given(
        array=npst.arrays(np.uint8, npst.array_shapes(min_dims=1, max_dims=4, max_side=4)),
        packed=st.booleans(),
    )
    def test_reads_what_was_written(
        self, array: np.ndarray, packed: bool, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        folder = tmp_path_factory.mktemp("idx")
        content = encoded(array)
        written = gzip.compress(content) if packed else content
        (folder / ("x.gz" if packed else "x")).write_bytes(written)
        found = idx.read(folder, FILE)
        assert found.dtype == np.uint8
        assert found.shape == array.shape
        assert (found == array).all()

    @settings(max_examples=examples(150), deadline=None)
    @given(
        content=st.one_of(
            st.binary(max_size=40),
            st.builds(
                lambda sides, tail: b"\0\0\x08" + bytes([len(sides)]) + b"".join(sides) + tail,
                st.lists(st.integers(0, 2**32 - 1).map(lambda n: struct.pack(">I", n)), max_size=6),
                st.binary(max_size=12),
            ),
        )
    )
    @example(content=b"\0\0\x08\x04" + struct.pack(">4I", *[2**16] * 4))
    @example(content=b"\0\0\x08\x03" + struct.pack(">3I", 2**31, 2**31, 4))
    @example(content=b"")
    def test_any_bytes_are_an_array_or_a_data_error(
        self, content: bytes, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        folder = tmp_path_factory.mktemp("idx")
        (folder / "x").write_bytes(content)
        try:
            found = idx.read(folder, FILE)
        except DataError as error:
            line = str(error)
            assert "\n" not in line
            assert str(folder / "x") in line
        else:
            assert content.endswith(found.tobytes())

    def test_a_damaged_file_is_named(self, tmp_path: Path) -> None:
        contents: list[tuple[bytes, list[str]]] = [
            (b"", ["not an IDX file"]),
            (b"\x89PNG\r\n", ["not an IDX file", "PNG"]),
            (b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0", ["not an IDX file"]),  # floats
            (b"\0\0\x08\x00", ["not an IDX file"]),  # no sides
            (b"\0\0\x08\x03\0\0", []),  # cut in the header
            (b"\0\0\x08\x01\0\0\0\x05abcd", ["4 bytes", "(5,)"]),
            (b"\0\0\x08\x01\0\0\0\x05abcdef", ["6 bytes", "(5,)"]),
        ]
        whole = gzip.compress(encoded(np.arange(256, dtype=np.uint8).repeat(9)), mtime=0)
        for number, (content, words) in enumerate(contents):
            for name, written in (("x", content), ("x.gz", gzip.compress(content))):
                path = tmp_path / f"{number} {name}" / name
                path.parent.mkdir()
                path.write_bytes(written)
                line = refused([str(path), *words], DataError, idx.read, path.parent, FILE)
                assert re.search(r"-\d+ bytes", line) is None
        for how, damage in DAMAGES.items():
            path = tmp_path / how / "x.gz"
            path.parent.mkdir()
            path.write_bytes(damage(whole))
            refused([str(path)], DataError, idx.read, path.parent, FILE)

    def test_a_missing_file_is_named_and_a_folder_is_no_file(self, tmp_path: Path) -> None:
        refused(["is missing", str(tmp_path / "x.gz")], DataError, idx.read, tmp_path, FILE)
        (tmp_path / "x.gz").mkdir()
        refused([], DataError, idx.read, tmp_path, FILE)


def test_files_are_found_in_the_folder_or_in_its_subfolder(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for packed in (True, False):
        for inner in ("", "small"):
            root = tmp_path / f"{packed} {inner}"
            folder = put(root / inner, packed=packed)
            before = sorted(folder.iterdir())
            assert idx.folder_of(small_set(), root) == folder
            assert sorted(folder.iterdir()) == before
    assert not cache.exists()
    assert put(cache / "small") == idx.folder_of(small_set(), cache)


class Mirror(ThreadingHTTPServer):
    """A web server on 127.0.0.1 that serves the four small files by name."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/"
        self.fault = ("", "")
        """What is wrong with the file of which name."""
        self.asked: list[str] = []


class Handler(BaseHTTPRequestHandler):
    server: Mirror

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        self.server.asked.append(name)
        fault = self.server.fault[0] if name == self.server.fault[1] else ""
        if fault == "not http":
            self.wfile.write(b"hello\r\n\r\n")
        elif fault == "absent":
            self.send_error(404)
        else:
            body = PUBLISHED[name] + b"\0" * (fault == "other content")
            self.send_response(200)
            self.send_header("Content-Length", str(len(body) + 100 * (fault == "cut off")))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def mirrors() -> Iterator[Callable[..., Mirror]]:
    """Makes mirrors of the four small files, with something wrong with one of them."""
    servers: list[Mirror] = []

    def make(*fault: str) -> Mirror:
        servers.append(made := Mirror())
        made.fault = fault or made.fault
        threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01}).start()
        return made

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def mirror(mirrors: Callable[..., Mirror]) -> Mirror:
    return mirrors()


@pytest.fixture
def nobody() -> str:
    """The address of a mirror that does not answer."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return f"http://127.0.0.1:{port}/"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class TestDownload:
    def test_files_come_from_the_mirror_and_are_found_afterwards(
        self, tmp_path: Path, mirror: Mirror
    ) -> None:
        cache = tmp_path / "deep" / "cache"
        for _ in range(2):
            folder = idx.folder_of(small_set(mirror.url), cache)
            assert folder == cache / "small"
            assert contents(folder) == PUBLISHED
            assert sorted(mirror.asked) == sorted(PUBLISHED)

    def test_only_what_is_missing_is_fetched(self, tmp_path: Path, mirror: Mirror) -> None:
        folder = put(tmp_path / "small", packed=False)
        (folder / "t10k-labels-idx1-ubyte").unlink()
        assert idx.folder_of(small_set(mirror.url), tmp_path) == folder
        assert mirror.asked == ["t10k-labels-idx1-ubyte.gz"]

    def test_a_bad_mirror_is_passed_over(
        self, tmp_path: Path, nobody: str, mirrors: Callable[..., Mirror]
    ) -> None:
        name = "train-labels-idx1-ubyte.gz"
        for fault in ("other content", "absent", "cut off", "not http"):
            bad, good = mirrors(fault, name), mirrors()
            folder = idx.folder_of(small_set(bad.url, good.url), tmp_path / fault)
            assert contents(folder) == PUBLISHED, fault
            assert good.asked == [name], fault
        folder = idx.folder_of(small_set(nobody, mirrors().url), tmp_path / "nobody")
        assert contents(folder) == PUBLISHED

    def test_no_mirror_at_all_says_what_to_put_where(self, tmp_path: Path, nobody: str) -> None:
        words = ["small", str(tmp_path / "small"), "data.root", "VERTIZO_DATA", "refused"]
        refused([*words, *PUBLISHED], DataError, idx.folder_of, small_set(nobody), tmp_path)
        assert list(tmp_path.rglob("*")) == []

    def test_nothing_half_written_stays_and_what_is_missing_is_asked_for(
        self, tmp_path: Path, mirrors: Callable[..., Mirror]
    ) -> None:
        name = "t10k-images-idx3-ubyte.gz"
        for fault in ("other content", "cut off", "absent"):
            mirror, home = mirrors(fault, name), tmp_path / fault
            words = [name, mirror.url] if fault == "other content" else [name]
            line = refused(words, DataError, idx.folder_of, small_set(mirror.url), home)
            assert contents(home / "small").items() <= PUBLISHED.items(), fault
            wanted = line.rpartition("put")[2]
            assert name in wanted
            assert "train-images-idx3-ubyte.gz" not in wanted

    def test_a_place_that_cannot_be_written_is_named(self, tmp_path: Path, mirror: Mirror) -> None:
        (tmp_path / "cache").write_text("a file")
        files, cache = small_set(mirror.url), tmp_path / "cache"
        words = ["cannot be written", str(cache / "small")]
        refused(words, DataError, idx.folder_of, files, cache)
        in_the_way = tmp_path / "small" / "train-images-idx3-ubyte.gz"
        in_the_way.mkdir(parents=True)
        refused(["cannot be written"], DataError, idx.folder_of, files, tmp_path)
        assert list(in_the_way.parent.iterdir()) == [in_the_way]
