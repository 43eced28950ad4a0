"""From a configuration and data to the parties."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from tests import federations
from tests.data.refusals import refused
from tests.rows import each
from tests.same import same

from vertizo.config import schema
from vertizo.core.errors import ConfigError
from vertizo.core.randomness import Stream
from vertizo.data import vertical
from vertizo.data.datasets.catalog import load as load_data
from vertizo.data.vertical import VerticalData
from vertizo.run.loop.federation import Federation, build

MODELS = '''
import numpy as np
import torch
from torch import nn


class Net(nn.Module):
    """A well-behaved client or server model."""

    def __init__(self, inputs=16, outputs=3, layer=nn.Linear):
        super().__init__()
        self.layer = layer(inputs, outputs)

    def out(self, y, x):
        return y

    def forward(self, x):
        return self.out(self.layer(x.flatten(1)), x)


def net(name, out):
    return type(name, (Net,), {"out": out})


Summed = net("Summed", lambda self, y, x: y.sum())
Pair = net("Pair", lambda self, y, x: (y, x))
Transposed = net("Transposed", lambda self, y, x: y.t())
Unfinished = net("Unfinished", lambda self, y, x: self.missing(x))
Lookup = net("Lookup", lambda self, y, x: {}["weights"])
Infinite = net("Infinite", lambda self, y, x: y / 0)


class Asserting(Net):
    def out(self, y, x):
        assert x.dim() == 7, "seven sides\\nare needed"


class Normalised(Net):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def out(self, y, x):
        return self.norm(y)


class Double(Net):
    def __init__(self):
        super().__init__()
        self.double()


class Mixed(Net):
    def __init__(self):
        super().__init__()
        self.other = nn.Linear(3, 3).double()


class Empty(nn.Module):
    def forward(self, x):
        return x.flatten(1)


class Refusing(Net):
    def __init__(self):
        raise ValueError("not today\\nnor tomorrow")


class NoFile(Net):
    def __init__(self):
        open("weights that nobody has")


def convolution(channels):
    return nn.Conv2d(channels, 3, 1)


def not_a_module():
    return 3


def nothing():
    return 3


number = 5
linear = lambda w, x: x.reshape(len(x), -1) @ w.reshape(16, -1)
per_party = lambda w, x: x.reshape(len(x), -1) * w[0]
flat = lambda w, x: x.reshape(len(x), -1) @ w
dividing = lambda w, x: 1 // 0
lookup = lambda w, x: {}["weights"]
worded = lambda w, x: "three"
infinite = lambda w, x: np.full((len(x), 2), np.inf)
'''


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to run in, with the user's file in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "mine.py").write_text(MODELS)
    return tmp_path


def made(*overrides: str, data: VerticalData | None = None) -> Federation:
    settings = schema.load(None, ("data.limit=60", "batch_size=9", *overrides))
    return build(settings, data or cut(settings))


def cut(settings: schema.ExperimentConfig) -> VerticalData:
    pooled = load_data(settings.data.name)
    return vertical.cut(pooled, settings.data, Stream.from_seed(settings.seed))


def client(path: str, *more: str) -> tuple[str, ...]:
    return (f"client.model={{name: module, path: 'mine.py:{path}'}}", *more)


def server(path: str, *more: str) -> tuple[str, ...]:
    return (f"server.model={{name: module, path: 'mine.py:{path}'}}", *more)


def function(path: str, *more: str, parameters: int = 32) -> tuple[str, ...]:
    model = f"{{name: function, path: 'mine.py:{path}', num_parameters: {parameters}}}"
    return (f"client.model={model}", *more)


class TestBuilt:
    def test_one_client_for_each_party(self) -> None:
        federation = made("data.parties=3", "client.model.outputs=5")
        assert [party.index for party in federation.clients] == [0, 1, 2]
        sizes = [model.parameters.numel() for model in federation.models]
        assert sizes == [16 * 5 + 5, 16 * 5 + 5, 32 * 5 + 5]
        assert federation.server.clients == 3
        hidden = federation.server.side.model.parameters.numel()
        assert hidden == 15 * 64 + 64 + 64 * 10 + 10

    @each(
        "overrides, rounds",
        [
            ((), 6 * 4 * 5),
            (("simulation.timing=synchronous",), 6 * 5),
            (("rounds=7",), 7),
            (("rounds=100000",), 6 * 4 * 5),
            (("data.parties=2", "batch_size=54"), 2 * 5),
        ],
    )
    def test_rounds_of_a_whole_run(self, overrides: tuple[str, ...], rounds: int) -> None:
        assert made("epochs=5", *overrides).total_rounds == rounds

    def test_clients_start_differently_and_the_seed_decides(self) -> None:
        first, again, other = made("seed=1"), made("seed=1"), made("seed=2")
        starts = [model.parameters for model in first.models]
        for one in range(4):
            for two in range(one):
                assert not torch.equal(starts[one], starts[two])
        assert same(first.parameters, again.parameters)
        assert not same(first.parameters, other.parameters)

    def test_the_global_generator_neither_decides_nor_is_moved(self) -> None:
        torch.manual_seed(0)
        first, state = made(), torch.random.get_rng_state()
        torch.manual_seed(1)
        assert same(first.parameters, made().parameters)
        torch.manual_seed(0)
        assert torch.equal(torch.random.get_rng_state(), state)

    @each("method", ["dpzv", "cascaded", "vafl"])
    def test_a_module_from_a_file_and_one_from_a_package(self, method: str) -> None:
        own = made(f"method.name={method}", *client("Net", "client.model.arguments.outputs=4"))
        assert [model.parameters.numel() for model in own.models] == [16 * 4 + 4] * 4
        assert own.server.side.table.dims == (4, 4, 4, 4)
        sizes = "client.model.arguments={in_features: 16, out_features: 2}"
        linear = "client.model={name: module, path: torch.nn:Linear}"
        known = made(linear, sizes, "data.split=even")
        assert known.server.side.table.dims == (2, 2, 2, 2)

    def test_a_server_module_from_a_file(self) -> None:
        arguments = "server.model.arguments={inputs: 12, outputs: 10}"
        federation = made("client.model.outputs=3", *server("Net", arguments))
        assert federation.server.side.model.parameters.numel() == 12 * 10 + 10

    def test_a_function(self) -> None:
        federation = made(*function("linear", "client.model.initial_std=2"))
        assert [model.parameters.numel() for model in federation.models] == [32] * 4
        spread = torch.cat([model.parameters for model in federation.models]).std()
        assert 1.5 < float(spread) < 2.5
        still = made(*function("linear"))
        assert not torch.cat([model.parameters for model in still.models]).any()

    def test_a_function_may_have_another_size_at_every_party(self) -> None:
        assert made("data.parties=3", *function("per_party")).server.side.table.dims == (16, 16, 32)


REFUSED = [
    (("batch_size=55",), ["batch_size is 55", "54"]),
    (("data.validation=0.999", "batch_size=1"), ["data.validation", "0.999"]),
    (("simulation.stragglers={0: 2, 4: 2}",), ["simulation.stragglers", "client 4", "0 to 3"]),
    (("client.crop=2", "data.split=even"), ["client.crop is 2", "(16,)", "images"]),
    (("client.flip=true", "data.split=even"), ["client.flip is True", "(16,)", "images"]),
    (("client.model.name=cnn", "data.split=even"), ["client.model", "'cnn'", "[16]", "images"]),
    (
        ("data.parties=3", "server.join=sum", *function("per_party")),
        ["server.join", "'sum'", "[16, 16, 32]", "'concat'"],
    ),
]


@each("overrides, words", REFUSED)
def test_what_does_not_fit_is_refused(overrides: tuple[str, ...], words: list[str]) -> None:
    refused(words, ConfigError, made, *overrides)


CLIENTS = [
    ("Nett", (), ["no 'Nett'"]),
    ("number", (), ["number"]),
    ("not_a_module", (), ["int", "torch.nn.Module"]),
    ("Net", ("client.model.arguments.width=3",), ["arguments", "'width'"]),
    ("convolution", (), ["arguments", "'channels'"]),
    ("Net", ("client.model.arguments.inputs=-1",), ["mine.py:Net", "-1"]),
    ("Net", ("client.model.arguments.inputs=wide",), ["arguments", "mine.py:Net"]),
    ("Net", ("client.model.arguments.layer=linear",), ["mine.py:Net", "str"]),
    ("Refusing", (), ["mine.py:Refusing", "not today"]),
    ("NoFile", (), ["mine.py:NoFile", "weights that nobody has"]),
    ("Net", ("client.model.arguments.inputs=9",), ["[1, 2, 8]", "9"]),
    ("Summed", (), ["Summed", "one row for each record"]),
    ("Pair", (), ["Pair", "tuple", "one row for each record"]),
    ("Transposed", (), ["Transposed", "one row for each record"]),
    ("Unfinished", (), ["missing"]),
    ("Lookup", (), ["weights"]),
    ("Asserting", (), ["seven sides"]),
    ("Infinite", (), []),
    ("Normalised", (), ["BatchNorm1d", "norm", "GroupNorm"]),
    ("Double", (), ["dtype"]),
    ("Mixed", (), ["dtype"]),
    ("Empty", (), ["no parameters"]),
]


class TestUsersModels:
    @pytest.mark.full
    @each("path, more, words", CLIENTS)
    @each("method", ["dpzv", "vafl"])
    def test_a_client_model_that_cannot_work(
        self, method: str, path: str, more: tuple[str, ...], words: list[str]
    ) -> None:
        overrides = (f"method.name={method}", *client(path, *more))
        if (method, path) == ("vafl", "Normalised"):  # a baseline trains as PyTorch does
            made(*overrides)
            overrides = (*overrides, "privacy.noise_std=1")
        refused(["client.model", *words], ConfigError, made, *overrides)

    @each(
        "path, more, words",
        [entry for entry in CLIENTS if "[1, 2, 8]" not in entry[2] and entry[0] != "Infinite"],
    )
    def test_a_server_model_that_cannot_work(
        self, path: str, more: tuple[str, ...], words: list[str]
    ) -> None:
        more = tuple(text.replace("client", "server") for text in more)
        settings = ("client.model.outputs=4", *server(path, *more))
        refused(["server.model", *words], ConfigError, made, *settings)

    def test_a_server_model_of_the_wrong_sizes(self) -> None:
        for outputs, words in (
            (3, ["12 joined embeddings", "16"]),
            (4, ["3 outputs", "digits", "10"]),
        ):
            wrong = server("Net", "server.model.arguments={inputs: 16, outputs: 3}")
            settings = (f"client.model.outputs={outputs}", *wrong)
            refused(["server.model", *words], ConfigError, made, *settings)

    @each(
        "path, parameters, words",
        [
            ("absent", 32, ["no 'absent'"]),
            ("number", 32, ["int"]),
            ("linear", 31, ["[1, 2, 8]", "31"]),
            ("flat", 16, ["(2,)", "[batch, outputs]"]),
            ("dividing", 32, ["zero"]),
            ("lookup", 32, ["weights"]),
            ("worded", 32, ["three"]),
            ("nothing", 32, ["nothing()"]),
            ("infinite", 32, []),
        ],
    )
    def test_a_function_that_cannot_work(
        self, path: str, parameters: int, words: list[str]
    ) -> None:
        refused(["client.model", *words], ConfigError, made, *function(path, parameters=parameters))


def test_options_of_one_federation_are_not_those_of_the_next() -> None:
    """Of those for tests: a key within a shared default stays with the one that asked for it."""
    before = federations.config()
    federations.config(changes={"client.model.hidden": [5], "server.model.hidden": [7, 7]})
    assert federations.config() == before
