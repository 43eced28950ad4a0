"""``vertizo attack``: one attack, the table, and what is wrong in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.command_line import Refuses, Vertizo
from tests.words import says

from vertizo.lab.attacks.choice import ATTACKS

TINY = ("--set", "data.limit=80", "--seeds", "2")


def test_one_attack(vertizo: Vertizo) -> None:
    out = vertizo("attack", "direct-client", *TINY, "--out", "found").quietly()
    says(out, "direct-client on vafl", "1.000 ± 0.000", "control", "no proof", "found")
    found = json.loads(Path("found/attacks.json").read_text())
    assert found["command"].startswith("vertizo attack direct-client")
    (trials,) = found["results"]
    assert trials["seeds"] == [0, 1]
    assert trials["figures"]["accuracy"]["trials"] == [1.0, 1.0]


def test_json_is_the_last_line(vertizo: Vertizo) -> None:
    settings = ("--set", "method.name=dpzv", "--set", "seed=5")
    out = vertizo("attack", "designed-query", *TINY, *settings, "--json").quietly()
    (trials,) = json.loads(out.splitlines()[-1])["results"]
    assert trials["method"] == "dpzv"
    assert trials["seeds"] == [5, 6]
    assert trials["figures"]["accuracy"]["mean"] == 1.0


@pytest.mark.full
def test_the_table(vertizo: Vertizo) -> None:
    chosen = ("--methods", "vafl,dpzv", "--attacks", "direct-client,gradient-matching")
    out = vertizo("attack", "table", *TINY, *chosen).quietly()
    says(out, "vafl", "noise", "n/a: gradient-matching on dpzv", "1.000 ± 0.000")
    assert "…" not in out


def test_a_configuration_of_ones_own(vertizo: Vertizo) -> None:
    Path("own.yaml").write_text(
        "seed: 3\nepochs: 1\nbatch_size: 32\ndata: {limit: 80, parties: 2}\nmethod: {name: split}\n"
        "client: {model: {name: mlp, outputs: 10}}\nserver: {model: {name: sum}}\n"
    )
    result = vertizo("attack", "direct-client", "own.yaml", "--seeds", "1", "--json")
    (trials,) = json.loads(result.out)["results"]
    assert (trials["method"], trials["seeds"]) == ("split", [3])
    assert trials["figures"]["accuracy"]["mean"] == 1.0
    chosen = ("--attacks", "direct-client,reply-scoring", "--methods", "vafl", "--no-noise")
    result = vertizo("attack", "table", "own.yaml", "--seeds", "1", *chosen, "--json")
    first, second = json.loads(result.out)["results"]
    assert first["figures"]["accuracy"]["mean"] == 1.0
    assert "two classes" in second["not_applicable"]


MISTAKES = """\
 | 'name'
direct | 'direct' | direct-client
direct-client --methods vafl | --methods | table
direct-client --set server.model.name=mlp | server.model.name=sum
direct-client --set method.name=vaffl | 'vaffl'
gradient-matching --set method.name=dpzv | scalars of a whole batch
model-completion --set attack.per_class=0 | per_class
model-completion --set attack.nothing=1 | nothing
table --methods vafl,vafl | --methods
table --methods vafl,none | 'none' | dpzv
table --attacks none | 'none' | membership
table --set attack.steps=3 | attack.steps
direct-client nowhere.yaml | nowhere.yaml
direct-client --seeds 0 | --seeds
"""


def test_what_is_wrong_is_one_line(refuses: Refuses) -> None:
    refuses(MISTAKES, "attack")
    Path("there").mkdir()
    Path("there/attacks.json").write_text("{}")
    Path("file").touch()
    refuses("there | there\nfile | file", "attack", "direct-client", *TINY, "--out")


def test_attacks_are_listed(vertizo: Vertizo) -> None:
    out = vertizo("list", "attacks").quietly()
    says(out, *ATTACKS)
