"""Models made for the shape of the data; what does not fit it, or memory, is refused in a line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.rows import each
from torch import Tensor, nn

from vertizo.config import architectures as a
from vertizo.core.errors import ConfigError
from vertizo.core.memory import ran_out
from vertizo.core.randomness import Stream
from vertizo.models.linear.linear_stack import LinearStack
from vertizo.models.mixing import mixes_records
from vertizo.models.torch import TorchModel, wrap
from vertizo.run.build import models
from vertizo.run.build.models import OwnFeatures, client_model, embedding_dim, server_model

STREAM = Stream.from_seed(1)
TEXT: dict[str, Any] = {"checkpoint": "random", "vector": 8, "heads": 2}
RANDOM: dict[str, Any] = {**TEXT, "vocabulary": 40}


def features(shape: tuple[int, ...], *, tokens: bool = False) -> Tensor:
    return torch.randint(1, 40, (2, *shape)) if tokens else torch.randn(2, *shape)


CLIENTS: list[tuple[Any, tuple[int, ...], int]] = [
    (a.MlpConfig(outputs=4), (3, 2), 4),
    (a.CnnConfig(channels=(4, 4, 8, 8), outputs=6), (3, 16, 16), 6),
    (a.ResnetConfig(width=4), (3, 8, 4), 10),
    (a.ResnetStemConfig(width=4), (3, 8, 4), 4 * 8 * 4),
    (a.BagConfig(outputs=7), (12,), 7),
    (a.TextConfig(**RANDOM), (12,), 8),
    (a.TextConfig(**RANDOM, outputs=5, pooling="cls"), (12,), 5),
    (a.TextConfig(**RANDOM, outputs=5, trainable="head"), (12,), 5),
    (a.TextConfig(**RANDOM, trainable="lora", rank=2, last_blocks=1), (12,), 8),
    (a.TextEmbeddingsConfig(**RANDOM), (12,), 96),
]


@each("option, shape, outputs", CLIENTS, gate=[row for row in CLIENTS if "text" not in row[0].name])
def test_client_models(option: Any, shape: tuple[int, ...], outputs: int) -> None:
    if "text" in option.name:
        pytest.importorskip("transformers")
    tokens = isinstance(option, a.BagConfig | a.TextConfig | a.TextEmbeddingsConfig)
    model = client_model(option, shape, STREAM, tokens=tokens)
    again = client_model(option, shape, STREAM, tokens=tokens)
    other = client_model(option, shape, STREAM.child("other"), tokens=tokens)
    assert torch.equal(model.parameters, again.parameters)
    assert not torch.equal(model.parameters, other.parameters)
    sample = features(shape, tokens=tokens)
    assert embedding_dim(model, sample, 1e6, first_order=True) == outputs


def test_a_table_with_categories_gets_embeddings() -> None:
    rows = torch.tensor([[0.0, 4.0, 0.5], [2.0, 1.0, -0.5]])
    plain = client_model(a.MlpConfig(), (3,), STREAM)
    model = client_model(a.MlpConfig(), (3,), STREAM, (3, 5))
    assert type(plain) is LinearStack
    assert type(model) is TorchModel
    assert model(rows).shape == (2, 3)
    assert model.parameters.numel() == 3 * 2 + 5 * 3 + 3 * (2 + 3 + 1 + 1)


SERVERS: list[tuple[Any, int]] = [
    (a.ServerMlpConfig(), 12),
    (a.SumConfig(), 30),
    (a.SumConfig(), 10),
    (a.ResnetRestConfig(width=4, image=(4, 6)), 4 * 24),
    (a.TextRestConfig(**RANDOM), 40),
]


@each("option, width", SERVERS)
def test_server_models(option: Any, width: int) -> None:
    if "text" in option.name:
        pytest.importorskip("transformers")
    model = server_model(option, width, 10, STREAM, purpose="it")
    assert model(torch.randn(2, width)).shape == (2, 10)


SHAPED = "client.model is {!r} but a party's features have shape {}"
IMAGES = "; it needs images (data.split rows, patches, halves or sides)"
TEXTS = " and are no tokens; it needs texts (a data set of texts, data.split segments)"
TOKENS = (
    "client.model is {!r} but a party's features are tokens of a text; "
    "use 'bag', 'text' or 'text-embeddings'"
)


@each(
    "option, shape, tokens, message",
    [
        (a.ResnetConfig(), (14,), False, SHAPED.format("resnet18", [14]) + IMAGES),
        (a.TextConfig(), (14,), False, SHAPED.format("text", [14]) + TEXTS),
        (a.BagConfig(), (1, 8, 8), False, SHAPED.format("bag", [1, 8, 8]) + TEXTS),
        (a.MlpConfig(), (14,), True, TOKENS.format("mlp")),
        (a.CnnConfig(), (14,), True, TOKENS.format("cnn")),
        (a.ResnetStemConfig(), (14,), True, TOKENS.format("resnet18-stem")),
        (
            a.TextConfig(**RANDOM, positions=8),
            (9,),
            True,
            "client.model: texts of 9 tokens are too long for checkpoint 'random', which takes 8; "
            "set data.length to at most that",
        ),
    ],
)
def test_features_of_another_kind(
    option: Any, shape: tuple[int, ...], tokens: bool, message: str
) -> None:
    if tokens and "text" in option.name:
        pytest.importorskip("transformers")
    refused(message, client_model, option, shape, STREAM, tokens=tokens)


def refused(message: str, call: Callable[..., object], *arguments: Any, **options: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        call(*arguments, **options)
    assert str(caught.value) == message


def test_tokens_of_another_vocabulary() -> None:
    pytest.importorskip("transformers")
    model = client_model(a.TextConfig(**RANDOM), (9,), STREAM, tokens=True)
    message = (
        "client.model: token 999 is beyond the vocabulary of checkpoint 'random', which has 40; "
        "data.tokenizer must be made for this checkpoint"
    )
    refused(message, embedding_dim, model, torch.full((2, 9), 999), 1e6, first_order=False)


@each(
    "option, message",
    [
        (
            a.SumConfig(),
            "server.model: sum adds up embeddings of 10 numbers each, as many as the task needs; "
            "the joined embeddings have 12",
        ),
        (
            a.ResnetRestConfig(width=4, image=(4, 6)),
            "server.model: resnet18-rest puts 2 parts together along the width to 4 maps of 4 by "
            "6, 96 numbers; the joined embeddings have 12: set image, parts and width to fit the "
            "clients' resnet18-stem",
        ),
        (
            a.TextRestConfig(**RANDOM),
            "server.model: text-rest works on vectors of 8 numbers, those of 'random'; the joined "
            "embeddings have 12, which is no multiple: client.model should be 'text-embeddings' of "
            "the same checkpoint",
        ),
    ],
)
def test_embeddings_of_another_size(option: Any, message: str) -> None:
    if "text" in option.name:
        pytest.importorskip("transformers")
    refused(message, server_model, option, 12, 10, STREAM, purpose="it")


class Mixing(nn.Module):
    """A linear layer, and ways to take notice of other records that no layer's name tells."""

    def __init__(self, way: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.way, self.layer = way, nn.Linear(6, 3)

    def forward(self, rows: Tensor) -> Tensor:
        return self.layer(self.way(rows.flatten(1)))


def centred(rows: Tensor) -> Tensor:
    return rows - rows.mean(0)


def crowded(most: int) -> nn.Module:
    """Takes the batch's mean away where a batch is large."""
    return Mixing(lambda rows: centred(rows) if len(rows) > most else rows)


def standardised() -> nn.Module:
    return Mixing(centred)


def loud() -> nn.Module:
    """Takes notice of records that are very large, and of the last one alone."""
    return Mixing(lambda rows: rows + 1 if float(rows[-1].abs().max()) > 100 else rows)


def faint() -> nn.Module:
    """Adds a ten-millionth of the batch's mean."""
    return Mixing(lambda rows: rows + 1e-6 * rows.mean(0))


def test_models_that_take_records_together_are_found() -> None:
    """At the sizes that they will see, and with several exchanges."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(5, 6, generator=generator)
    tokens = torch.randint(0, 10, (5, 3), generator=generator)
    for module in (standardised(), loud(), faint()):
        assert mixes_records(wrap(module), rows)
    assert not mixes_records(wrap(nn.Linear(6, 3)), rows)
    assert mixes_records(wrap(nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)), rows)
    words = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(12, 2))
    assert not mixes_records(wrap(words), tokens)
    for most in (8, 63, 100):
        assert not mixes_records(wrap(crowded(most)), rows)
        assert mixes_records(wrap(crowded(most)), rows, (64, 101))
    for option in (a.ServerMlpConfig(hidden=(8,)), a.SumConfig()):
        ours = server_model(option, 6, 3, STREAM, purpose="it")
        assert not mixes_records(ours, rows, (7, 64, 1000))


@each("size", [64, 200])
def test_a_server_that_takes_records_together_is_refused(size: int) -> None:
    config = a.ModuleConfig(path=f"{__file__}:crowded", arguments={"most": 63})
    server_model(config, 6, 3, STREAM, purpose="a test", sizes=(8, 63))
    always = a.ModuleConfig(path=f"{__file__}:standardised")
    for option, sizes in ((config, (8, size)), (always, ())):
        with pytest.raises(ConfigError, match="it must treat each record by itself"):
            server_model(option, 6, 3, STREAM, purpose="a test", sizes=sizes)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a megabyte, of which half is for parameters: 125,000 numbers."""
    monkeypatch.setattr(models, "available", lambda: 10**6)


@pytest.mark.usefixtures("free")
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


@pytest.mark.usefixtures("free")
def test_a_server_without_room() -> None:
    with pytest.raises(ConfigError, match=r"^server\.model: its parameters take"):
        server_model(a.ServerMlpConfig(hidden=(13000,)), 10, 2, STREAM, purpose="it")
    own = OwnFeatures(a.EncoderMlpConfig(hidden=(13000,)), torch.zeros(2, 10))
    with pytest.raises(ConfigError, match=r"^server\.encoder.*: its parameters take"):
        server_model(a.ServerMlpConfig(), 10, 2, STREAM, purpose="it", own=own)


@pytest.mark.usefixtures("free")
def test_a_model_with_room_begins_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    option = a.MlpConfig(hidden=(3000,))
    counted = client_model(option, (10,), STREAM)
    monkeypatch.setattr(models, "available", lambda: None)
    assert torch.equal(counted.parameters, client_model(option, (10,), STREAM).parameters)


def test_only_errors_about_memory_are() -> None:
    assert ran_out(MemoryError())
    assert not ran_out(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
