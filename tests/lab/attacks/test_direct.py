"""Direct label inference: all of it by gradients, next to nothing by losses, all by design."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tests.lab.attacks.trials import LABORATORY, tried

from vertizo.lab.attacks.kinds.designed import DesignedQuery
from vertizo.lab.attacks.kinds.direct import DirectCurious, DirectEavesdropper
from vertizo.lab.attacks.scores import Measurement
from vertizo.lab.attacks.settings import setting
from vertizo.methods.choice import asking

FIRST_ORDER = ("vafl", "split", "compressed-vfl", "fedbcd", "flex-vfl")
SCALAR = ("dpzv", "cascaded", "zoo-vfl", "syn-zoo-vfl")
ALONG = ("tangent", "label-statistic")
BATCH = 64


def deviations(score: Measurement) -> float:
    """Binomial standard deviations that a share is away from chance."""
    chance = score.control
    return (score.value - chance) / math.sqrt(chance * (1 - chance) / score.count)


@pytest.mark.full
def test_gradients_tell_every_label() -> None:
    for method in FIRST_ORDER:
        assert tried(DirectCurious(), method)["accuracy"].value >= 0.99, method
        overheard = tried(DirectEavesdropper(), method)
        assert overheard["accuracy"].value >= 0.99, method
        assert overheard["guessed"].value >= 0.99, method


@pytest.mark.full
def test_a_scalar_of_a_batch_hardly_tells_any() -> None:
    """In theory 11.5 %: the sign of a sum of 64 nearly independent terms is that of its own with

    probability ½ + O(1/8). Within five binomial deviations of that, D = 1438: at most 15.7 %.
    Guessed directions are right with probability 1/10, whatever the label; two clients, D records.
    """
    for method in SCALAR:
        score = tried(DirectCurious(), method)["accuracy"]
        assert score.count == 1438
        assert abs(score.value - 0.115) < 5 * math.sqrt(0.115 * 0.885 / score.count), method
        score = tried(DirectEavesdropper(), method)["guessed"]
        assert score.count == 2 * 1438
        assert abs(score.value - 0.1) < 5 * math.sqrt(0.09 / score.count), method


@pytest.mark.full
def test_few_of_czofos_directions_tell_some_and_many_tell_all() -> None:
    limit = "data.limit=384"  # six batches
    few = tried(DirectCurious(), "czofo", "method.num_directions=10")["accuracy"]
    usual = tried(DirectCurious(), "czofo", "method.num_directions=100")["accuracy"]
    many = tried(DirectCurious(), "czofo", limit, "method.num_directions=700")["accuracy"]
    assert 5 < deviations(few) < deviations(usual)
    assert many.value > 0.95
    each = tried(DirectCurious(), "czofo", limit, "method.scalars=record")["accuracy"]
    assert each.value >= 0.99


def test_czofos_directions_are_no_eavesdroppers() -> None:
    """Their seed is on no wire. Guesses of one batch depend on each other: 45 batches, 3 sd."""
    score = tried(DirectEavesdropper(), "czofo")["accuracy"]
    assert abs(score.value - 0.1) < 0.03


@pytest.mark.full
def test_designed_queries_tell_every_label_they_ask_about() -> None:
    asked = {**dict.fromkeys(FIRST_ORDER, 64), **dict.fromkeys(SCALAR, 4), "czofo": 10}
    assert set(asked) == set(asking()) - set(ALONG)
    queries = -(-1438 // BATCH)
    for method, expected in asked.items():
        found = tried(DesignedQuery(), method)
        count = found["accuracy"].count
        assert found["accuracy"].value >= 0.99, method
        assert count == pytest.approx(queries * expected, abs=expected + BATCH), method
        assert found["asked"].value == pytest.approx(expected / BATCH, rel=0.1), method


@pytest.mark.full
def test_designed_tangents_tell_most_labels_of_a_small_table_at_once() -> None:
    """16 numbers of one query: five digits each for ten classes, nineteen and more for two."""
    two = ("data.name=breast-cancer", "data.parties=2", "data.split=even")
    for method in ALONG:  # digits are loaded once
        found = tried(DesignedQuery(), method, "data.limit=100")
        assert found["accuracy"].value == 1, method
        assert found["asked"].value == 0.8, method
    for method in ALONG:
        for outputs in (1, 2):  # a log-odds, and two logits
            found = tried(DesignedQuery(), method, *two, f"client.model.outputs={outputs}")
            assert found["accuracy"].value == 1, (method, outputs)
            assert found["asked"].value > 0.6, (method, outputs)


def test_under_a_guarantee_designed_tangents_tell_next_to_nothing() -> None:
    """ε = 1, δ = 1e-5: a number for each of 300 records; five binomial deviations."""
    two = ("data.name=breast-cancer", "data.parties=2", "data.split=even", "data.limit=300")
    noise = ("privacy.mechanism=gaussian", "privacy.epsilon=1", "method.num_directions=300")
    for method in ALONG:
        found = tried(DesignedQuery(), method, *two, "client.model.outputs=1", *noise)["accuracy"]
        assert found.count == 300
        assert found.bound < found.control + 0.06
        assert abs(found.value - 0.5) < 5 * math.sqrt(0.25 / 300), method
        assert found.value < found.bound + 5 * math.sqrt(0.25 / 300), method


@pytest.mark.full
def test_random_tangents_of_a_small_table_tell_all_and_of_a_large_one_hardly_any() -> None:
    """As many numbers as a table's unknowns, 60 · 10, determine every record's gradient."""
    for method in ALONG:
        small = ("data.limit=60", "method.num_directions=600")
        assert tried(DirectCurious(), method, *small)["accuracy"].value > 0.9, method
        score = tried(DirectCurious(), method)["accuracy"]
        assert abs(score.value - 0.1) < 5 * math.sqrt(0.09 / score.count), method


def test_noise_keeps_attacks_below_what_the_guarantee_allows() -> None:
    """The bound is on the expectation: five binomial deviations are allowed above it."""
    for method in ("vafl", "dpzv", "czofo", "syn-zoo-vfl", *ALONG):
        for attack in (DirectCurious(), DesignedQuery()):
            noised = tried(attack, method, noise=True)["accuracy"]
            assert noised.control < noised.bound < 0.4, (method, attack.name)
            slack = 5 * math.sqrt(noised.bound * (1 - noised.bound) / noised.count)
            assert noised.value < noised.bound + slack, (method, attack.name)
            if method == "vafl":  # and no less
                assert noised.value > noised.control + 3 * math.sqrt(0.1 / noised.count)


@pytest.mark.full
def test_with_two_classes_a_designed_query_reaches_what_one_reply_allows() -> None:
    """One record a query, its slope at ±C: right with probability Φ(C/σ) = Φ(½), no more.

    455 records in one epoch; the run's bound counts both clients, this is one client's replies.
    """
    data = ("data.name=breast-cancer", "data.parties=2", "data.split=even")
    overrides = (*data, "client.model.outputs=2", "batch_size=1")
    found = tried(DesignedQuery(), "dpzv", *overrides, noise=True)["accuracy"]
    assert found.count == 455 or found.count == 456
    share = 0.5 * (1 + math.erf(0.5 / math.sqrt(2)))
    assert abs(found.value - share) < 4 * math.sqrt(share * (1 - share) / found.count)
    assert found.value < found.bound


def test_private_labels_are_all_that_gradients_tell() -> None:
    """Of randomised response as many as are kept; a teacher's labels are predictions."""
    data = ("data.name=breast-cancer", "data.parties=2", "data.split=even", "privacy.epsilon=1")
    for mechanism in ("randomised-response", "teacher"):
        overrides = (*data, "client.model.outputs=2", f"privacy.mechanism={mechanism}")
        found = tried(DesignedQuery(), "vafl", *overrides)["accuracy"]
        advantage = 0.462 if mechanism == "randomised-response" else 0.107
        assert found.label_advantage == pytest.approx(advantage, abs=1e-3)
        if mechanism == "teacher":
            assert (found.value > 0.85, found.bound) == (True, None)
        else:
            kept = (1 + advantage) / 2
            assert abs(found.value - kept) < 4 * math.sqrt(kept * (1 - kept) / found.count)
            assert found.control < found.bound < 1


def test_a_server_that_does_not_sum_is_refused() -> None:
    config = setting("trained", "vafl")
    data = LABORATORY.data(config)
    for attack in (DirectCurious(), DirectEavesdropper(), DesignedQuery()):
        assert "server.model.name=sum" in attack.unfit(config, data)


def test_the_curious_client_does_not_look_at_its_features() -> None:
    """Its queries are the same whatever they are; so is what it reads, and a trial repeats."""
    config = setting("sum", "cascaded", overrides=["data.limit=100"])
    data = LABORATORY.data(config)
    blind = [dict(own) for own in data.features]
    blind[0]["train"] = torch.zeros_like(blind[0]["train"])
    other = replace(data, features=tuple(blind))
    attack = DirectCurious()
    assert attack.trial(config, data)["accuracy"] == attack.trial(config, other)["accuracy"]
