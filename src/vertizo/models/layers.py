"""Linear layers with ReLU between, and the modules that are made of nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from vertizo.core.deferred import torch


@dataclass(frozen=True)
class Layer:
    """``y = x Wᵀ + b``, then ReLU if ``relu``; W is [outputs, inputs]."""

    inputs: int
    outputs: int
    bias: bool
    relu: bool

    @property
    def size(self) -> int:
        """Number of parameters: weights, then bias."""
        return self.outputs * (self.inputs + self.bias)


def layers_of(module: torch.nn.Module) -> tuple[Layer, ...] | None:
    """The layers of a module that is such a stack, None for any other module.

    Hooks and parametrisations may do anything; a module that has some is no stack.
    """
    if any(map(_is_customised, module.modules())):
        return None
    parts = list(module) if type(module) is torch.nn.Sequential else [module]
    if parts and type(parts[0]) is torch.nn.Flatten:
        if (parts[0].start_dim, parts[0].end_dim) != (1, -1):
            return None
        parts = parts[1:]
    layers: list[Layer] = []
    for part in parts:
        if type(part) is torch.nn.Linear and part.weight.dtype == torch.float32:
            layers.append(Layer(part.in_features, part.out_features, part.bias is not None, False))
        elif type(part) is torch.nn.ReLU and layers and not layers[-1].relu:
            last = layers[-1]
            layers[-1] = Layer(last.inputs, last.outputs, last.bias, relu=True)
        else:
            return None
    widths_fit = all(a.outputs == b.inputs for a, b in pairwise(layers))
    own = sum(p.numel() for p in module.parameters())  # none of which may be frozen
    return tuple(layers) if layers and widths_fit and own == sum(x.size for x in layers) else None


def _is_customised(module: torch.nn.Module) -> bool:
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    names = {name for name, _ in module.named_parameters(recurse=False)}
    return any(getattr(module, hook) for hook in hooks) or not names <= {"weight", "bias"}
