"""Every example runs as its first lines say, shortened where it would take long.

In this process, which has imported PyTorch; that a process can begin so, `tests.cli.test_help` and
`tests.cli.test_train` see.
"""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import sets

from vertizo.__main__ import main
from vertizo.config import schema as configuration
from vertizo.lab import comparison

ROOT = Path(__file__).parent.parent
CONFIGS = sorted((ROOT / "examples").glob("*.yaml"))
assert CONFIGS
FEW = ("rounds=20", "data.limit=4000", "data.test_limit=500")
FEW_TEXTS = ("rounds=4", "data.limit=100", "data.test_limit=20", "data.length=24")
"""Of experiments whose texts go through MiniLM, which takes minutes."""
Run = Callable[..., str]
Train = Callable[..., dict[str, Any]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Call something in a folder of its own, with these arguments: what it printed."""
    monkeypatch.chdir(tmp_path)

    def call(begin: Callable[[], object], *arguments: str) -> str:
        monkeypatch.setattr("sys.argv", ["vertizo", *arguments])
        capfd.readouterr()
        code = None
        try:
            begin()
        except SystemExit as end:
            code = end.code
        out, err = capfd.readouterr()
        assert not code, err
        assert all(line.startswith("note: ") for line in err.splitlines()), err
        return out

    return call


@pytest.fixture
def train(run: Run) -> Train:
    """Train by a file with these settings: the summary."""

    def call(config: Path, *settings: str) -> dict[str, Any]:
        output = run(main, "train", str(config), "--json", *sets(*settings))
        return json.loads(output.splitlines()[-1])

    return call


def script(name: str) -> Callable[[], object]:
    return lambda: runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")


@pytest.mark.full
@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_config(config: Path, train: Train) -> None:
    assert train(config, "epochs=2")["rounds"]


@pytest.mark.full
def test_private_replies_learn_within_their_budget(train: Train) -> None:
    """What the example promises: an exact ε of 8, and clients that beat the frozen ones."""
    config = ROOT / "examples" / "private_replies.yaml"
    trained = train(config)
    frozen = train(config, "control=frozen", "epochs=10")
    assert trained["privacy"]["guarantee"] == "exact"
    assert trained["privacy"]["epsilon"] == pytest.approx(8.0)
    assert trained["test_accuracy"] > frozen["test_accuracy"] + 0.3


@pytest.mark.full
def test_own_client_model_is_trained(run: Run) -> None:
    output = run(script("own_client_model.py"))
    trained, frozen = (float(line.split()[-2]) for line in output.splitlines()[:2])
    assert trained > frozen + 8
    assert "plain function" in output.splitlines()[2]


def test_the_quickstart(run: Run) -> None:
    assert run(script("quickstart.py"))


def test_every_script_has_a_test() -> None:
    known = {"own_client_model.py", "quickstart.py"}
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == known


EXPERIMENTS = [
    *sorted((ROOT / "experiments").glob("*.yaml")),
    *sorted((ROOT / "experiments/peers").iterdir()),
]


LONG = ("imdb_minilm", "narrow_imdb", "wide_imdb")
"""They tokenise 50,000 reviews first; amazon_minilm, narrow_mnist and wide_mnist go their ways."""


@pytest.mark.full
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(path, marks=pytest.mark.long if path.stem in LONG else ())
        for path in EXPERIMENTS
    ],
    ids=lambda path: path.stem,
)
def test_experiment_starts(config: Path, mnist_root: Path, train: Train) -> None:
    root = f"data.root={mnist_root}"
    few = FEW_TEXTS if config.stem.endswith(("imdb", "minilm", "heads", "parts")) else FEW
    narrow = ("client.components=16",) if config.stem == "narrow_imdb" else ()
    rounds = train(config, root, *few, *narrow)["rounds"]
    assert 0 < rounds <= 20  # tangents have their sweeps


@pytest.mark.full
def test_all_methods_of_every_experiment_are_read() -> None:
    for path in EXPERIMENTS:
        assert configuration.load(path, [])
        assert comparison.configurations(path, [], []) or "methods:" not in path.read_text()
