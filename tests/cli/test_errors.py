"""A person's mistakes: one line, exit code 2, and nothing left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.cli.conftest import Refuses, Vertizo, sets

from vertizo.config.schema import ExperimentConfig
from vertizo.run.folder import RunFolder

FILES = {
    "good.yaml": "epochs: 1\ndata: {limit: 60}\nbatch_size: 9\n",
    "unknown.yaml": "epoch: 3\n",
    "deep.yaml": "client: {optimizer: {lerning_rate: 1}}\n",
    "wrong.yaml": "data: {validation: 2}\n",
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


MISTAKES = """\
absent.yaml | absent.yaml | No such file
. | directory
nul.yaml | nul.yaml
date.yaml | date.yaml
unknown.yaml | unknown.yaml | 'epoch' | did you mean 'epochs'?
deep.yaml | client.optimizer.lerning_rate
wrong.yaml | wrong.yaml | data.validation is 2
--set sede=3 | --set | 'sede' | 'seed'
--set seed=-3 | --set | seed is -3
--set epochs | --set epochs | key=value
--set 'epochs=[1' | --set epochs=[1 | YAML
--set | --set
--set client.optimizer.learning_rate=-1 | learning_rate is -1
--set client.optimizer.learning_rate=inf | finite
--set method.name=dpvz | method.name | 'dpvz' | 'dpzv'
--set client.model.name=gpt | client.model.name | 'mlp'
--set data.name=mnits | data.name | 'mnits' | mnist
--set data.root=nowhere | data.root | nowhere | not a folder
--set data.name=mnist --set data.root=damaged | damaged | train-images-idx3-ubyte
--set data.parties=9 | data.parties is 9 | 1 to 8
--set data.split=columns | data.split | digits
--set data.name=breast-cancer --set data.split=rows | data.split | breast-cancer
--set data.name=breast-cancer --set 'data.columns={a: [mean raduis]}' | data.columns | 'mean raduis'
    | did you mean 'mean radius'?
--set data.split=halves --set data.parties=3 | 'halves'
--set batch_size=60 --set data.limit=60 | batch_size is 60 | 54
--set data.validation=0.9999 --set batch_size=1 | data.validation
--set 'simulation.stragglers={4: 2}' | simulation.stragglers | 4
--set privacy.clip=1 | privacy.mechanism
--set 'privacy={mechanism: gaussian, clip: 1, epsilon: 1}' --set server.update=sgd | privacy.epsilon
    | server.update
--set method.name=vafl --set client.model.name=function --set client.model.path=mine.py:short
    --set client.model.num_parameters=3
    | vafl | client.model | mine.py:short
--set 'client.model={name: module, path: absent.py:Net}' | no file absent.py
--set 'client.model={name: module, path: mine.py:Net}' | mine.py has no 'Net'
--set 'client.model={name: module, path: nobody.has:Net}' | client.model.path
--set 'client.model={name: module, path: fails.py:Net}' | fails.py | nobody_has_this
--set 'client.model={name: module, path: torch.nn:Linear}' | client.model.arguments | in_features
--set 'client.model={name: module, path: mine.py:Angry}' | client.model | two
--set 'client.model={name: module, path: mine.py:Norm}' | BatchNorm1d
--set 'client.model={name: function, path: mine.py:short, num_parameters: 3}' | client.model | (3,)
good.yaml --out file.txt | --out file.txt | folder
good.yaml --out file.txt/run | file.txt/run
good.yaml --out taken | --out taken | already holds a run | --resume taken
--resume absent | absent holds no run
--resume file.txt | file.txt holds no run
--resume empty | empty holds no run
--resume cut | cut/checkpoints/last.safetensors
good.yaml --resume taken | --resume
--resume taken --set epochs=2 | --resume
--resume taken --out other | --resume
good.yaml unknown.yaml | unknown.yaml
--outt run | --outt
--out | --out
"""


@pytest.fixture(autouse=True)
def prepared(here: Path) -> None:
    for name, text in FILES.items():
        (here / name).write_text(text)
    (here / "empty").mkdir()
    RunFolder(here / "taken").create(ExperimentConfig())
    cut = RunFolder(here / "cut")
    cut.create(ExperimentConfig())
    with cut.locked():
        (here / "cut" / "checkpoints" / "last.safetensors").write_bytes(b"abc")
    (here / "damaged").mkdir()
    for purpose in ("train", "t10k"):
        for content in ("images-idx3", "labels-idx1"):
            (here / "damaged" / f"{purpose}-{content}-ubyte").write_bytes(b"not these")


def test_train_refuses_in_one_line(refuses: Refuses) -> None:
    refuses(MISTAKES, "train")
    refuses(f"good.yaml --out {'x' * 300} | long", "train")


def test_a_folder_in_use(vertizo: Vertizo, here: Path) -> None:
    with RunFolder(here / "taken").locked():
        result = vertizo("train", "--resume", "taken")
    assert result.code == 2
    assert "taken is in use by another process" in result.line


def test_a_run_that_diverges(vertizo: Vertizo) -> None:
    for settings in (
        ("client.optimizer.learning_rate=1e9",),
        ("client.optimizer.learning_rate=1e30",),
        ("client.optimizer.learning_rate=1e9", "evaluate_every=1"),
        ("client.optimizer.learning_rate=1e9", "method.name=vafl"),
        ("server.optimizer.learning_rate=1e30",),
    ):
        result = vertizo("train", "good.yaml", *sets("epochs=5", *settings))
        assert result.code == 2, settings
        for word in ("diverged", "round", "learning_rate"):
            assert word in result.line, settings


def test_a_graphics_card_that_is_not_there(
    refuses: Refuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    words = "client.device is 'cuda', but PyTorch finds no CUDA device; use 'cpu'"
    refuses(f"good.yaml --set client.device=cuda | {words}", "train")
