"""A MiniLM of which a client trains a part near the top, and keeps what the blocks below make.

For `client.model: {name: module, path: text_parts.py:Top}`. Outputs and trained numbers are those
of the model `text` with the same `trainable` and `last_blocks`. Blocks that are frozen as a whole
give the same states for a text in every round. Here they are computed once for each text, and a
round costs the trained blocks alone: a sixth of a MiniLM for the last one. What is kept takes
4 · length · 384 bytes a text, 24 KB for 16 tokens.

`trainable: prompt` is not in `text`: vectors of the encoder's width that stand before the states
of the first trained block, so that its attention reads them (prefix tuning with one block's
prompts; Li and Liang, 2021; Lester et al., 2021). They count for no mean over words.
"""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vertizo.models.architectures.text import Spec, Text, Tuning, tuned


class Top(Text):
    """Token ids [batch, length] to [batch, outputs]; what is frozen below is computed once."""

    def __init__(
        self,
        shape: tuple[int, ...],
        trainable: Literal["head", "bias", "lora", "all", "prompt"],
        outputs: int = 8,
        last_blocks: int = 1,
        prompts: int = 4,
        checkpoint: str = "minilm",
    ) -> None:
        super().__init__(Spec(checkpoint), shape[0], "mean", outputs)
        part = "head" if trainable == "prompt" else trainable
        tuned(self, Tuning(part, last_blocks=None if part == "head" else last_blocks))
        blocks: Any = self.blocks.blocks
        layers = list(blocks.layer)
        at = len(layers) - (0 if trainable == "head" else last_blocks)
        # In lists, so that they are no modules of this one: their layers already are.
        self._lower = [_some(blocks, layers[:at])]
        self._upper = [_some(blocks, layers[at:])]
        # Small: a large prompt would change what the pre-trained block says before it is trained.
        start = 0.02 * torch.randn(prompts, blocks.config.hidden_size)
        self.prompt = nn.Parameter(start) if trainable == "prompt" else None
        self._kept: dict[bytes, Tensor] = {}

    def forward(self, tokens: Tensor) -> Tensor:
        """Integers [batch, length] to [batch, outputs]."""
        real = tokens != 0
        states = self._states(tokens)
        if self.prompt is not None:
            count = len(self.prompt)
            states = torch.cat([self.prompt.expand(len(states), -1, -1), states], 1)
            seen = torch.cat([real.new_ones(len(real), count), real], 1)
            states = _through(self._upper[0], states, seen)[:, count:]
        else:
            states = _through(self._upper[0], states, real)
        weights = real.to(states.dtype).unsqueeze(-1)
        result: Tensor = self.head((states * weights).sum(1) / weights.sum(1).clamp(min=1))
        return result

    def _states(self, tokens: Tensor) -> Tensor:
        """What the frozen blocks make, [batch, length, hidden]."""
        names = [row.tobytes() for row in tokens.numpy()]
        new = [place for place, name in enumerate(names) if name not in self._kept]
        if new:
            with torch.no_grad():
                rows = tokens[new]
                made = _through(self._lower[0], self.words(rows), rows != 0)
            self._kept.update(zip((names[place] for place in new), made.clone(), strict=True))
        return torch.stack([self._kept[name] for name in names])


def _some(encoder: Any, layers: list[nn.Module]) -> Any:
    """An encoder of some of the same layers."""
    found = copy.copy(encoder)
    found._modules = dict(encoder._modules)
    found.layer = nn.ModuleList(layers)
    return found


def _through(encoder: Any, states: Tensor, real: Tensor) -> Tensor:
    mask = torch.where(real, 0.0, torch.finfo(states.dtype).min).to(states.dtype)
    mask = mask[:, None, None, :].expand(-1, 1, states.shape[1], -1)
    result: Tensor = encoder(states, attention_mask=mask).last_hidden_state
    return result
