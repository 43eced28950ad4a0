"""One trial of an attack, on data that all tests of a module share."""

from __future__ import annotations

from vertizo.lab.attacks.base import Attack
from vertizo.lab.attacks.runner import Laboratory
from vertizo.lab.attacks.scores import Measurement
from vertizo.lab.attacks.settings import setting

LABORATORY = Laboratory()


def tried(
    attack: Attack,
    method: str,
    *overrides: str,
    place: str | None = None,
    noise: bool = False,
    seed: int = 0,
) -> dict[str, Measurement]:
    """What one run gives, in the attack's own setting unless another is named."""
    chosen = attack.setting if place is None else place
    config = setting(chosen, method, noise=noise, overrides=overrides, seed=seed)
    data = LABORATORY.data(config)
    assert attack.unfit(config, data) is None
    return attack.trial(config, data)
