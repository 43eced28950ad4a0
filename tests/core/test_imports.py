"""What a user brings: objects by import path."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from vertizo.core.errors import ConfigError
from vertizo.core.imports import load_object


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Write files into the folder that the test runs in; their modules are forgotten after it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)

    def call(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    yield call
    for name in set(sys.modules) - before:
        del sys.modules[name]


def refusal(path: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_object("client.model.path", path)
    line = str(caught.value)
    assert "\n" not in line
    assert f"client.model.path is {path!r}" in line
    return line


class TestFound:
    def test_in_a_file_by_relative_and_absolute_path(self, write: Callable[..., Path]) -> None:
        path = write("mine.py", "def double(x):\n    return 2 * x\n")
        assert load_object("key", "mine.py:double")(4) == 8
        assert load_object("key", f"{path}:double")(4) == 8

    def test_in_a_file_of_a_folder(self, write: Callable[..., Path]) -> None:
        write("some folder/my-models.v2.py", "answer = 42\n")
        assert load_object("key", "some folder/my-models.v2.py:answer") == 42

    def test_in_a_folder_with_a_colon_in_its_name(self, write: Callable[..., Path]) -> None:
        path = write("run 12:30/mine.py", "answer = 42\n")
        assert load_object("key", f"{path}:answer") == 42

    def test_in_an_installed_package(self) -> None:
        assert load_object("key", "torch.nn:Linear") is nn.Linear
        assert load_object("key", "vertizo.models.networks:mlp").__name__ == "mlp"

    def test_in_a_package_on_the_path(
        self, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        write("brought/__init__.py", "")
        write("brought/nets/__init__.py", "from brought.nets.small import Net\n")
        write("brought/nets/small.py", "class Net:\n    pass\n")
        monkeypatch.syspath_prepend(tmp_path)
        assert load_object("key", "brought.nets:Net").__name__ == "Net"
        assert load_object("key", "brought.nets.small:Net") is load_object(
            "key", "brought.nets:Net"
        )

    def test_a_file_with_postponed_annotations_and_a_dataclass(
        self, write: Callable[..., Path]
    ) -> None:
        write(
            "mine.py",
            "from __future__ import annotations\nfrom dataclasses import dataclass\n"
            "@dataclass\nclass Widths:\n    first: int = 3\n",
        )
        assert load_object("key", "mine.py:Widths")().first == 3

    def test_a_file_named_as_a_module_that_exists_does_not_replace_it(
        self, write: Callable[..., Path]
    ) -> None:
        import json

        write("json.py", "loads = 'mine'\n")
        assert load_object("key", "json.py:loads") == "mine"
        assert sys.modules["json"] is json

    def test_two_files_of_one_name_are_two(self, write: Callable[..., Path]) -> None:
        write("a/net.py", "name = 'a'\n")
        write("b/net.py", "name = 'b'\n")
        assert load_object("key", "a/net.py:name") == "a"
        assert load_object("key", "b/net.py:name") == "b"


class TestNotFound:
    def test_the_form_is_shown(self) -> None:
        for path in ("", "net.py", ":Net", "net.py:", "package.module", ":"):
            assert "package.module:name or file.py:name" in refusal(path)

    def test_no_such_file(self, write: Callable[..., Path]) -> None:
        assert "there is no file absent.py" in refusal("absent.py:Net")

    def test_a_folder_is_no_file(self, write: Callable[..., Path]) -> None:
        write("folder.py/x", "")
        assert "there is no file folder.py" in refusal("folder.py:Net")

    def test_no_such_name(self, write: Callable[..., Path]) -> None:
        write("mine.py", "Net = 3\n")
        assert "mine.py has no 'Nett'" in refusal("mine.py:Nett")
        assert "torch.nn has no 'Lineal'" in refusal("torch.nn:Lineal")

    def test_no_such_module(self) -> None:
        line = refusal("nobody_has_this.nets:Net")
        assert "importing nobody_has_this.nets failed" in line
        assert "No module named 'nobody_has_this'" in line

    def test_a_relative_module(self) -> None:
        assert "importing ..nets failed" in refusal("..nets:Net")

    def test_an_error_inside_is_told_in_one_line(self, write: Callable[..., Any]) -> None:
        for text, *words in (
            ("import nobody_has_this", "ModuleNotFoundError", "nobody_has_this"),
            ("def (", "SyntaxError", "line 1"),
            ("1 / 0", "ZeroDivisionError"),
            ("raise KeyError('a')", "KeyError", "'a'"),
            ("raise ValueError('first\\nsecond')", "ValueError", "first"),
            ("raise ValueError", "ValueError"),
            ("import sys; sys.exit(3)", "SystemExit"),
            ("x = b'\\x00'.decode('utf-16')", "UnicodeDecodeError"),
        ):
            write("mine.py", text)
            line = refusal("mine.py:Net")
            for word in ["importing mine.py failed", *words]:
                assert word in line, text

    def test_a_file_that_is_no_text(self, write: Callable[..., Path]) -> None:
        write("mine.py", "").write_bytes(b"\xff\xfe\x00\x01")
        assert "importing mine.py failed" in refusal("mine.py:Net")

    def test_an_interrupt_goes_through(self, write: Callable[..., Path]) -> None:
        write("mine.py", "raise KeyboardInterrupt")
        with pytest.raises(KeyboardInterrupt):
            load_object("key", "mine.py:Net")
