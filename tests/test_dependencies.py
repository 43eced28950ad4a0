"""Lower bounds of what is installed beside the package: none that is known not to work."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

BROKEN = {
    "msgspec": (0, 19),  # damages frames
    "typer": (0, 25),  # warns or breaks with the click of now; 0.26 has a copy of its own
}


def test_no_version_that_is_known_to_fail_is_allowed() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    for name, broken in BROKEN.items():
        (bound,) = (
            re.fullmatch(rf"{name}>=([\d.]+)", each)
            for each in project["project"]["dependencies"]
            if each.startswith(name)
        )
        assert bound is not None
        assert tuple(map(int, bound[1].split("."))) > broken
