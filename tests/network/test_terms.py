"""A label holder's terms import nothing at a member, but what its own configuration names."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.deployments import join_config
from tests.network.test_device import terms

from vertizo.core import registry
from vertizo.core.errors import ConfigError
from vertizo.network.terms import accepted

CODE = """
from pathlib import Path
from vertizo.methods.first_order import FirstOrder

Path(__file__).with_name("imported").touch()


class Mine(FirstOrder):
    "A member's own copy."
"""


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
            accepted(terms(dict(settings)), join_config(tmp_path, "north"))
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
    assert accepted(terms({"method": {"name": path}}), config).method.name == path
    with pytest.raises(ConfigError, match=r"federation\.require\.method\.name is"):
        accepted(terms({"method": {"name": "dpzv"}}), config)
