"""`experiments/text_parts.py`: its module says what the model `text` says, at part of its cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from vertizo.core.plugins.imports import load_object
from vertizo.models.architectures.text import Spec, Text, Tuning, tuned
from vertizo.models.torch import wrap

pytestmark = [pytest.mark.full, pytest.mark.needs("transformers")]

FILE = Path(__file__).parent.parent / "experiments" / "text_parts.py"
PARTS = ("head", "bias", "lora", "all")


def top(trainable: str) -> Any:
    """Two random blocks, the last of which is reached."""
    torch.manual_seed(0)
    return load_object("path", f"{FILE}:Top")((6,), trainable, 3, checkpoint="random")


def texts() -> Tensor:
    tokens = torch.randint(1, 4096, (5, 6), generator=torch.Generator().manual_seed(1))
    tokens[0, 2:] = 0
    tokens[1] = 0  # a text without a word
    return tokens


@pytest.mark.parametrize("part", PARTS)
def test_outputs_and_trained_numbers_are_those_of_text(part: Any) -> None:
    torch.manual_seed(0)
    blocks = None if part == "head" else 1
    plain = tuned(Text(Spec("random"), 6, "mean", 3), Tuning(part, last_blocks=blocks))
    module = top(part)
    module.load_state_dict(plain.state_dict())
    ours, theirs = wrap(module), wrap(plain)
    assert ours.parameters.shape == theirs.parameters.shape
    for _ in range(2):  # made, then kept
        assert torch.allclose(ours(texts()), theirs(texts()), atol=1e-6)
        step = torch.randn(len(ours.parameters), generator=torch.Generator().manual_seed(2))
        for model in (ours, theirs):
            model.parameters.add_(step, alpha=0.1)


def test_frozen_blocks_compute_each_text_once() -> None:
    module, rows = top("lora"), []
    module.words.register_forward_hook(lambda _, inputs, __: rows.append(len(inputs[0])))
    model = wrap(module)
    for tokens in (texts(), texts()[:3], torch.cat([texts(), 1 + texts()])):
        model(tokens)
    assert rows == [5, 5]


def test_prompts_move_outputs_and_are_trained() -> None:
    model, tokens = wrap(top("prompt")), texts()
    assert len(model.parameters) == len(wrap(top("head")).parameters) + 4 * 64
    before = model(tokens)
    model.parameters[: 4 * 64].add_(1.0)
    assert not torch.allclose(before[2:], model(tokens)[2:], atol=1e-3)
    assert torch.equal(before[1], model(tokens)[1])  # no word, whatever prompts say
