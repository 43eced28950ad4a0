"""What a member takes from a label holder's terms: no code, and not where its own model lives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.deployments import join_config

from vertizo.config.schema import ExperimentConfig, parse
from vertizo.config.sections.optimizer import GivenConfig
from vertizo.core.errors import ConfigError
from vertizo.core.plugins import registry
from vertizo.network.serving.frames import Terms
from vertizo.network.serving.options import JoinConfig
from vertizo.network.serving.terms import accepted as accepted_terms
from vertizo.run.trained.prediction import for_predicting

CODE = """
from pathlib import Path
from vertizo.methods.first_order import FirstOrder

Path(__file__).with_name("imported").touch()


class Mine(FirstOrder):
    "A member's own copy."
"""


def accepted(settings: dict[str, Any], config: JoinConfig) -> ExperimentConfig:
    """What a member makes of settings, in a trial on a named data set."""
    proposed, members = json.dumps(settings), ("north", "south")
    return accepted_terms(Terms("job", 0, members, proposed, False, 0, bytes(32), True), config)


def test_a_proposal_never_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evil.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    asked: list[str] = []
    monkeypatch.setattr(registry, "load_object", lambda key, path: asked.append(path))
    path = f"{tmp_path}/evil.py:Mine"
    chain = {"name": "chain", "codecs": [{"name": "top-k"}, {"name": path}]}
    for settings, key in (
        ({"method": {"name": path}}, "method.name"),
        ({"method": {"name": "evil:Mine"}}, "method.name"),
        ({"method": {"name": "of-an-entry-point"}}, "method.name"),
        ({"data": {"name": path}}, "data.name"),
        ({"client": {"model": {"name": path}}}, "client.model.name"),
        ({"server": {"model": {"name": path}}}, "server.model.name"),
        ({"server": {"encoder": {"name": path}}}, "server.encoder.name"),
        ({"codecs": {"up": {"name": path}}}, "codecs.up.name"),
        ({"codecs": {"up": {"name": "paired", "midpoint": {"name": path}}}}, "midpoint.name"),
        ({"codecs": {"down": chain}}, "codecs.down.codecs.1.name"),
        ({"privacy": {"mechanism": path}}, "privacy.mechanism"),
    ):
        with pytest.raises(ConfigError, match="no part of vertizo") as refused:
            accepted(dict(settings), join_config(tmp_path, "north"))
        assert key in str(refused.value)
        assert "\n" not in str(refused.value)
    assert asked == []
    assert not (tmp_path / "imported").exists()


def test_what_a_member_requires_itself_is_its_own(tmp_path: Path) -> None:
    path = f"{tmp_path}/evil.py:Mine"
    (tmp_path / "evil.py").write_text(CODE)
    config = join_config(tmp_path, "north")
    required = config.federation.model_copy(update={"require": {"method.name": path}})
    config = config.model_copy(update={"federation": required})
    assert accepted({"method": {"name": path}}, config).method.name == path
    with pytest.raises(ConfigError, match=r"federation\.require\.method\.name is"):
        accepted({"method": {"name": "dpzv"}}, config)


def test_a_regulariser_that_is_code_comes_from_the_member_alone(tmp_path: Path) -> None:
    """A label holder may propose one by name."""
    given = {"name": "function", "path": "rules.py:group"}
    settings = {"client": {"optimizer": {"weight_decay": 0.1, "regularizer": given}}}
    with pytest.raises(ConfigError, match=r"proposes client\.optimizer\.regularizer\.path 'rules"):
        accepted(settings, join_config(tmp_path, "north"))
    for name in ("l1", "l2", "non-convex"):
        chosen = {"client": {"optimizer": {"weight_decay": 0.1, "regularizer": {"name": name}}}}
        found = accepted(chosen, join_config(tmp_path, "north"))
        assert found.client.optimizer.regularizer.name == name
    own = join_config(tmp_path, "north").model_copy(update={"client": settings["client"]})
    found = accepted({}, own)
    assert found.client.optimizer.regularizer == GivenConfig(path="rules.py:group")


# Where a member's model lives is the member's to say; a finished run predicts on the processor.


def agreed(folder: Path, theirs: str, **own: object) -> ExperimentConfig:
    return accepted({"client": {"device": theirs}}, join_config(folder, "north", client=own))


def test_the_label_holder_does_not_decide(tmp_path: Path) -> None:
    assert agreed(tmp_path, "cuda").client.device == "cpu"
    assert agreed(tmp_path, "cpu", device="cuda").client.device == "cuda"


def test_other_keys_are_none(tmp_path: Path) -> None:
    for own, words in (
        ({"speed": 3}, r"client\.speed is no key; .*\.optimizer and \.device"),
        ({"modle": {}}, r"client\.modle is no key; did you mean 'model'"),
        ({"model": {"name": "mpl"}}, r"client\.model\.name is 'mpl'; did you mean 'mlp'"),
        ({"model": {"name": "mlp", "output": 3}}, r"'client\.model\.output'.* 'outputs'"),
        ({"optimizer": {"learning_rate": "x"}}, r"learning_rate is 'x'; it must be a number"),
    ):
        with pytest.raises(ValueError, match=words):
            join_config(tmp_path, "north", client=own)


def test_predicting_needs_no_card() -> None:
    asked = for_predicting(parse({"client": {"device": "cuda"}, "server": {"device": "cuda"}}))
    assert (asked.client.device, asked.server.device) == ("cpu", "cpu")
