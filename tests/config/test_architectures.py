"""Options of models: which there are, what they mean, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from vertizo.config import schema
from vertizo.config.architectures import (
    CLIENT_MODELS,
    SERVER_MODELS,
    TextConfig,
    TextRestConfig,
)
from vertizo.core.errors import ConfigError
from vertizo.models.text import Spec


def parsed(side: str, model: dict[str, Any]) -> Any:
    tree = {side: {"model": model}}
    return getattr(schema.parse(tree, "it"), side).model


def test_every_option_says_what_it_is() -> None:
    for option in [*CLIENT_MODELS.values(), *SERVER_MODELS.values()]:
        assert len((option.__doc__ or "").splitlines()[0]) > 20, option


def test_what_is_written_out_is_read_back() -> None:
    random = {"name": "text", "checkpoint": "random", "family": "distilbert", "layers": 1}
    for side, model in (
        ("client", {"name": "cnn", "channels": [16, 32, 64, 64]}),
        ("client", {"name": "resnet18", "width": 8}),
        ("client", random),
        ("server", {"name": "resnet18-rest", "image": [32, 32], "assemble": "height"}),
        ("server", {"name": "text-rest", "hidden": [8]}),
    ):
        written = parsed(side, model).model_dump(mode="json")
        assert parsed(side, written) == parsed(side, model)
        assert {key: written[key] for key in model} == model


def test_sizes_of_a_random_encoder() -> None:
    assert TextConfig(checkpoint="random").spec() == Spec("random")
    given = TextConfig(checkpoint="random", family="distilbert", vector=32, vocabulary=99)
    assert given.spec() == Spec("random", "distilbert", 32, vocabulary=99)
    assert TextRestConfig().spec() == Spec("minilm")


def test_what_is_refused() -> None:
    for side, model, message in (
        (
            "client",
            {"name": "text", "layers": 3},
            "it: client.model.layers is set but checkpoint 'minilm' has its own; "
            "only 'random' takes it",
        ),
        (
            "server",
            {"name": "text-rest", "checkpoint": "./mine", "family": "bert"},
            "it: server.model.family is set but checkpoint './mine' has its own; "
            "only 'random' takes it",
        ),
        (
            "client",
            {"name": "bag", "vocabulary": 1},
            "it: client.model.vocabulary is 1; it must be greater than or equal to 2",
        ),
        (
            "server",
            {"name": "resnet18-rest", "assemble": "depth"},
            "it: server.model.assemble is 'depth'; it must be 'width', 'height' or 'channels'",
        ),
        (
            "server",
            {"name": "resnet18"},
            "it: server.model.name is 'resnet18'; did you mean 'resnet18-rest'? known are 'mlp', "
            "'sum', 'resnet18-rest', 'text-rest', 'module'",
        ),
    ):
        with pytest.raises(ConfigError) as caught:
            parsed(side, model)
        assert str(caught.value) == message
