"""The two halves of NVIDIA FLARE's split learning on CIFAR-10, for flare_cifar.yaml."""

from __future__ import annotations

from torch import Tensor, nn


class Images(nn.Module):
    """Six convolutions of images 3×32×32 in pairs, each pair halving the sides: 4,096 numbers."""

    def __init__(self, channels: tuple[int, ...] = (32, 64, 128, 128, 256, 256)) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for index, (before, after) in enumerate(zip((3, *channels), channels, strict=False)):
            parts += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU()]
            if index % 2:
                parts.append(nn.MaxPool2d(2))
            if index == 3:
                parts.append(nn.Dropout2d(0.05))
        self.layers = nn.Sequential(*parts, nn.Flatten())

    def forward(self, images: Tensor) -> Tensor:
        """[batch, 3, 32, 32] to [batch, 16 · channels]."""
        found: Tensor = self.layers(images)
        return found


class Labels(nn.Sequential):
    """What the label holder has: two layers of 512 and one of the classes."""

    def __init__(self, inputs: int = 4096, outputs: int = 10) -> None:
        super().__init__(
            nn.Dropout(0.1),
            nn.Linear(inputs, 512),
            nn.ReLU(),
            nn.Linear(512, 512),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(512, outputs),
        )
