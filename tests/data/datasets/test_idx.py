"""IDX files: parsing, finding and downloading them."""

from __future__ import annotations

import gzip
import re
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from vertizo.core.errors import DataError
from vertizo.data.datasets import idx
from vertizo.data.datasets.idx import IdxFile, IdxSet

FILE = IdxFile("x.gz", "")
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut off": lambda whole: whole[: len(whole) // 2],
    "not gzip": lambda whole: b"hello" + whole,
    "empty": lambda whole: b"",
    "overwritten in the middle": lambda whole: whole[:60] + b"\xff" * 60 + whole[120:],
    "overwritten behind its header": lambda whole: whole[:10] + b"\xff" * 20 + whole[30:],
    "wrong checksum": lambda whole: whole[:-8] + bytes(4) + whole[-4:],
}


def one_line(error: BaseException) -> str:
    text = str(error)
    assert text
    assert "\n" not in text
    return text


@pytest.fixture
def nobody() -> str:
    """The address of a mirror that does not answer."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return f"http://127.0.0.1:{port}/"


class TestRead:
    @settings(max_examples=30, deadline=None)
    @given(
        array=npst.arrays(np.uint8, npst.array_shapes(min_dims=1, max_dims=4, max_side=4)),
        packed=st.booleans(),
    )
    def test_reads_what_was_written(
        self,
        array: np.ndarray,
        packed: bool,
        idx_bytes: Callable[[np.ndarray], bytes],
        tmp_path_factory: pytest.TempPathFactory,
    ) -> None:
        folder = tmp_path_factory.mktemp("idx")
        content = idx_bytes(array)
        if packed:
            (folder / "x.gz").write_bytes(gzip.compress(content))
        else:
            (folder / "x").write_bytes(content)
        found = idx.read(folder, FILE)
        assert found.dtype == np.uint8
        assert found.shape == array.shape
        assert (found == array).all()

    @settings(max_examples=150, deadline=None)
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
            refusal = one_line(error)
            assert str(folder / "x") in refusal
        else:
            assert content.endswith(found.tobytes())

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            pytest.param(b"", ["not an IDX file"], id="empty"),
            pytest.param(b"\x89PNG\r\n", ["not an IDX file", "PNG"], id="a picture"),
            pytest.param(b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0", ["not an IDX file"], id="floats"),
            pytest.param(b"\0\0\x08\x00", ["not an IDX file"], id="no sides"),
            pytest.param(b"\0\0\x08\x03\0\0", [], id="cut in the header"),
            pytest.param(b"\0\0\x08\x01\0\0\0\x05abcd", ["4 bytes", "(5,)"], id="too short"),
            pytest.param(b"\0\0\x08\x01\0\0\0\x05abcdef", ["6 bytes", "(5,)"], id="too long"),
        ],
    )
    @pytest.mark.parametrize("packed", [False, True])
    def test_a_damaged_file_is_named(
        self, content: bytes, words: list[str], packed: bool, tmp_path: Path
    ) -> None:
        path = tmp_path / ("x.gz" if packed else "x")
        path.write_bytes(gzip.compress(content) if packed else content)
        with pytest.raises(DataError) as caught:
            idx.read(tmp_path, FILE)
        text = one_line(caught.value)
        for word in [str(path), *words]:
            assert word in text
        assert re.search(r"-\d+ bytes", text) is None

    @pytest.mark.parametrize("how", DAMAGES)
    def test_a_damaged_archive_is_named(
        self, how: str, tmp_path: Path, idx_bytes: Callable[[np.ndarray], bytes]
    ) -> None:
        whole = gzip.compress(idx_bytes(np.arange(256, dtype=np.uint8).repeat(9)), mtime=0)
        path = tmp_path / "x.gz"
        path.write_bytes(DAMAGES[how](whole))
        with pytest.raises(DataError) as caught:
            idx.read(tmp_path, FILE)
        assert str(path) in one_line(caught.value)

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="is missing") as caught:
            idx.read(tmp_path, FILE)
        assert str(tmp_path / "x.gz") in one_line(caught.value)

    def test_a_folder_is_no_file(self, tmp_path: Path) -> None:
        (tmp_path / "x.gz").mkdir()
        with pytest.raises(DataError):
            idx.read(tmp_path, FILE)


class TestFind:
    @pytest.mark.parametrize("packed", [True, False])
    @pytest.mark.parametrize("inner", ["", "small"])
    def test_files_are_found_in_the_folder_or_in_its_subfolder(
        self,
        packed: bool,
        inner: str,
        tmp_path: Path,
        put: Callable[..., Path],
        small_set: Callable[..., IdxSet],
    ) -> None:
        folder = put(tmp_path / inner, packed=packed)
        before = sorted(folder.iterdir())
        assert idx.folder_of(small_set(), tmp_path, cache=tmp_path / "cache") == folder
        assert sorted(folder.iterdir()) == before
        assert not (tmp_path / "cache").exists()

    def test_the_cache_is_used_without_a_root(
        self, tmp_path: Path, put: Callable[..., Path], small_set: Callable[..., IdxSet]
    ) -> None:
        folder = put(tmp_path / "cache" / "small")
        assert idx.folder_of(small_set(), None, cache=tmp_path / "cache") == folder


class TestDownload:
    def test_files_come_from_the_mirror_and_are_found_afterwards(
        self,
        tmp_path: Path,
        mirrors: Callable[..., Any],
        published: dict[str, bytes],
        small_set: Callable[..., IdxSet],
    ) -> None:
        mirror = mirrors(published)
        folder = idx.folder_of(small_set(mirror.url), None, cache=tmp_path / "deep" / "cache")
        assert folder == tmp_path / "deep" / "cache" / "small"
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == published
        assert sorted(mirror.asked) == sorted(published)
        assert idx.folder_of(small_set(mirror.url), None, cache=folder.parent) == folder
        assert len(mirror.asked) == 4

    def test_only_what_is_missing_is_fetched(
        self,
        tmp_path: Path,
        mirrors: Callable[..., Any],
        published: dict[str, bytes],
        put: Callable[..., Path],
        small_set: Callable[..., IdxSet],
    ) -> None:
        mirror = mirrors(published)
        folder = put(tmp_path / "small", packed=False)
        (folder / "t10k-labels-idx1-ubyte").unlink()
        assert idx.folder_of(small_set(mirror.url), tmp_path, cache=tmp_path / "cache") == folder
        assert mirror.asked == ["t10k-labels-idx1-ubyte.gz"]

    @pytest.mark.parametrize("fault", ["other content", "absent", "cut off", "not http"])
    def test_a_bad_mirror_is_passed_over(
        self,
        fault: str,
        tmp_path: Path,
        mirrors: Callable[..., Any],
        published: dict[str, bytes],
        small_set: Callable[..., IdxSet],
    ) -> None:
        bad, good = mirrors(published), mirrors(published)
        name = "train-labels-idx1-ubyte.gz"
        if fault == "other content":
            bad.files[name] += b"\0"
        elif fault == "absent":
            del bad.files[name]
        elif fault == "cut off":
            bad.announced[name] = len(published[name]) + 100
        else:
            bad.nonsense.add(name)
        folder = idx.folder_of(small_set(bad.url, good.url), None, cache=tmp_path)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == published
        assert good.asked == [name]

    def test_a_mirror_that_does_not_answer_is_passed_over(
        self,
        nobody: str,
        tmp_path: Path,
        mirrors: Callable[..., Any],
        published: dict[str, bytes],
        small_set: Callable[..., IdxSet],
    ) -> None:
        folder = idx.folder_of(small_set(nobody, mirrors(published).url), None, cache=tmp_path)
        assert len(list(folder.iterdir())) == 4

    def test_no_mirror_at_all_says_what_to_put_where(
        self, nobody: str, tmp_path: Path, small_set: Callable[..., IdxSet]
    ) -> None:
        with pytest.raises(DataError) as caught:
            idx.folder_of(small_set(nobody), tmp_path, cache=tmp_path / "cache")
        text = one_line(caught.value)
        for file in small_set().files:
            assert file.name in text
        for word in ("small", str(tmp_path / "small"), "data.root", "VERTIZO_DATA", "refused"):
            assert word in text
        assert list(tmp_path.rglob("*")) == []

    @pytest.mark.parametrize("fault", ["other content", "cut off"])
    def test_nothing_half_written_stays(
        self,
        fault: str,
        tmp_path: Path,
        mirrors: Callable[..., Any],
        published: dict[str, bytes],
        small_set: Callable[..., IdxSet],
    ) -> None:
        mirror = mirrors(published)
        name = "t10k-images-idx3-ubyte.gz"
        if fault == "other content":
            mirror.files[name] = b"an error page"
        else:
            mirror.announced[name] = len(published[name]) + 1
        with pytest.raises(DataError) as caught:
            idx.folder_of(small_set(mirror.url), None, cache=tmp_path)
        text = one_line(caught.value)
        assert name in text
        assert mirror.url in text or fault == "cut off"
        for path in (tmp_path / "small").iterdir():
            assert path.read_bytes() == published[path.name]

    def test_only_what_is_still_missing_is_asked_of_the_reader(
        self,
        tmp_path: Path,
        mirrors: Callable[..., Any],
        published: dict[str, bytes],
        small_set: Callable[..., IdxSet],
    ) -> None:
        mirror = mirrors(published)
        del mirror.files["t10k-labels-idx1-ubyte.gz"]
        with pytest.raises(DataError) as caught:
            idx.folder_of(small_set(mirror.url), None, cache=tmp_path)
        wanted = str(caught.value).rpartition("put")[2]
        assert "t10k-labels-idx1-ubyte.gz" in wanted
        assert "train-images-idx3-ubyte.gz" not in wanted

    def test_a_folder_that_cannot_be_written_is_named(
        self,
        tmp_path: Path,
        mirrors: Callable[..., Any],
        published: dict[str, bytes],
        small_set: Callable[..., IdxSet],
    ) -> None:
        (tmp_path / "cache").write_text("a file")
        with pytest.raises(DataError, match="cannot be written") as caught:
            idx.folder_of(small_set(mirrors(published).url), None, cache=tmp_path / "cache")
        assert str(tmp_path / "cache" / "small") in one_line(caught.value)

    def test_a_file_that_cannot_be_put_in_place_leaves_no_other(
        self,
        tmp_path: Path,
        mirrors: Callable[..., Any],
        published: dict[str, bytes],
        small_set: Callable[..., IdxSet],
    ) -> None:
        in_the_way = tmp_path / "small" / "train-images-idx3-ubyte.gz"
        in_the_way.mkdir(parents=True)
        with pytest.raises(DataError, match="cannot be written"):
            idx.folder_of(small_set(mirrors(published).url), tmp_path, cache=tmp_path / "cache")
        assert list(in_the_way.parent.iterdir()) == [in_the_way]
