"""A person's mistakes: one line, exit code 2, and nothing left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vertizo.config.schema import ExperimentConfig
from vertizo.run.folder import RunFolder

FILES = {
    "good.yaml": "epochs: 1\ndata: {limit: 60}\nbatch_size: 9\n",
    "unknown.yaml": "epoch: 3\n",
    "deep.yaml": "client: {optimizer: {lerning_rate: 1}}\n",
    "wrong.yaml": "data: {validation: 2}\n",
    "broken.yaml": "epochs: [\n",
    "list.yaml": "- epochs\n",
    "nul.yaml": "epochs: 1\0",
    "date.yaml": "seed: 2024-13-45\n",
    "file.txt": "no folder\n",
    "mine.py": (
        "from torch import nn\n"
        "class Norm(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.norm = nn.BatchNorm1d(16)\n"
        "    def forward(self, x):\n"
        "        return self.norm(x.flatten(1))\n"
        "class Angry(nn.Module):\n"
        "    def __init__(self):\n"
        "        raise RuntimeError('two\\nlines')\n"
        "def short(w, x):\n"
        "    return w[:3]\n"
    ),
    "fails.py": "import nobody_has_this\n",
}

MODULE = ("--set", "client.model.name=module", "--set")

MISTAKES: dict[str, tuple[tuple[str, ...], list[str]]] = {
    "no such file": (("absent.yaml",), ["absent.yaml", "No such file"]),
    "a folder as the file": ((".",), ["directory"]),
    "a binary file": (("image.yaml",), ["image.yaml", "not a text file"]),
    "a file with a zero byte": (("nul.yaml",), ["nul.yaml"]),
    "bad YAML": (("broken.yaml",), ["broken.yaml", "not YAML in line 2"]),
    "an impossible date": (("date.yaml",), ["date.yaml"]),
    "a list": (("list.yaml",), ["list.yaml", "keys and values"]),
    "an unknown key": (("unknown.yaml",), ["unknown.yaml", "'epoch'", "did you mean 'epochs'?"]),
    "an unknown key far inside": (("deep.yaml",), ["client.optimizer.lerning_rate"]),
    "a wrong value": (("wrong.yaml",), ["wrong.yaml", "data.validation is 2"]),
    "an unknown key set": (("--set", "sede=3"), ["--set", "'sede'", "'seed'"]),
    "a wrong value set": (("--set", "seed=-3"), ["--set", "seed is -3"]),
    "set without a value": (("--set", "epochs"), ["--set epochs", "key=value"]),
    "set to what is no YAML": (("--set", "epochs=[1"), ["--set epochs=[1", "YAML"]),
    "set without anything": (("--set",), ["--set"]),
    "a negative rate": (("--set", "client.optimizer.learning_rate=-1"), ["learning_rate is -1"]),
    "an infinite rate": (("--set", "client.optimizer.learning_rate=inf"), ["finite"]),
    "an unknown method": (("--set", "method.name=dpvz"), ["method.name", "'dpvz'", "'dpzv'"]),
    "an unknown model": (("--set", "client.model.name=gpt"), ["client.model.name", "'mlp'"]),
    "an unknown data set": (("--set", "data.name=mnits"), ["data.name", "'mnits'", "mnist"]),
    "a data folder that is not there": (
        ("--set", "data.root=nowhere"),
        ["data.root", "nowhere", "not a folder"],
    ),
    "damaged data": (
        ("--set", "data.name=mnist", "--set", "data.root=damaged"),
        ["damaged", "train-images-idx3-ubyte"],
    ),
    "too many parties": (("--set", "data.parties=9"), ["data.parties is 9", "1 to 8"]),
    "a split for tables": (("--set", "data.split=columns"), ["data.split", "digits"]),
    "a split for images": (
        ("--set", "data.name=breast-cancer", "--set", "data.split=rows"),
        ["data.split", "breast-cancer"],
    ),
    "an unknown column": (
        ("--set", "data.name=breast-cancer", "--set", "data.columns={a: [mean raduis]}"),
        ["data.columns", "'mean raduis'", "did you mean 'mean radius'?"],
    ),
    "three halves": (("--set", "data.split=halves", "--set", "data.parties=3"), ["'halves'"]),
    "a batch beyond the records": (
        ("--set", "batch_size=60", "--set", "data.limit=60"),
        ["batch_size is 60", "54"],
    ),
    "nothing left to train on": (
        ("--set", "data.validation=0.9999", "--set", "batch_size=1"),
        ["data.validation"],
    ),
    "a straggler that is no client": (
        ("--set", "simulation.stragglers={4: 2}"),
        ["simulation.stragglers", "4"],
    ),
    "a clip without a mechanism": (("--set", "privacy.clip=1"), ["privacy.mechanism"]),
    "an epsilon with a raw server": (
        (
            "--set",
            "privacy.mechanism=gaussian",
            "--set",
            "privacy.clip=1",
            "--set",
            "privacy.epsilon=1",
            "--set",
            "server.update=sgd",
        ),
        ["privacy.epsilon", "server.update"],
    ),
    "a function under VAFL": (
        (
            "--set",
            "method.name=vafl",
            "--set",
            "client.model={name: function, path: 'mine.py:short', num_parameters: 3}",
        ),
        ["vafl", "client.model", "mine.py:short"],
    ),
    "no model file": ((*MODULE, "client.model.path=absent.py:Net"), ["no file absent.py"]),
    "no such class": ((*MODULE, "client.model.path=mine.py:Net"), ["mine.py has no 'Net'"]),
    "no such package": ((*MODULE, "client.model.path=nobody.has:Net"), ["client.model.path"]),
    "a file that cannot be imported": (
        (*MODULE, "client.model.path=fails.py:Net"),
        ["fails.py", "nobody_has_this"],
    ),
    "arguments that do not fit": (
        (*MODULE, "client.model.path=torch.nn:Linear"),
        ["client.model.arguments", "in_features"],
    ),
    "a model that raises": ((*MODULE, "client.model.path=mine.py:Angry"), ["client.model", "two"]),
    "batch normalisation": ((*MODULE, "client.model.path=mine.py:Norm"), ["BatchNorm1d"]),
    "a function of the wrong shape": (
        ("--set", "client.model={name: function, path: 'mine.py:short', num_parameters: 3}"),
        ["client.model", "(3,)"],
    ),
    "a file as the run folder": (("good.yaml", "--out", "file.txt"), ["--out file.txt", "folder"]),
    "a run folder below a file": (("good.yaml", "--out", "file.txt/run"), ["file.txt/run"]),
    "a name too long": (("good.yaml", "--out", "x" * 300), ["long"]),
    "a run folder in use before": (
        ("good.yaml", "--out", "taken"),
        ["--out taken", "already holds a run", "--resume taken"],
    ),
    "nothing to resume": (("--resume", "absent"), ["absent holds no run"]),
    "resuming a file": (("--resume", "file.txt"), ["file.txt holds no run"]),
    "resuming a folder without a run": (("--resume", "empty"), ["empty holds no run"]),
    "resuming a damaged run": (("--resume", "cut"), ["cut/checkpoints/last.safetensors"]),
    "resuming with another configuration": (("good.yaml", "--resume", "taken"), ["--resume"]),
    "resuming with settings": (("--resume", "taken", "--set", "epochs=2"), ["--resume"]),
    "resuming elsewhere": (("--resume", "taken", "--out", "other"), ["--resume"]),
    "two configurations": (("good.yaml", "unknown.yaml"), ["unknown.yaml"]),
    "an unknown option": (("--outt", "run"), ["--outt"]),
    "an option without its value": (("--out",), ["--out"]),
}


@pytest.fixture(autouse=True)
def prepared(here: Path) -> None:
    for name, text in FILES.items():
        (here / name).write_text(text)
    (here / "image.yaml").write_bytes(b"\x89PNG\r\n\xff\xfe")
    (here / "empty").mkdir()
    RunFolder(here / "taken").create(ExperimentConfig())
    cut = RunFolder(here / "cut")
    cut.create(ExperimentConfig())
    with cut.locked():
        (here / "cut" / "checkpoints" / "last.safetensors").write_bytes(b"abc")
    (here / "damaged").mkdir()
    for name in (
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    ):
        (here / "damaged" / name).write_bytes(b"not these")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_one_line_and_nothing_left(
    mistake: str, vertizo: Callable[..., Any], files: Callable[[], set[str]]
) -> None:
    arguments, words = MISTAKES[mistake]
    before = files()
    result = vertizo("train", *arguments)
    assert result.code == 2
    line = result.line
    assert line.startswith("vertizo: ")
    missing = [word for word in words if word not in line]
    assert not missing, line
    assert files() == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("list",), ["methods", "datasets"]),
        (("list", "colours"), ["colours", "methods", "datasets"]),
        (("trian",), ["trian"]),
        (("--verbose",), ["--verbose"]),
    ],
)
def test_other_commands(
    arguments: tuple[str, ...], words: list[str], vertizo: Callable[..., Any]
) -> None:
    result = vertizo(*arguments)
    assert result.code == 2
    line = result.line
    assert line.startswith("vertizo: ")
    for word in words:
        assert word in line


def test_a_folder_in_use(vertizo: Callable[..., Any], here: Path) -> None:
    with RunFolder(here / "taken").locked():
        result = vertizo("train", "--resume", "taken")
    assert result.code == 2
    assert "taken is in use by another process" in result.line


@pytest.mark.parametrize(
    "more",
    [
        ("client.optimizer.learning_rate=1e9",),
        ("client.optimizer.learning_rate=1e30",),
        ("client.optimizer.learning_rate=1e9", "evaluate_every=1"),
        ("client.optimizer.learning_rate=1e9", "method.name=vafl"),
        ("server.optimizer.learning_rate=1e30",),
    ],
)
def test_a_run_that_diverges(more: tuple[str, ...], vertizo: Callable[..., Any]) -> None:
    settings = [part for text in more for part in ("--set", text)]
    result = vertizo("train", "good.yaml", "--set", "epochs=5", *settings, "--out", "run")
    assert result.code == 2
    line = result.line
    for word in ("diverged", "round", "learning_rate"):
        assert word in line
