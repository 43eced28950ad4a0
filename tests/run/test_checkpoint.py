"""One file that is there whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.refusals import refused
from tests.rows import each, examples
from tests.same import same
from torch import Tensor

from vertizo.core.errors import RunError
from vertizo.run.results import checkpoint

DTYPES = [torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool]


def tensors() -> st.SearchStrategy[Tensor]:
    def make(shape: list[int], dtype: torch.dtype, seed: int) -> Tensor:
        numbers = np.random.default_rng(seed).integers(0, 2, shape)
        return torch.from_numpy(np.asarray(numbers)).to(dtype)

    shapes = st.lists(st.integers(0, 3), max_size=3)
    return st.builds(make, shapes, st.sampled_from(DTYPES), st.integers(0, 9))


def states() -> st.SearchStrategy[Any]:
    letters = st.characters(blacklist_categories=["Cs"])
    keys = st.text(letters, max_size=4).filter(lambda key: not key.startswith("$"))
    numbers = st.booleans() | st.integers(-(2**70), 2**70) | st.floats()
    plain = st.none() | numbers | st.text(letters, max_size=5)
    leaves = plain | tensors() | st.binary(max_size=5)
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
        max_leaves=8,
    )


class TestRoundTrip:
    @settings(max_examples=examples(80), deadline=None)
    @given(state=states())
    def test_what_is_saved_is_loaded(
        self, state: Any, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        path = tmp_path_factory.mktemp("state") / "x.safetensors"
        checkpoint.save(path, state)
        assert same(checkpoint.load(path), state)
        assert {item.name for item in path.parent.iterdir()} == {"x.safetensors", "digests"}

    @each(
        "state",
        [
            {"frame": b""},
            {"a/b": torch.zeros(1), "a": {"b": torch.ones(1)}},
            {"a": [torch.zeros(1)], "a/0": torch.ones(1)},
            {"": torch.zeros(1)},
            {"-0": torch.tensor([-0.0, float("nan"), float("inf")])},
        ],
    )
    def test_odd_states(self, state: Any, tmp_path: Path) -> None:
        checkpoint.save(tmp_path / "x", state)
        assert same(checkpoint.load(tmp_path / "x"), state)

    def test_views_are_saved_as_what_they_show(self, tmp_path: Path) -> None:
        """And share nothing with what was saved."""
        whole = torch.arange(12.0).reshape(3, 4)
        shown = whole.t().tolist()
        checkpoint.save(tmp_path / "x", {"t": whole.t(), "row": whole[1], "again": whole[1]})
        whole += 1
        loaded = checkpoint.load(tmp_path / "x")
        assert loaded["t"].tolist() == shown
        assert loaded["row"].tolist() == loaded["again"].tolist() == [4, 5, 6, 7]


def refusal(path: Path, words: str = "not a") -> None:
    refused([str(path), words], RunError, checkpoint.load, path)


@each(
    "metadata",
    [
        None,
        {"format": "vertizo-0", "skeleton": "{}"},
        {"format": checkpoint.FORMAT},
        {checkpoint.FORMAT: "{"},
        {checkpoint.FORMAT: json.dumps({"a": {"$tensor": "absent"}})},
    ],
)
def test_a_safetensors_file_of_somebody_else(
    metadata: dict[str, str] | None, tmp_path: Path
) -> None:
    content = safetensors.torch.save({"values": torch.ones(2)}, metadata)
    (tmp_path / "x").write_bytes(content)
    refusal(tmp_path / "x")


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    """A file that is missing, cut, or something else altogether; and a folder."""
    path = tmp_path / "x"
    refusal(path, "there is no such checkpoint")
    checkpoint.save(path, {"values": torch.ones(100), "round": 3})
    whole = path.read_bytes()
    for kept in (0, 1, 8, 30, -1, -300):
        path.write_bytes(whole[:kept])
        refusal(path, "is damaged or was changed")
        checkpoint.keep(path, whole[:kept])
        refusal(path)
    checkpoint.keep(path, b"hello, this is no checkpoint at all")
    refusal(path)
    (tmp_path / "folder").mkdir()
    refusal(tmp_path / "folder")


class TestAtomicWriting:
    @each("step", ["fsync", "replace"])
    def test_a_crash_leaves_the_old_file(
        self, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "x"
        checkpoint.save(path, {"round": 1})

        def crash(*_: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(os, step, crash)
            with pytest.raises(KeyboardInterrupt):
                checkpoint.save(path, {"round": 2})
        assert checkpoint.load(path) == {"round": 1}
        checkpoint.save(path, {"round": 3})
        assert checkpoint.load(path) == {"round": 3}
        assert {item.name for item in tmp_path.iterdir()} == {"x", "digests"}

    def test_content_is_on_the_disk_before_it_takes_the_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls: list[str] = []
        for name in ("fsync", "replace"):
            real = getattr(os, name)

            def noted(*args: Any, name: str = name, real: Any = real) -> Any:
                calls.append(name)
                return real(*args)

            monkeypatch.setattr(os, name, noted)
        checkpoint.write_atomically(tmp_path / "x", b"content")
        assert calls == ["fsync", "replace", "fsync"]
        assert (tmp_path / "x").read_bytes() == b"content"


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux keeps the peak")
def test_a_large_tensor_is_not_copied(tmp_path: Path) -> None:
    def kilobytes(key: str) -> int:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return int(status.split(f"{key}:")[1].split()[0])

    size = 1 << 25
    tensor, path = torch.full((size,), 3.0), tmp_path / "x.safetensors"
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = kilobytes("VmRSS")
    checkpoint.save(path, {"table": tensor, "half": tensor[:5]})
    assert kilobytes("VmHWM") - before < size * 4 // 1024 // 8
    own = kilobytes("RssAnon")
    found = checkpoint.load(path)["table"]
    assert torch.equal(found, tensor)
    assert kilobytes("RssAnon") - own < size * 4 // 1024 // 2  # of which the comparison is some


def test_the_helper_notices_differences() -> None:
    whole = {"a": [torch.zeros(2), 1]}
    assert same(whole, {"a": [torch.zeros(2), 1]})
    for other in (
        {"a": [torch.tensor([0.0, -0.0]), 1]},
        {"a": [torch.zeros(2), 2]},
        {"a": [torch.zeros(2)]},
        {"b": [torch.zeros(2), 1]},
        {"a": [None, 1]},
    ):
        assert not same(whole, other)
