"""``vertizo align`` below Typer: from a file to a file, and what is said about it."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from queue import Queue
from typing import Any

import polars as pl
import pytest
from rich.console import Console
from tests.deployments import DirectChannel
from tests.refusals import refused

from vertizo.cli.align import align_table, as_feature_holder, as_label_holder
from vertizo.core.errors import ConfigError, DataError, RunError
from vertizo.data.alignment import TableToAlign
from vertizo.data.tabular import frames
from vertizo.network.transport.base import Service

METHODS = ["hashed", *(["private"] if find_spec("nacl") else [])]


class Party:
    """A party's table in a folder of its own, and what it was told."""

    def __init__(self, folder: Path, frame: pl.DataFrame, suffix: str, column: str) -> None:
        folder.mkdir()
        path = folder / f"own{suffix}"
        frame.write_csv(path) if suffix == ".csv" else frame.write_parquet(path)
        self.table = TableToAlign(path, column, folder / "aligned.csv")
        self.text = io.StringIO()
        self.console = Console(file=self.text, width=80)

    @property
    def said(self) -> str:
        return self.text.getvalue()


@pytest.fixture
def parties(tmp_path: Path) -> dict[str, Party]:
    bank = pl.DataFrame({"id": [10, 9, 2, 1, 77], "label": ["a", "b", "c", "d", "e"]})
    shop = pl.DataFrame({"visits": [1, 2, 3, 4], "customer": ["2", " 9", "10", "8"]})
    post = pl.DataFrame({"key": [9.0, 10.0, 11.0, 1.0], "letters": [1.5, 2.5, 3.5, 4.5]})
    return {
        "bank": Party(tmp_path / "bank", bank, ".parquet", "id"),
        "shop": Party(tmp_path / "shop", shop, ".csv", "customer"),
        "post": Party(tmp_path / "post", post, ".parquet", "key"),
    }


def align_all(parties: dict[str, Party], method: str) -> list[Any]:
    own, *others = parties
    served: Queue[Service] = Queue()

    @contextmanager
    def serve(service: Service) -> Iterator[None]:
        for _ in others:
            served.put(service)
        yield

    def aligned(name: str) -> Any:
        party = parties[name]
        errors = party.console
        find = as_label_holder("f", others, serve, errors, patience=30.0)
        if name != own:
            find = as_feature_holder(
                "f", lambda: DirectChannel(served.get(timeout=120.0), name, 20.0), errors
            )
        return align_table(party.table, method, find, party.console)

    with ThreadPoolExecutor(len(parties)) as pool:
        return list(pool.map(aligned, parties, timeout=60.0))


@pytest.mark.parametrize("method", METHODS)
def test_three_tables_end_up_with_the_same_records(parties: dict[str, Party], method: str) -> None:
    found = align_all(parties, method)
    written = {name: frames.read(party.table.output) for name, party in parties.items()}
    assert written["bank"].rows() == [("10", "a"), ("9", "b")]
    assert written["shop"].rows() == [("3", "10"), ("2", "9")]
    assert written["post"].rows() == [("10.0", "2.5"), ("9.0", "1.5")]
    assert len({result.fingerprint for result in found}) == 1
    for name, party in parties.items():
        said = " ".join(party.said.split())
        assert found[0].fingerprint[:12] in said
        assert "in common to all 3 parties │ 2" in said
        assert f"own records │ {5 if name == 'bank' else 4}" in said
        assert f"left out │ {3 if name == 'bank' else 2}" in said
        assert f"written to {party.table.output}" in said
        assert "learned how many records the label holder has (5)" in said
        assert ("NOT PRIVATE" in said) is (method == "hashed")
    said = parties["bank"].said
    assert "shop has 4 records, 3 of them among yours, post has 4 records, 3 of them" in said
    assert "which of its own you have, also those that another party lacks" in parties["shop"].said


def test_two_parties_are_called_both(parties: dict[str, Party]) -> None:
    del parties["post"]
    align_all(parties, "hashed")
    for party in parties.values():
        assert "which records both parties have" in party.said
    assert "also those that another" not in parties["shop"].said


def never(*_: Any) -> Any:
    raise AssertionError("somebody was asked")


def test_what_is_wrong_is_said_before_anybody_is_asked(
    parties: dict[str, Party], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nacl.bindings", None)
    wrong: list[tuple[dict[str, Any], str, type[Exception], str]] = [
        ({"path": Path("nowhere.csv")}, "hashed", DataError, "nowhere.csv is missing"),
        ({"column": "custome"}, "hashed", DataError, "did you mean 'customer'"),
        ({"output": Path("nowhere/out.csv")}, "hashed", ConfigError, "there is no folder"),
        ({"output": Path("out.txt")}, "hashed", ConfigError, "ends in '.txt'"),
        ({}, "open", ConfigError, "'open'; it must be private or hashed"),
        ({}, "private", ConfigError, "or choose --method hashed, which is not private"),
    ]
    for changes, method, error, words in wrong:
        table = replace(parties["shop"].table, **changes)
        refused(words, error, align_table, table, method, never, Console(), match=words)


@pytest.mark.full
def test_who_is_waited_for_is_said(parties: dict[str, Party]) -> None:
    bank = parties["bank"]
    find = as_label_holder("f", ["shop"], nullcontext, bank.console, patience=1.0, every=0.05)
    with pytest.raises(RunError, match=r"waited for shop \(has not come\)"):
        align_table(bank.table, "hashed", find, bank.console)
    assert "waiting for the others: shop has not come\n" in bank.said
    assert not bank.table.output.exists()
