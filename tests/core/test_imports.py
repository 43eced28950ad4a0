"""What a user brings: objects by import path."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import nn

from vertizo.core.errors import ConfigError
from vertizo.core.plugins.imports import load_object


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The folder that the test runs in; modules from it are forgotten after it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(name: str, text: str) -> Path:
    path = Path.cwd() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def refusal(path: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_object("client.model.path", path)
    line = str(caught.value)
    assert "\n" not in line
    assert f"client.model.path is {path!r}" in line
    return line


def test_what_is_in_a_file() -> None:
    """By relative and absolute path, in folders of any name; two files of one name are two."""
    names = ("mine.py", "some folder/my-models.v2.py", "run 12:30/mine.py", "a/net.py", "b/net.py")
    for name in names:
        path = write(name, f"name = {name!r}\ndef double(x):\n    return 2 * x\n")
        for place in (name, path):
            assert load_object("key", f"{place}:name") == name
            assert load_object("key", f"{place}:double")(4) == 8


def test_what_is_in_a_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert load_object("key", "torch.nn:Linear") is nn.Linear
    assert load_object("key", "vertizo.models.architectures.networks:mlp").__name__ == "mlp"
    write("brought/__init__.py", "")
    write("brought/nets/__init__.py", "from brought.nets.small import Net\n")
    write("brought/nets/small.py", "class Net:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = load_object("key", "brought.nets:Net")
    assert found.__name__ == "Net"
    assert load_object("key", "brought.nets.small:Net") is found


def test_a_file_with_postponed_annotations_and_a_dataclass() -> None:
    write(
        "mine.py",
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Widths:\n    first: int = 3\n",
    )
    assert load_object("key", "mine.py:Widths")().first == 3


def test_a_file_named_as_a_module_that_exists_does_not_replace_it() -> None:
    write("json.py", "loads = 'mine'\n")
    assert load_object("key", "json.py:loads") == "mine"
    assert sys.modules["json"] is json


def test_what_is_not_there() -> None:
    write("folder.py/x", "")
    write("mine.py", "Net = 3\n")
    form, failed = "package.module:name or file.py:name", "importing nobody_has_this.nets failed"
    for path, *words in (
        *((path, form) for path in ("", "net.py", ":Net", "net.py:", "package.module", ":")),
        ("absent.py:Net", "there is no file absent.py"),
        ("folder.py:Net", "there is no file folder.py"),
        ("mine.py:Nett", "mine.py has no 'Nett'"),
        ("torch.nn:Lineal", "torch.nn has no 'Lineal'"),
        ("nobody_has_this.nets:Net", failed, "No module named 'nobody_has_this'"),
        ("..nets:Net", "importing ..nets failed"),
    ):
        line = refusal(path)
        assert all(word in line for word in words), line


def test_an_error_inside_is_told_in_one_line() -> None:
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
    write("mine.py", "").write_bytes(b"\xff\xfe\x00\x01")  # no text
    assert "importing mine.py failed" in refusal("mine.py:Net")


def test_an_interrupt_goes_through() -> None:
    write("mine.py", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load_object("key", "mine.py:Net")
