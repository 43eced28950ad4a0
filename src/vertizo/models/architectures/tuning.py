"""Fine-tuning of a pre-trained encoder: everything, its biases, low-rank additions, or only the
linear layers behind it, which are always trained.

Frozen parameters have no ``requires_grad``: they are no part of w, and nothing is propagated back
to where only such parameters are. Of a MiniLM's 22.6 million parameters 25,728 are biases;
additions of rank 8 have 73,728 numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from vertizo.core.errors import ConfigError
from vertizo.core.names import Trainable

PROJECTIONS = ("query", "value", "q_lin", "v_lin")
"""Names in BERT and DistilBERT of attention's projections to queries and to values."""


@dataclass(frozen=True)
class Tuning:
    """The part of an encoder that is trained."""

    part: Trainable = "all"
    rank: int = 8
    """Rank of the additions of ``lora``."""
    last_blocks: int | None = None
    """How many of the last attention blocks are trained; None for all, and word vectors."""


def tuned(module: nn.Module, tuning: Tuning) -> nn.Module:
    """Set ``requires_grad`` in a module as ``tuning`` says, and turn off dropout in frozen blocks.

    The module is one of `vertizo.models.architectures.text`: its children ``words``, ``blocks`` and
    ``head`` are the embedding layer, the attention blocks and the linear layers behind, where it
    has them. ``bias`` is BitFit (Ben Zaken et al., 2022), ``lora`` is LoRA (Hu et al., 2022).
    ConfigError where there are fewer than ``last_blocks`` blocks.
    """
    module.requires_grad_(False)
    reached = [] if tuning.part == "head" else _reached(module, tuning.last_blocks)
    inner = {one for part in reached for one in part.modules()}
    for one in module.modules():
        if isinstance(one, nn.Dropout) and one not in inner:
            one.p = 0.0
    for part in reached:
        if tuning.part == "all":
            part.requires_grad_(True)
        elif tuning.part == "bias":
            for name, parameter in part.named_parameters():
                parameter.requires_grad_(name.endswith("bias"))
        elif tuning.part == "lora":
            _add(part, tuning.rank)
    if hasattr(module, "head"):
        module.head.requires_grad_(True)
    return module


def _reached(module: nn.Module, last_blocks: int | None) -> list[nn.Module]:
    """The parts of an encoder that are not frozen as a whole."""
    parts = dict(module.named_children())
    if last_blocks is None:
        return [part for name, part in parts.items() if name != "head"]
    blocks: Any = parts["blocks"]
    layers = list(blocks.blocks.layer)
    if last_blocks > len(layers):
        raise ConfigError(
            f"last_blocks is {last_blocks} but the encoder has {len(layers)} blocks; "
            "use at most that"
        )
    return layers[-last_blocks:]


def _add(part: nn.Module, rank: int) -> None:
    for owner in list(part.modules()):
        for name, layer in list(owner.named_children()):
            if name in PROJECTIONS and isinstance(layer, nn.Linear):
                setattr(owner, name, LowRank(layer, rank))


class LowRank(nn.Module):
    """A linear layer and an addition of low rank, ``x Wᵀ + b + x Aᵀ Bᵀ``; B begins at zero."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer
        self.a = nn.Linear(layer.in_features, rank, bias=False)
        self.b = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, rows: Tensor) -> Tensor:
        """[..., inputs] to [..., outputs]."""
        result: Tensor = self.layer(rows) + self.b(self.a(rows))
        return result
