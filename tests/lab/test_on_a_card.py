"""Attacks and audits of parties that are on a card, with the same findings."""

from __future__ import annotations

import pytest
from tests.cards import a_stand_in
from tests.lab.attacks.trials import LABORATORY
from tests.rows import each

from vertizo.lab.attacks import ATTACKS
from vertizo.lab.attacks.settings import setting
from vertizo.lab.audit import small
from vertizo.lab.audit.adversaries import FinalModel, Honest, Malicious
from vertizo.lab.audit.setting import Setting

SHORT = ["epochs=2", "data.limit=200"]


@pytest.mark.full
@each("name", ATTACKS)
def test_attacks_find_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attack, stand_in, found = ATTACKS[name](), a_stand_in(), []
    for method in ("vafl", "dpzv"):
        config = setting(attack.setting, method, overrides=SHORT)
        data = LABORATORY.data(config)
        if attack.unfit(config, data) is not None:
            continue
        with stand_in.with_a_card(monkeypatch):
            for each_one in (config, stand_in.placed(config)):
                trial = attack.trial(each_one, data)
                found.append({key: part.value for key, part in trial.items()})
        assert found[-1] == pytest.approx(found[-2], abs=0.05), method
    assert found


PLAYERS = [
    (Honest, "none"),
    (Malicious, "none"),
    (Malicious, "private-sgd"),
    (FinalModel, "private-sgd"),
]


@each("player, update", PLAYERS, gate=PLAYERS[2:3])
def test_auditors_see_the_same(player: type, update: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config, stand_in = small.config("exact", update=update), a_stand_in()
    with stand_in.with_a_card(monkeypatch):
        seen = []
        for each_one in (config, stand_in.placed(config)):
            auditor = player(Setting(each_one, small.data(), 0))
            seen.append([auditor.observe(world, 3) for world in (0, 1)])
    for one, other in zip(*seen, strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-3)
