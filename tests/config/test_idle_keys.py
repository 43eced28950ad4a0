"""Keys that would have no effect are refused, in a line; at their defaults they say nothing."""

from __future__ import annotations

import pytest

from vertizo.config import schema
from vertizo.core.errors import ConfigError

PRIVATE = ("privacy.epsilon=1",)
EMBEDDING = (
    *("privacy.mechanism=embedding-noise", "privacy.clip=1", "privacy.noise_std=1"),
    "method.name=vafl",
)
NONE = ("privacy.noise_std=1", "server.update=none")
SAME_BATCH = (*PRIVATE, "server.update=private-sgd")
ZEROTH = (*PRIVATE, "server.update=private-zeroth-order")
RAW = ("privacy.noise_std=1", "server.update=sgd")
DIGITS: tuple[str, ...] = ()
IDLE: dict[str, tuple[tuple[str, ...], ...]] = {
    "server.clip=2": (DIGITS, EMBEDDING, NONE, RAW, ("method.name=zoo-vfl",)),
    "server.secret.every=2": (DIGITS, EMBEDDING, NONE, RAW, SAME_BATCH, ZEROTH),
    "server.secret.warm_up=1": (DIGITS, SAME_BATCH),
    "server.secret.sampling=0.1": (DIGITS, SAME_BATCH),
    "server.smoothing=0.01": (DIGITS, NONE, PRIVATE, SAME_BATCH, ("method.name=vafl",)),
    "server.directions=gaussian": (DIGITS, NONE, PRIVATE, SAME_BATCH),
    "method.clipping=jointly": (DIGITS,),
    "privacy.delta=0.001": (DIGITS,),
    "privacy.noise=secure": (DIGITS, EMBEDDING),
    "privacy.noise=seeded": (DIGITS, EMBEDDING),
    "privacy.clip=1": (DIGITS,),
    "privacy.server_share=0.3": (DIGITS, EMBEDDING, RAW),
    "privacy.server_noise_std=3": (DIGITS, EMBEDDING, RAW),
    "privacy.accounting=published": (DIGITS,),
    "privacy.ledger=x.sqlite": (DIGITS, EMBEDDING),
    "simulation.timeout=3": (DIGITS, PRIVATE),
    "data.delimiter=;": (DIGITS,),
    "data.tokenizer=minilm": (DIGITS,),
    "data.length=9": (DIGITS,),
    "data.vocabulary=99": (DIGITS,),
    "data.classes=[a, b]": (DIGITS,),
    "data.label=x": (DIGITS,),
    "data.id=x": (DIGITS,),
    "data.path=x.csv": (DIGITS,),
}


def test_a_key_that_does_nothing_is_refused() -> None:
    for key, settings in ((each, one) for each, many in IDLE.items() for one in many):
        with pytest.raises(ConfigError) as refused:
            schema.load(None, (*settings, key))
        line = str(refused.value)
        assert len(line.splitlines()) == 1
        assert key.split("=")[0] in line, (settings, line)


USED = (
    (*PRIVATE, "server.clip=3", "server.secret={every: 2, warm_up: 1, sampling: 0.1}"),
    (*SAME_BATCH, "server.clip=3", "server.optimizer.momentum=0.1", "privacy.server_share=0.3"),
    (*ZEROTH, "server.clip=3", "server.smoothing=0.01", "server.directions=gaussian"),
    ("method.name=zoo-vfl", "server.smoothing=0.01", "server.directions=gaussian"),
    (*PRIVATE, "method.clipping=jointly", "privacy.delta=0.001", "privacy.noise=seeded"),
    (*EMBEDDING, "privacy.delta=0.001"),
    ("simulation.timeout=3", "simulation.drop=0.1"),
)


def test_where_it_has_an_effect_it_is_taken_and_what_a_run_leaves_behind_is_read() -> None:
    for settings in (*USED, DIGITS, PRIVATE, EMBEDDING, NONE, SAME_BATCH, ZEROTH, RAW):
        made = schema.load(None, settings)
        assert schema.parse(made.model_dump(mode="json")) == made, settings
