"""``vertizo certs``, below its command."""

from __future__ import annotations

from pathlib import Path

import pytest

from vertizo.cli.parties import certs
from vertizo.core.errors import ConfigError
from vertizo.network.transport.certificates import Credentials


def test_it_says_what_was_made(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    certs(Path("made"), "holder", ["bank", "shop"], ["10.0.0.1"], 30)
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()[:4]] == ["party", "holder", "bank", "shop"]
    assert "server at 10.0.0.1" in out
    assert "made/bank" in out
    words = " ".join(out.split())
    assert "This is a test authority. Anyone with made/authority/key.pem can make" in words
    assert Credentials.load(here / "made" / "shop").name == "shop"


def test_parties_are_added_and_never_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    certs(Path("made"), "holder", ["bank"])
    assert "server at localhost" in capsys.readouterr().out
    before = Path("made/bank/key.pem").read_bytes()
    certs(Path("made"), None, ["clinic"], [], 30)
    with pytest.raises(ConfigError, match="made/bank is there already"):
        certs(Path("made"), None, ["clinic-2", "bank"], [], 30)
    assert Path("made/bank/key.pem").read_bytes() == before
    assert not Path("made/clinic-2").exists()
    assert "clinic" in capsys.readouterr().out
