"""Models that find no room in memory are refused before they are made."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.rows import each

from vertizo.config import architectures as a
from vertizo.core.errors import ConfigError
from vertizo.core.memory import ran_out
from vertizo.core.randomness import Stream
from vertizo.run.build import models as room
from vertizo.run.build.models import OwnFeatures, client_model, server_model

STREAM = Stream.from_seed(1)
FREE = 10**6
TEXT: dict[str, Any] = {"checkpoint": "random", "vector": 8, "heads": 2}


@pytest.fixture(autouse=True)
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a megabyte, of which half is for parameters: 125,000 numbers."""
    monkeypatch.setattr(room, "available", lambda: FREE)


@each(
    "option, shape, tokens",
    [
        (a.MlpConfig(hidden=(13000,)), (10,), False),
        (a.MlpConfig(hidden=(300, 300, 300)), (10,), False),  # none of them alone
        (a.MlpConfig(hidden=(1,) * 100), (10,), False),  # small layers, but many
        (a.MlpConfig(outputs=13000), (10,), False),
        (a.FiltersConfig(count=20000), (3, 16, 16), False),
        (a.CnnConfig(channels=(4, 4, 8, 8), outputs=20000), (3, 16, 16), False),
        (a.ResnetConfig(width=8), (3, 8, 4), False),
        (a.ResnetStemConfig(width=5000), (3, 8, 4), False),
        (a.BagConfig(vocabulary=20000), (12,), True),
        (a.TextConfig(**TEXT, vocabulary=20000), (12,), True),
        (a.TextConfig(**TEXT, layers=200, vocabulary=40), (12,), True),
        (a.TextConfig(**TEXT, vocabulary=40, trainable="lora", rank=20000), (12,), True),
        (a.TextConfig(**TEXT, vocabulary=40, positions=20000), (12,), True),
        (a.TextEmbeddingsConfig(**TEXT, vocabulary=20000), (12,), True),
        (
            a.ModuleConfig(path="torch.nn:LazyLinear", arguments={"out_features": 13000}),
            (10,),
            False,
        ),
    ],
)
def test_a_client_without_room(option: Any, shape: tuple[int, ...], tokens: bool) -> None:
    if tokens and "text" in option.name:
        pytest.importorskip("transformers")
    with pytest.raises(ConfigError, match=r"^client\.model: .*its parameters take"):
        client_model(option, shape, STREAM, tokens=tokens)


def test_a_server_without_room() -> None:
    with pytest.raises(ConfigError, match=r"^server\.model: its parameters take"):
        server_model(a.ServerMlpConfig(hidden=(13000,)), 10, 2, STREAM, purpose="it")
    own = OwnFeatures(a.EncoderMlpConfig(hidden=(13000,)), torch.zeros(2, 10))
    with pytest.raises(ConfigError, match=r"^server\.encoder.*: its parameters take"):
        server_model(a.ServerMlpConfig(), 10, 2, STREAM, purpose="it", own=own)


def test_a_model_with_room_begins_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    option = a.MlpConfig(hidden=(3000,))
    counted = client_model(option, (10,), STREAM)
    monkeypatch.setattr(room, "available", lambda: None)
    assert torch.equal(counted.parameters, client_model(option, (10,), STREAM).parameters)


def test_only_errors_about_memory_are() -> None:
    assert ran_out(MemoryError())
    assert not ran_out(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
