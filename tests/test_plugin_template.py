"""examples/plugin: installed as pip would install it, its own tests and its README's commands."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

TEMPLATE = Path(__file__).parents[1] / "examples" / "plugin"
COMMANDS = {"vertizo": ["-m", "vertizo"], "pytest": ["-m", "pytest", "-p", "no:cacheprovider"]}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The folder, and beside it what an installation of it tells Python."""
    folder = tmp_path / "plugin"
    shutil.copytree(TEMPLATE, folder, ignore=shutil.ignore_patterns("*.egg-info", "build"))
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    told = tmp_path / "site" / "vertizo_example.dist-info"
    told.mkdir(parents=True)
    named = f"Name: {project['name']}\nVersion: {project['version']}\n"
    (told / "METADATA").write_text(f"Metadata-Version: 2.1\n{named}")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {place}" for name, place in points.items())]
    (told / "entry_points.txt").write_text("\n".join(lines))
    return folder


def test_its_commands_do_what_its_readme_says(copy: Path) -> None:
    readme = (copy / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```sh\n(.*?)```", readme, re.S)
    install, *commands = (shlex.split(line) for line in block.splitlines())
    assert install[:3] == ["pip", "install", "-e"]
    searched = [str(copy.parent / "site"), str(copy / "src"), os.environ.get("PYTHONPATH", "")]
    paths = os.pathsep.join(path for path in searched if path)
    env = {**os.environ, "PYTHONPATH": paths, "PYTHONWARNINGS": "error"}
    said = []
    for program, *arguments in commands:
        command = [sys.executable, *COMMANDS[program], *arguments]
        done = subprocess.run(
            command, cwd=copy, env=env, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
        said.append(done.stdout)
    assert re.search(r"^zo-sign +by vertizo_example", said[0], re.M)
    assert "test AUC" in said[1]
    assert len((copy / "evaluations.jsonl").read_text().splitlines()) == 31
    assert "7 passed" in said[2]
