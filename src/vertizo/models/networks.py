"""The networks of the papers, as plain modules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import nn


def mlp(inputs: int, hidden: Sequence[int], outputs: int, *, final_relu: bool) -> nn.Sequential:
    """Linear layers with ReLU between; inputs are flattened behind the batch.

    VFL-Cascaded's client is ``mlp(n, [], 128, final_relu=True)``, VFL-CZOFO's
    ``mlp(n, [], 64, final_relu=False)``; their servers are ``mlp(n, [128], classes)``.
    """
    widths = [inputs, *hidden, outputs]
    parts: list[nn.Module] = [nn.Flatten()]
    for index, (before, after) in enumerate(pairwise(widths)):
        parts.append(nn.Linear(before, after))
        if index < len(hidden) or final_relu:
            parts.append(nn.ReLU())
    return nn.Sequential(*parts)


def cnn(shape: Sequence[int], channels: Sequence[int], outputs: int) -> nn.Sequential:
    """Convolutions 3×3 with ReLU, each halving sides of 4 and more, then one linear layer.

    DPZV's client for MNIST is the two-layer form. The paper states neither widths nor the
    embedding's size; ours are two layers of 8 and 16 channels unless said otherwise.

    Args:
        shape: (channels, height, width) of one party's image.
        channels: output channels of each convolution.
        outputs: the embedding's size d_h.
    """
    depth, height, width = shape
    parts: list[nn.Module] = []
    for before, after in zip([depth, *channels], channels, strict=False):
        parts += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU()]
        pool = (2 if height >= 4 else 1, 2 if width >= 4 else 1)
        if pool != (1, 1):
            parts.append(nn.MaxPool2d(pool))
            height, width = height // pool[0], width // pool[1]
    return nn.Sequential(
        *parts, nn.Flatten(), nn.Linear(math.prod((channels[-1], height, width)), outputs)
    )
