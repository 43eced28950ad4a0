"""The game for methods that ask along directions: all that a release allows, and not more."""

from __future__ import annotations

import json
import math

import pytest
import torch
from tests.rows import each
from torch import Tensor

from vertizo.core.errors import ConfigError
from vertizo.lab.audit import small
from vertizo.lab.audit.adversaries import CraftedTangents, FinalModel
from vertizo.lab.audit.cases import ALONG
from vertizo.lab.audit.game import audit
from vertizo.lab.audit.setting import Setting
from vertizo.lab.commands.privacy import audit as command
from vertizo.privacy.noise.mechanisms import SeededNoise

LARGE = 0.05
"""δ at which few trials show much."""


def _quiet(name: str) -> Setting:
    """Next to no noise."""
    config = small.along(name)
    changed = config.privacy.model_copy(update={"epsilon": None, "noise_std": 1e-4})
    return Setting(config.model_copy(update={"privacy": changed}), small.data())


@each("name", ALONG, gate=ALONG[:1])
def test_tangents_of_any_size_move_a_release_by_twice_the_clip_and_no_more(name: str) -> None:
    """Those that are not finite, or vanish, move nothing. Noise of 1e-4 on either reply."""
    setting = _quiet(name)
    most = small.CLIP * small.CLIENTS
    sizes = {1.0: 1, 1e4: 1, 1e38: 1, -1e38: 1, math.inf: 0, math.nan: 0, 1e-38: 0}
    for size, share in sizes.items():
        player = CraftedTangents(setting, size)
        found = [float(player.observe(world, 12)[0]) for world in (0, 1)]
        assert found == pytest.approx([share * most, -share * most], abs=2e-3), size


@pytest.mark.full
@each("name", ALONG)
def test_every_trial_is_played_on_a_server_as_new_with_noise_of_its_own(name: str) -> None:
    setting = Setting(small.along(name), small.data())
    player = CraftedTangents(setting)
    seen = [float(player.observe(0, 4 * seed)[0]) for seed in (1, 2, 3, 1)]
    assert len(set(seen[:3])) == 3
    assert seen[3] == seen[0]


def _half(self: SeededNoise, release: int, total: Tensor) -> Tensor:
    noise = self._stream.generator(release).standard_normal(tuple(total.shape))
    return total + 0.5 * self.noise_std * torch.from_numpy(noise)


@pytest.mark.full
@each("name", ALONG)
def test_half_of_the_noise_is_caught_and_all_of_it_is_not(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = Setting(small.along(name, delta=LARGE), small.data())
    found = audit(setting, CraftedTangents(setting), trials=150)
    assert found.guarantee == "simulated"
    assert found.epsilon_exact == pytest.approx(1.0)
    assert not found.refutes_accountant
    monkeypatch.setattr(SeededNoise, "onto", _half)
    assert audit(setting, CraftedTangents(setting), trials=1000).refutes_accountant


@pytest.mark.full
def test_the_bias_of_a_sum_tells_no_more_than_is_promised() -> None:
    setting = Setting(small.along("tangent", update="private-sgd"), small.data())
    for player in (CraftedTangents, FinalModel):
        found = audit(setting, player(setting), trials=20)
        assert found.epsilon_exact == pytest.approx(1.0, abs=1e-3)
        assert not found.refutes_accountant


@pytest.mark.full
def test_the_command_takes_a_configuration_of_such_a_method(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Batches and directions that it leaves open are those of a run; without noise all is told."""
    settings = ["method.name=tangent", "data.name=breast-cancer", "server.update=none"]
    command(None, settings, trials=20, honest_trials=0, probes=4, as_json=True)
    [found] = json.loads(capsys.readouterr().out)
    assert found["adversary"] == "malicious"
    assert found["bound"]["hits"] == 10


def test_servers_that_do_not_sum_are_refused() -> None:
    with pytest.raises(ConfigError, match="crafted for 'tangent' or 'label-statistic', and 'sum'"):
        CraftedTangents(Setting(small.config(), small.data()))
