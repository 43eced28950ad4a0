"""What fails in a method of somebody's own is one line that says where, in each of its steps."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from tests.rows import each

from vertizo.config import schema
from vertizo.core.errors import ConfigError
from vertizo.run.experiment import Experiment

OWN = """
from vertizo.methods.base import Method

class Own(Method):
    fails: str = ""

    def ask(self, side, number, features):
        1 / (self.fails != "ask")
        return side.model(features).unsqueeze(0)

    def stored(self, embeddings):
        1 / (self.fails != "stored")
        return super().stored(embeddings)

    def told(self, outcome):
        1 / (self.fails != "told")
        return outcome.losses[0] if self.fails == "losses" else outcome.plain

    def tell(self, side, number, features, values):
        1 / (self.fails != "tell")
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(OWN)
    return f"{tmp_path / 'own.py'}:Own"


def config(own: str, **method: Any) -> schema.ExperimentConfig:
    data = {"name": "digits", "limit": 40, "test_limit": 20, "parties": 2}
    return schema.parse({"seed": 0, "epochs": 1, "method": {"name": own, **method}, "data": data})


@each("step", ["ask", "stored", "told", "tell"])
def test_a_step_that_fails_is_named_with_its_line(step: str, own: str) -> None:
    line = next(n for n, text in enumerate(OWN.splitlines(), 1) if f'!= "{step}"' in text)
    words = f"method Own: {step} failed in own.py, line {line}: ZeroDivisionError: division by zero"
    with pytest.raises(ConfigError, match=words):
        Experiment(config(own, fails=step)).run()


def test_losses_without_points_are_explained(own: str) -> None:
    with pytest.raises(ConfigError, match=r"told failed .*outcome\.losses has no points.*plain"):
        Experiment(config(own, fails="losses")).run()
    assert Experiment(config(own)).run().summary["rounds"] > 0


def test_a_configuration_goes_to_another_process_by_the_paths_that_name_code(own: str) -> None:
    """Its classes are in no module that the process could import."""
    given = config(own, fails="ask")
    content = pickle.dumps(given)
    assert b"vertizo_user" not in content  # a module of this process alone
    again = pickle.loads(content)
    assert again == given
    assert again.digest == given.digest
    assert again.method.model_fields_set == given.method.model_fields_set
    for settings in ([], ["privacy.epsilon=1", "privacy.mechanism=gaussian", "method.name=czofo"]):
        whole = schema.load(None, settings)
        assert pickle.loads(pickle.dumps(whole)) == whole
