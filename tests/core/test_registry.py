"""Names that are not built in: import paths, entry points, and what is refused."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from tests.refusals import refused
from torch import Tensor

from vertizo.cli import list as listing
from vertizo.config import schema
from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError
from vertizo.core.plugins import registry
from vertizo.methods.base import ClientSide, Features, Method, Outcome
from vertizo.run.experiment import Experiment

CODE = """
from typing import ClassVar
import torch
from torch import nn
from vertizo.config.architectures import OwnModel
from vertizo.data.datasets.bundled import digits
from vertizo.methods.base import Method
from vertizo.methods.first_order import FirstOrder
from vertizo.core.options import Chosen
from vertizo.privacy.own_mechanism import OwnMechanism
from vertizo.protocol.codecs.none import NoCompression

class Mine(FirstOrder):
    \"\"\"First order, by another name.\"\"\"

    pace: float = 1.0

class Wide(OwnModel):
    width: int = 3
    def module(self, shape, outputs):
        inputs = torch.Size(shape).numel()
        return nn.Sequential(nn.Flatten(), nn.Linear(inputs, outputs or self.width))

class Doubled(Chosen):
    keeps_differences: ClassVar[bool] = True
    keeps_two_numbers: ClassVar[bool] = True
    mixes_records: ClassVar[bool] = False
    def size(self, shape):
        return 2 * NoCompression().size(shape)
    def encode(self, array):
        return memoryview(bytes(NoCompression().encode(array)) * 2)
    def decode(self, data, shape):
        return NoCompression().decode(data[: len(data) // 2], shape)

class Sign(OwnMechanism):
    def each(self, values):
        return values.sign() * self.options.clip / self.batch_size

class Tracker:
    def __init__(self, place, tracked):
        self.file = open(place, "w")
    def on_evaluation(self, row):
        self.file.write("row ")
    def on_end(self, summary):
        self.file.write("end")
    def on_close(self, *, finished):
        self.file.close()

def numbers(root, options):
    return digits(root, options)

class Idle(Method): ...

class Shapeless(OwnModel): ...

NOTHING = 3
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The module above, in the folder that the test runs in."""
    (tmp_path / "brought.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    return f"{tmp_path / 'brought.py'}"


def test_a_run_of_nothing_but_somebodys_own(code: str, tmp_path: Path) -> None:
    own = {"data.name": "numbers", "client.model.name": "Wide", "server.model.name": "Wide"}
    own |= {"codecs.up.name": "Doubled", "privacy.mechanism": "Sign"}
    settings = [f"{key}={code}:{name}" for key, name in own.items()]
    settings.append("method.name=brought.py:Mine")
    more = ["method.pace=2", "client.model.width=5", "privacy.clip=2", "rounds=4", "data.limit=99"]
    config = schema.load(None, settings + more)
    assert config.method.model_dump() == {"name": f"{code}:Mine", "pace": 2.0}
    assert schema.parse(config.model_dump(mode="json")) == config
    tracked = tmp_path / "rows.txt"
    result = Experiment(config).run(tmp_path / "run", track=[f"{code}:Tracker={tracked}"])
    assert result.summary["privacy"]["guarantee"] == "none"
    assert tracked.read_text().endswith("end")


def test_a_method_of_ones_own_in_python() -> None:
    class Mine(Method):
        """Not in any file."""

        def ask(self, side: ClientSide, number: int, features: Features) -> Tensor:
            raise AssertionError

        def told(self, outcome: Outcome) -> Tensor:
            raise AssertionError

        def tell(self, side: ClientSide, number: int, features: Features, values: Tensor) -> None:
            raise AssertionError

    made = ExperimentConfig(method=Mine())
    assert made.method.name.endswith(":test_a_method_of_ones_own_in_python.<locals>.Mine")
    assert made.simulation.timing == "asynchronous"


def test_what_does_not_fit_is_one_line(code: str) -> None:
    for setting, words in (
        (f"method.name={code}:Nine", "brought.py has no 'Nine'"),
        (f"method.name={code}:NOTHING", "which is no Method; derive a class from"),
        (f"method.name={code}:Wide", "which is no Method"),
        (f"method.name={code}:Idle", "which does not define ask, tell, told"),
        (f"client.model.name={code}:Shapeless", "which does not define module"),
        (f"server.model.name={code}:Shapeless", "which does not define module"),
        (f"codecs.up.name={code}:Wide", "which does not define decode, encode, keeps_differences"),
        ("method.name=vertizo.methods.first_order:Vafl", "declares a name of its own"),
        ("method.name=absent.py:Mine", "there is no file absent.py"),
        ("method.name=vaffl", "did you mean 'vafl'"),
        ("codecs.down.name=nobody_has:It", "codecs.down.name is 'nobody_has:It': importing"),
        (f"codecs.up.name={code}:Mine2", "codecs.up.name is"),
        ("privacy.mechanism=nobody_has:It", "privacy.mechanism is 'nobody_has:It': importing"),
        ("client.model.name=nobody_has:It", "client.model.name is 'nobody_has:It': importing"),
    ):
        line = rf"^.*{re.escape(words)}.*$"
        refused(setting, ConfigError, schema.load, None, [setting], match=line)
    for setting, words in (
        ("method.pase=2", "unknown key 'method.pase'; did you mean 'pace'?"),
        ("method.pace=fast", "method.pace is 'fast'; it must be a number"),
    ):
        settings, match = [f"method.name={code}:Mine", setting], f"--set: .*{re.escape(words)}"
        refused(setting, ConfigError, schema.load, None, settings, match=match)


def test_entry_points_are_offered(
    code: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def offered(*, group: str) -> list[EntryPoint]:
        own = EntryPoint("mine", f"{code}:Mine", "vertizo.methods")
        hidden = EntryPoint("vafl", f"{code}:Nine", "vertizo.methods")
        return [own, hidden] if group == "vertizo.methods" else []

    monkeypatch.setattr(registry, "entry_points", offered)
    mine = schema.load(None, ["method.name=mine"]).method
    assert mine.model_dump() == {"name": "mine", "pace": 1.0}
    assert type(schema.load(None, ["method.name=vafl"]).method).__name__ == "Vafl"
    with pytest.raises(ConfigError, match="did you mean 'mine'"):
        schema.load(None, ["method.name=mien"])
    listing.list("methods")
    assert "mine" in capsys.readouterr().out


@pytest.mark.full
def test_a_wrong_key_is_refused_without_pytorch() -> None:
    script = """
import sys
from vertizo.config import schema
try:
    schema.load(None, ["method.nam=x"])
except schema.ConfigError as error:
    assert "'method.nam'" in str(error)
    heavy = {"torch", "scipy", "sklearn", "pandas", "polars"} & set(sys.modules)
    sys.exit(f"imported {heavy}" if heavy else 0)
sys.exit("not refused")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
