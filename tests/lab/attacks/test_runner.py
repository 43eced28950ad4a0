"""Trials over seeds, the table, and settings."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import ClassVar

import pytest

from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError, RunError
from vertizo.data.vertical import VerticalData
from vertizo.lab.attacks import ATTACKS, SETTINGS, Entry, Laboratory, setting, table
from vertizo.lab.attacks.base import Attack
from vertizo.lab.attacks.runner import make
from vertizo.lab.attacks.scores import Measurement
from vertizo.lab.attacks.settings import with_noise
from vertizo.methods.choice import asking


class Named(Attack):
    """Says its seed, and that some seeds diverge."""

    name: ClassVar[str] = "named"
    figures: ClassVar[Mapping[str, str]] = {"seed": "its seed"}

    diverges: int = -1

    def trial(self, config: ExperimentConfig, data: VerticalData) -> dict[str, Measurement]:
        if config.seed == self.diverges:
            raise RunError("training diverged")
        return {"seed": Measurement(config.seed, 0.5, 1)}


def configure(seed: int) -> ExperimentConfig:
    return setting("sum", "vafl", seed=seed)


def test_a_trial_for_each_seed() -> None:
    counted = []
    found = Laboratory().trials(Named(), configure, [3, 4, 5], done=lambda: counted.append(1))
    assert [m.value for m in found.figures["seed"].measurements] == [3, 4, 5]
    assert (found.method, found.noise, found.seeds) == ("vafl", False, (3, 4, 5))
    assert len(counted) == 3


def test_a_run_that_diverges_is_raised_or_noted() -> None:
    attack = Named(diverges=4)
    with pytest.raises(RunError, match="diverged"):
        Laboratory().trials(attack, configure, [3, 4])
    entries = [Entry(attack, "vafl", False, configure), Entry(Named(), "vafl", False, configure)]
    first, second = table(entries, [3, 4])
    assert first.figures == {}
    assert first.unfit == "seed 4: training diverged"
    assert second.unfit is None
    assert first.as_dict()["not_applicable"] == first.unfit


def test_an_attack_that_does_not_fit_is_raised_or_noted() -> None:
    attack, config = ATTACKS["gradient-matching"](), setting("sum", "dpzv")
    with pytest.raises(ConfigError, match="scalars"):
        Laboratory().trials(attack, lambda _: config, [0])
    (found,) = table([Entry(attack, "dpzv", False, lambda _: config)], [0])
    assert "scalars" in str(found.unfit)


def test_every_setting_is_valid_for_every_method() -> None:
    for place, method, noise in itertools.product(SETTINGS, asking(), (False, True)):
        config = setting(place, method, noise=noise)
        assert config.method.name == method
        privacy = config.privacy
        assert (privacy.mechanism == "gaussian") == noise, (place, method)
        if noise:  # one reply is μ = 2C/σ = 1
            assert privacy.noise_std == 2 * float(privacy.clip or 0), (place, method)


def test_noise_for_a_configuration_of_ones_own() -> None:
    config = setting("trained", "cascaded")
    noised = with_noise(config)
    assert noised.privacy.mechanism == "gaussian"
    assert noised.model_copy(update={"privacy": config.privacy, "method": config.method}) == config
    with pytest.raises(ConfigError, match="already"):
        with_noise(noised)


def test_every_attack_says_who_and_what() -> None:
    for name, attack in ATTACKS.items():
        said = (attack.paper, attack.adversary, attack.figures, (attack.__doc__ or "").strip())
        assert all(said), name
        assert attack().setting in SETTINGS, name


def test_options_of_an_attack() -> None:
    assert make("model-completion", ["per_class=7"]).model_dump()["per_class"] == 7
    for name, options, word in (
        ("model-completion", ["per_class=none"], "per_class"),
        ("model-completion", ["per_clas=7"], "per_clas"),
        ("direct", [], "direct-client"),
    ):
        with pytest.raises(ConfigError, match=word):
            make(name, options)
