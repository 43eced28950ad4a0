"""What is trained of an encoder: which numbers, from where it begins, and how far gradients go."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.models.test_text import LENGTH, VECTOR, small, tokens
from tests.refusals import refused
from tests.rows import each
from torch import Tensor

from vertizo.core.errors import ConfigError
from vertizo.core.names import Family, Trainable
from vertizo.models.architectures.text import Text, TextEmbeddings, TextRest, Tuning, tuned
from vertizo.models.base import Points
from vertizo.models.parts import other_in_training
from vertizo.models.torch import wrap

pytestmark = [pytest.mark.full, pytest.mark.needs("transformers")]


HEAD = 5 * VECTOR + 5
BLOCK = {"all": 872, "bias": 11 * VECTOR, "lora": 2 * 2 * 3 * VECTOR}
"""Numbers of one block of `small` that are trained."""


def model(family: Family = "bert", tuning: Tuning | None = None) -> Text:
    torch.manual_seed(0)
    whole = Text(small(family), LENGTH, "mean", 5)
    return whole if tuning is None else tuned(whole, tuning)


@each("family", ["bert", "distilbert"])
def test_only_what_is_named_is_trained(family: Family) -> None:
    whole, reference = wrap(model(family)), dict(model(family).named_parameters())
    expected = whole(tokens())
    slopes = torch.randn(4, 5)
    _, pullback = whole.forward(Points(tokens()))
    gradients = dict(zip(reference, _split(pullback(slopes), reference.values()), strict=True))
    parts: tuple[Trainable, ...] = ("all", "head", "bias", "lora")
    for part in parts:
        module = model(family, Tuning(part, 3))
        names = [name for name, one in module.named_parameters() if one.requires_grad]
        named = {
            "all": [*reference],
            "head": ["head.weight", "head.bias"],
            "bias": [n for n in reference if n.startswith("head") or n.endswith("bias")],
            "lora": [n for n in names if n.startswith("head") or ".a." in n or ".b." in n],
        }[part]
        assert names == named, part
        ours = wrap(module)
        assert torch.allclose(ours(tokens()), expected, atol=1e-6), part
        _, pullback = ours.forward(Points(tokens()))
        gradient = pullback(slopes)
        if part != "lora":
            right = torch.cat([gradients[name].reshape(-1) for name in names])
            assert torch.allclose(gradient, right, atol=1e-5), part
        ours.parameters -= 0.1 * gradient
        assert not torch.allclose(ours(tokens()), expected, atol=1e-4), part
        for name, kept in module.named_parameters():
            original = name.replace(".layer.weight", ".weight").replace(".layer.bias", ".bias")
            if name not in names:
                assert torch.equal(kept, reference[original]), (part, name)


def _split(flat: Tensor, like: Any) -> list[Tensor]:
    shapes = [one.shape for one in like]
    return [p.view(s) for p, s in zip(flat.split([s.numel() for s in shapes]), shapes, strict=True)]


@each("part", ["all", "bias", "lora"])
def test_the_last_blocks_alone(part: Trainable) -> None:
    """Below them there are no graph and no dropout."""
    module = model(tuning=Tuning(part, 3, last_blocks=1))
    seen: list[bool] = []
    layers: Any = module.blocks.blocks.layer
    for layer in layers:
        layer.register_forward_hook(lambda *called: seen.append(called[2].requires_grad))
    ours = wrap(module)
    assert ours.parameters.numel() == BLOCK[part] + HEAD
    ours.forward(Points(tokens()))
    assert seen == [False, True]
    assert [bool(other_in_training(layer)) for layer in layers] == [False, True]


def test_a_part_of_an_encoder() -> None:
    """The embedding layer has one bias; the rest's linear layers are all behind the encoder."""
    embeddings = wrap(tuned(TextEmbeddings(small(), LENGTH), Tuning("bias")))
    assert embeddings.parameters.numel() == VECTOR
    rest = TextRest(small(), LENGTH * VECTOR, "mean", (6,), 3)
    ours = wrap(tuned(rest, Tuning("head")))
    assert ours.parameters.numel() == VECTOR * 6 + 6 + 6 * 3 + 3
    _, pullback = ours.forward(Points(torch.randn(4, LENGTH * VECTOR)))
    assert pullback.inputs(torch.randn(4, 3)).any()


def test_too_many_blocks_are_refused() -> None:
    words = "last_blocks is 3 but the encoder has 2 blocks; use at most that$"
    refused("3", ConfigError, model, "bert", Tuning("all", last_blocks=3), match=f"^{words}")
