"""Stacks of convolutions at several sets of weights, whose channels lie beside each other."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from vertizo.models.architectures.networks import MaxPool
from vertizo.models.linear.linear_stack import is_customised


def outputs(module: nn.Module, weights: Mapping[str, Tensor], rows: Tensor) -> Tensor | None:
    """Outputs for images, [sets, batch, outputs]; None for what is not such a stack.

    That is convolutions, ReLU and pooling, then linear layers. ``torch.vmap`` makes the same
    grouped convolutions of them, but lays each layer's images out anew.

    Args:
        module: where the layers are.
        weights: sets of each parameter by its name, [sets, ...].
        rows: [batch, channels, height, width].
    """
    parts = dict(module.named_children())
    if type(module) is not nn.Sequential or rows.dim() != 4 or not _are_known(module):
        return None
    sets, batch = len(next(iter(weights.values()))), len(rows)
    found, groups = rows, 1
    for name, part in parts.items():
        weight, bias = weights.get(f"{name}.weight"), weights.get(f"{name}.bias")
        if isinstance(part, nn.Conv2d) and weight is not None and bias is not None:
            found = nn.functional.conv2d(
                found,
                weight.flatten(0, 1),
                stride=part.stride,
                padding=part.padding,
                dilation=part.dilation,
                groups=groups,
            )
            images = found.view(batch, sets, -1, *found.shape[2:])
            images.add_(bias[:, :, None, None])
            groups = sets
        elif isinstance(part, nn.Linear) and weight is not None and bias is not None:
            if found.dim() != 3:
                return None
            found = torch.baddbmm(bias.unsqueeze(1), found, weight.mT)
        elif isinstance(part, nn.Flatten) and groups == sets and found.dim() == 4:
            found = found.reshape(batch, sets, -1).transpose(0, 1)
        elif isinstance(part, nn.ReLU | MaxPool) and groups == sets:
            found = part(found)
        else:
            return None
    return found if found.dim() == 3 else None


def _are_known(module: nn.Module) -> bool:
    """Whether layers do what their classes say, and a convolution is a plain one."""
    for part in module.children():
        if type(part) not in (nn.Conv2d, nn.Linear, nn.Flatten, nn.ReLU, MaxPool):
            return False
        if isinstance(part, nn.Conv2d) and (part.groups, part.padding_mode) != (1, "zeros"):
            return False
        if isinstance(part, nn.Flatten) and (part.start_dim, part.end_dim) != (1, -1):
            return False
    return not any(map(is_customised, module.modules()))
