"""What people write after --search, and what is searched where they write nothing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.lab.conftest import settings
from tests.refusals import one_line

from vertizo.core.errors import ConfigError
from vertizo.data.vertical import VerticalData
from vertizo.lab.tuning import space as spaces
from vertizo.lab.tuning.privacy import unledgered
from vertizo.lab.tuning.space import Choices, Domain, Range, parse_space
from vertizo.run.experiment import Experiment

SMALL = ("data.limit=60", "data.parties=2", "batch_size=9", "epochs=2")
NOISE = ("privacy.mechanism=gaussian", "privacy.clip=0.5", "server.update=none")


def tree() -> dict[str, Any]:
    return settings(*SMALL).model_dump(mode="json")


DOMAINS: dict[str, Domain] = {
    "batch_size=8..64": Range(8, 64, whole=True),
    "batch_size=8..64:log": Range(8, 64, log=True, whole=True),
    "batch_size=16,32,64": Choices(("16", "32", "64")),
    "client.optimizer.learning_rate=1e-4..1e-1:log": Range(1e-4, 1e-1, log=True),
    "client.optimizer.learning_rate=1..2": Range(1, 2),
    "method.directions=sphere,gaussian": Choices(("sphere", "gaussian")),
    "server.model.hidden=[8],[16, 8],[]": Choices(("[8]", "[16, 8]", "[]")),
}
WRONG = {
    "batch_size": ["key=low..high"],
    "=1..2": ["key=low..high"],
    "client.optimizer.learnin_rate=1..2": ["unknown key", "client.optimizer.learning_rate"],
    "zzz=1..2": ["unknown key 'zzz'"],
    "batch_size=32": ["two or more"],
    "batch_size=32,32": ["two or more"],
    "batch_size=32,": ["two or more"],
    "batch_size=64..8": ["64 is not below 8"],
    "batch_size=0..8": ["batch_size is 0", "greater than 0"],
    "batch_size=8,x": ["batch_size is 'x'", "integer"],
    "batch_size=1..nan": ["no range"],
    "batch_size=a..b": ["no range"],
    "client.optimizer.momentum=0.5..1": ["client.optimizer.momentum is 1.0", "less than 1"],
    "method.smoothing=0..1:log": ["begins above 0"],
    "method.smoothing=0.1..1:lin": ["'lin' is unknown"],
    "seed=1,2": ["seed is not searched", "luck"],
    "data.limit=50,60": ["data is not searched"],
    "privacy.delta=1e-5,1e-4": ["privacy.delta is not searched"],
    "method.name=dpzv,vafl": ["method.name is not searched", "compare"],
}


def test_a_domain_is_read_as_it_is_written_and_what_is_wrong_is_one_line() -> None:
    for text, domain in DOMAINS.items():
        assert [*parse_space([text], tree()).values()] == [domain]
    for text, words in WRONG.items():
        with one_line(ConfigError, text, *words):
            parse_space([text], tree())
    with pytest.raises(ConfigError, match="named twice"):
        parse_space(["batch_size=8,9", "batch_size=10,11"], tree())


def test_draws_lie_inside_and_reach_everywhere() -> None:
    choices = Choices(("a", "b", "c"))
    assert {choices.draw(np.random.default_rng(i)) for i in range(300)} == set(choices.values)
    for domain in (
        Range(1e-4, 1e-1, log=True),
        Range(-2.0, 3.0),
        Range(1, 3, whole=True),
        Range(1, 3, log=True, whole=True),
    ):
        drawn = [domain.draw(np.random.default_rng(i)) for i in range(300)]
        assert drawn == [domain.draw(np.random.default_rng(i)) for i in range(300)]
        values = [float(text) for text in drawn]
        assert domain.low <= min(values) <= max(values) <= domain.high
        low, high = domain.low, domain.high
        middle = math.sqrt(low * high) if domain.log else (low + high) / 2
        if domain.whole:
            assert set(values) == {1.0, 2.0, 3.0}
        else:
            assert 0.4 < sum(value < middle for value in values) / 300 < 0.6, domain


def test_values_take_their_places() -> None:
    found = spaces.configured(tree(), {"batch_size": "7", "client.optimizer.learning_rate": "0.25"})
    assert found.batch_size == 7
    assert spaces.value_at(found, "client.optimizer.learning_rate") == 0.25


def space_of(*own: str) -> tuple[dict[str, Domain], VerticalData]:
    experiment = Experiment(settings(*SMALL, *own))
    data = experiment.data()
    return spaces.default_space(experiment.config, unledgered(experiment.config, data)), data


def test_the_usual_space_is_around_what_is_configured() -> None:
    space, _ = space_of("client.optimizer.learning_rate=0.003", "method.smoothing=0.01")
    assert space["client.optimizer.learning_rate"] == Range(0.0003, 0.03, log=True)
    assert space["method.smoothing"] == Range(0.001, 0.1, log=True)
    assert space["batch_size"] == Choices(("4", "9", "18"))
    assert space["server.optimizer.momentum"] == Choices(("0.0", "0.5", "0.9", "0.95"))


def test_rates_that_the_program_chooses_are_searched_around_what_it_chose() -> None:
    space, data = space_of("client.optimizer.momentum=0.7")
    rates = unledgered(settings(*SMALL, "client.optimizer.momentum=0.7"), data).learning_rates
    found = space["client.optimizer.learning_rate"]
    middle = math.sqrt(found.low * found.high)
    assert min(rates) * 0.99 < middle < max(rates) * 1.01
    assert found.high / found.low == pytest.approx(100, rel=0.02)
    assert space["client.optimizer.momentum"] == Choices(("0.0", "0.5", "0.7", "0.9", "0.95"))


@pytest.mark.full
def test_what_is_searched_depends_on_the_method() -> None:
    by_epsilon = (*NOISE, "privacy.epsilon=3")
    for own, there, absent in (
        (("method.name=vafl",), {"client.optimizer.learning_rate"}, {"method.smoothing"}),
        (("control=frozen",), {"server.optimizer.momentum"}, {"client.optimizer.momentum"}),
        (("server.update=zeroth-order",), {"server.smoothing"}, {"privacy.clip"}),
        (
            by_epsilon,
            {"privacy.clip", "batch_size"},
            {"server.optimizer.learning_rate", "server.clip"},
        ),
        # With noise that is given, another clip would be another ε.
        ((*NOISE, "privacy.noise_std=3"), {"batch_size"}, {"privacy.clip"}),
        (
            (*by_epsilon, "server.update=poisson-dp-sgd"),
            {"server.clip", "privacy.clip"},
            {"batch_size"},
        ),
    ):
        space, _ = space_of(*own)
        assert there <= space.keys(), own
        assert not absent & space.keys(), own
