"""The papers' networks have the layers they should."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vertizo.models.linear_stack import LinearStack
from vertizo.models.networks import cnn, mlp
from vertizo.models.torch import wrap


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def kinds(module: nn.Module) -> list[str]:
    return [type(part).__name__ for part in module.children()]


@pytest.mark.parametrize(
    ("hidden", "final_relu", "layers"),
    [
        ([], False, ["Flatten", "Linear"]),
        ([], True, ["Flatten", "Linear", "ReLU"]),
        ([128], False, ["Flatten", "Linear", "ReLU", "Linear"]),
        ([8, 6], True, ["Flatten", "Linear", "ReLU", "Linear", "ReLU", "Linear", "ReLU"]),
    ],
)
def test_mlp_layers(hidden: list[int], final_relu: bool, layers: list[str]) -> None:
    module = mlp(12, hidden, 5, final_relu=final_relu)
    assert kinds(module) == layers
    assert module(torch.randn(3, 2, 6)).shape == (3, 5)
    assert type(wrap(module)) is LinearStack


def test_the_servers_of_vfl_cascaded_have_the_published_sizes() -> None:
    """Figure 3 prints 66,954, 133,898 and 267,786 parameters: four clients of 128 outputs."""
    sizes = [
        sum(p.numel() for p in mlp(4 * 128, [width], 10, final_relu=False).parameters())
        for width in (128, 256, 512)
    ]
    assert sizes == [66_954, 133_898, 267_786]


def test_cnn_layers() -> None:
    two = cnn((1, 4, 28), [8, 16], 32)
    conv, pool = ["Conv2d", "ReLU"], ["MaxPool2d"]
    assert kinds(two) == [*conv, *pool, *conv, *pool, "Flatten", "Linear"]
    convolutions = [part for part in two if isinstance(part, nn.Conv2d)]
    assert [(c.in_channels, c.out_channels, c.kernel_size) for c in convolutions] == [
        (1, 8, (3, 3)),
        (8, 16, (3, 3)),
    ]


@pytest.mark.parametrize(
    ("shape", "channels", "features"),
    [
        ((1, 28, 28), [8, 16], 16 * 7 * 7),
        ((1, 4, 28), [8, 16], 16 * 2 * 7),
        ((3, 16, 16), [8, 8, 16, 16], 16 * 2 * 2),
        ((1, 5, 7), [4], 4 * 2 * 3),
        ((2, 3, 3), [4, 5], 5 * 3 * 3),
        ((1, 1, 1), [2], 2),
    ],
)
def test_cnn_fits_every_size(
    shape: tuple[int, int, int], channels: list[int], features: int
) -> None:
    module = cnn(shape, channels, 9)
    last = module[-1]
    assert isinstance(last, nn.Linear)
    assert last.in_features == features
    assert module(torch.randn(2, *shape)).shape == (2, 9)
    assert wrap(module)(torch.randn(2, *shape)).shape == (2, 9)
