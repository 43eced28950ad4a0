"""The JSON schemas that editors read: they take every file there is, and refuse mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from vertizo.__main__ import main
from vertizo.cli.schema import made
from vertizo.config.error_lines import read_yaml

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "src/vertizo/data/tutorial"
FILES = {
    "train": [
        *ROOT.glob("experiments/*.yaml"),
        *ROOT.glob("experiments/peers/*.yaml"),
        *ROOT.glob("experiments/full/*.yaml"),
        *ROOT.glob("examples/*.yaml"),
    ],
    "study": [*ROOT.glob("experiments/papers/*.yaml")],
    "serve": [TUTORIAL / "hospital.yaml"],
    "join": [TUTORIAL / "lab.yaml", TUTORIAL / "clinic.yaml"],
}


def validator(kind: Any) -> Any:
    found = made(kind)
    jsonschema.Draft202012Validator.check_schema(found)
    return jsonschema.Draft202012Validator(found)


@pytest.mark.full
def test_every_file_of_the_project_fits_its_schema() -> None:
    for kind, paths in FILES.items():
        check = validator(kind)
        assert paths
        for path in paths:
            assert [e.message for e in check.iter_errors(read_yaml(path))] == [], path


@pytest.mark.full
def test_mistakes_do_not() -> None:
    check = validator("train")
    for tree in (
        {"epoch": 3},
        {"epochs": 0},
        {"method": {"name": "dpvz"}},
        {"method": {"name": "vafl", "smoothing": 1}},
        {"method": {"name": "auto", "smoothing": 1}},
        {"method": "autoo"},
        {"codecs": {"up": {"bits": 4}}},
        {"data": {"limit": "many"}},
    ):
        assert not check.is_valid(tree), tree
    for tree in (
        {"method": {"smoothing": 0.1}},
        {"method": "auto"},
        {"method": {"name": "auto"}},
        {"client": {"model": {"hidden": [3]}}},
        {"method": {"name": "my_package:MyMethod", "pace": 3}},
        {"methods": {"vafl": {"epochs": 3}}},
    ):
        assert check.is_valid(tree), tree


@pytest.mark.full
def test_texts_come_along(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["vertizo", "schema"])
    with pytest.raises(SystemExit) as done:
        main()
    assert not done.value.code
    found = json.loads(capsys.readouterr().out)
    assert "All randomness" in found["properties"]["seed"]["description"]
    assert found["$defs"]["SynZooVfl"]["properties"]["reply"]["description"]
