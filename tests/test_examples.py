"""Every example runs as its first lines say, shortened where it would take long."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
CONFIGS = sorted((ROOT / "examples").glob("*.yaml"))
assert SCRIPTS
assert CONFIGS
FEW = ("data.limit=200", "data.test_limit=100", "data.length=32")
FEW_TEXTS = {
    "narrow_imdb": (*FEW, "client.components=16"),
    **dict.fromkeys(("wide_imdb", "amazon_heads", "amazon_parts"), FEW),
}
"""Experiments whose texts all go through MiniLM first, which takes minutes."""


def run(arguments: list[str], folder: Path) -> str:
    options = {"cwd": folder, "env": {**os.environ, "PYTHONWARNINGS": "error"}, "timeout": 300}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    notes = done.stderr.splitlines()
    assert all(line.startswith("note: ") for line in notes), done.stderr
    return done.stdout


def train(config: Path, folder: Path, *settings: str) -> dict[str, object]:
    options = [word for setting in settings for word in ("--set", setting)]
    output = run(["-m", "vertizo", "train", str(config), "--json", *options], folder)
    summary: dict[str, object] = json.loads(output.splitlines()[-1])
    return summary


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_script(script: Path, tmp_path: Path) -> None:
    assert run([str(script)], tmp_path)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_config(config: Path, tmp_path: Path) -> None:
    assert train(config, tmp_path, "epochs=10")["rounds"]


def test_private_replies_learn_within_their_budget(tmp_path: Path) -> None:
    """What the example promises: an exact ε of 8, and clients that beat the frozen ones."""
    config = ROOT / "examples" / "private_replies.yaml"
    trained = train(config, tmp_path)
    frozen = train(config, tmp_path, "control=frozen", "epochs=10")
    privacy = trained["privacy"]
    assert isinstance(privacy, dict)
    assert privacy["guarantee"] == "exact"
    assert privacy["epsilon"] == pytest.approx(8.0)
    assert float(str(trained["test_accuracy"])) > float(str(frozen["test_accuracy"])) + 0.3


def test_own_client_model_is_trained(tmp_path: Path) -> None:
    output = run([str(ROOT / "examples" / "own_client_model.py")], tmp_path)
    trained, frozen = (float(line.split()[-2]) for line in output.splitlines()[:2])
    assert trained > frozen + 8
    assert "plain function" in output.splitlines()[2]


@pytest.mark.parametrize(
    "config",
    [
        *sorted((ROOT / "experiments").glob("*.yaml")),
        *sorted((ROOT / "experiments/peers").iterdir()),
    ],
    ids=lambda path: path.stem,
)
def test_experiment_starts(config: Path, mnist_root: Path, tmp_path: Path) -> None:
    root = f"data.root={mnist_root}"
    few = FEW_TEXTS.get(config.stem, ())
    rounds = train(config, tmp_path, "rounds=20", root, *few)["rounds"]
    assert 0 < int(str(rounds)) <= 20  # tangents have their sweeps
