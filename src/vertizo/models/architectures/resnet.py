"""ResNet-18 (He et al. 2016) for small images, whole or cut after its first convolution.

The first convolution is 3×3 with stride 1 and no pooling follows it, as is usual for CIFAR-10.
Every batch normalisation is a group normalisation (Wu and He 2018) unless ``norm`` is ``batch``:
statistics of a batch mix its records, and no privacy guarantee survives that. The number of
parameters is the same.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from vertizo.core.errors import ConfigError
from vertizo.core.names import NormName, Side

WIDTH = 64
"""Channels of the first convolution of ResNet-18; each later stage doubles them."""


def whole(
    shape: tuple[int, ...], outputs: int, width: int = WIDTH, norm: NormName = "group"
) -> nn.Sequential:
    """Images of ``shape`` (channels, height, width) to ``outputs`` numbers.

    VFL-CZOFO's client for CIFAR-10 has 10 outputs, which the server adds up.
    """
    return nn.Sequential(*_first(shape[0], width, norm), *_rest(width, width, outputs, norm))


def stem(shape: tuple[int, ...], width: int = WIDTH, norm: NormName = "group") -> nn.Sequential:
    """The first convolution, its norm and ReLU: images to ``width`` flattened maps of their size.

    VFL-Cascaded's client for CIFAR-10.
    """
    return nn.Sequential(*_first(shape[0], width, norm), nn.Flatten())


def rest(
    joined: int,
    outputs: int,
    *,
    image: tuple[int, int],
    parts: int,
    assemble: Side,
    width: int = WIDTH,
    norm: NormName = "group",
) -> nn.Sequential:
    """ResNet-18 after its first convolution: rows of ``joined`` numbers to ``outputs`` numbers.

    ConfigError where the joined embeddings are not the maps that `ConcatenatedMaps` puts together.
    """
    together = ConcatenatedMaps(width, image, parts, assemble)
    if together.size != joined:
        high, wide = image
        raise ConfigError(
            f"resnet18-rest puts {parts} parts together along the {assemble} to {together.channels}"
            f" maps of {high} by {wide}, {together.size} numbers; the joined embeddings have "
            f"{joined}: set image, parts and width to fit the clients' resnet18-stem"
        )
    return nn.Sequential(together, *_rest(together.channels, width, outputs, norm))


class ConcatenatedMaps(nn.Module):
    """Joins the clients' flattened feature maps, concatenated in each row, to maps of one image.

    Each of the ``parts`` has ``channels`` maps. Along width or height the parts are equal strips of
    ``image`` (height, width), the last with the remainder, as `vertizo.data.vertical` cuts images;
    along ``channels`` each part covers the whole image. ConfigError where there are fewer pixels
    than parts.
    """

    def __init__(self, channels: int, image: tuple[int, int], parts: int, along: Side) -> None:
        super().__init__()
        height, width = image
        shared = {"width": width, "height": height, "channels": parts}[along]
        if shared < parts:
            raise ConfigError(f"resnet18-rest cannot share a {along} of {shared} by {parts} parts")
        strips = [shared // parts] * (parts - 1) + [shared - shared // parts * (parts - 1)]
        self.shapes = {
            "width": [(channels, height, strip) for strip in strips],
            "height": [(channels, strip, width) for strip in strips],
            "channels": [(channels, height, width)] * parts,
        }[along]
        self.channels = channels * (parts if along == "channels" else 1)
        self.size = self.channels * height * width
        self._side = {"channels": 1, "height": 2, "width": 3}[along]

    def forward(self, rows: Tensor) -> Tensor:
        """[batch, size] to [batch, channels, height, width]."""
        cut = torch.split(rows, [math.prod(shape) for shape in self.shapes], 1)
        images = [
            part.reshape(len(rows), *shape) for part, shape in zip(cut, self.shapes, strict=True)
        ]
        return torch.cat(images, self._side)


class Block(nn.Module):
    """A residual block: two 3×3 convolutions and the path past them."""

    def __init__(self, before: int, after: int, stride: int, norm: NormName) -> None:
        super().__init__()
        self.first = _convolution(before, after, stride)
        self.first_norm = _norm(after, norm)
        self.second = _convolution(after, after, 1)
        self.second_norm = _norm(after, norm)
        self.past: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            beside = _convolution(before, after, stride, side=1)
            self.past = nn.Sequential(beside, _norm(after, norm))

    def forward(self, inputs: Tensor) -> Tensor:
        """[batch, before, height, width] to [batch, after, height / stride, width / stride]."""
        values = torch.relu_(self.first_norm(self.first(inputs)))
        values = self.second_norm(self.second(values))
        return torch.relu_(values + self.past(inputs))


def _first(depth: int, width: int, norm: NormName) -> list[nn.Module]:
    return [_convolution(depth, width, 1), _norm(width, norm), nn.ReLU()]


def _rest(before: int, width: int, outputs: int, norm: NormName) -> list[nn.Module]:
    """Four stages of two blocks each, the mean of every map, and a linear layer."""
    parts: list[nn.Module] = []
    for stage in range(4):
        after = width << stage
        parts += [Block(before, after, 2 if stage else 1, norm), Block(after, after, 1, norm)]
        before = after
    return [*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, outputs)]


def _convolution(before: int, after: int, stride: int, side: int = 3) -> nn.Conv2d:
    layer = nn.Conv2d(before, after, side, stride, padding=side // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


def _norm(channels: int, norm: NormName) -> nn.Module:
    """A normalisation layer; groups are at most 32, of two channels or more unless there is one."""
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    return nn.GroupNorm(math.gcd(32, max(1, channels // 2)), channels)
