"""ResNet-18: its size, its two halves, and how the clients' maps are put together."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vertizo.core.errors import ConfigError
from vertizo.models.architectures import resnet
from vertizo.models.base import Points
from vertizo.models.torch import wrap


def test_it_has_as_many_parameters_as_resnet_18_for_cifar() -> None:
    """11,173,962 with batch normalisation as well: both norms have two numbers a channel."""
    module = resnet.whole((3, 32, 32), 10)
    assert sum(part.numel() for part in module.parameters()) == 11_173_962
    assert not [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    norms = [m for m in module.modules() if isinstance(m, nn.GroupNorm)]
    assert {(m.num_groups, m.num_channels) for m in norms} == {(32, 64 << k) for k in range(4)}
    batched = resnet.whole((3, 32, 32), 10, norm="batch")
    assert sum(part.numel() for part in batched.parameters()) == 11_173_962
    kinds = [type(m) for m in batched.modules() if "Norm" in type(m).__name__]
    assert kinds == [nn.BatchNorm2d] * 20


def test_every_size_of_image_fits() -> None:
    for shape in [(3, 32, 32), (3, 32, 16), (1, 8, 8), (1, 1, 5), (1, 30, 30)]:
        model = wrap(resnet.whole(shape, 7, width=4))
        outputs = model(torch.randn(3, *shape))
        assert outputs.shape == (3, 7), shape
        assert outputs.std(0).min() > 0, shape


def test_maps_go_back_to_their_places() -> None:
    """Those of whole images are stacked."""
    maps = torch.randn(3, 4, 5, 5)
    for assemble, axis, sizes in [("width", 3, [2, 3]), ("height", 2, [2, 3]), ("channels", 1, 2)]:
        rows = torch.cat([part.flatten(1) for part in maps.split(sizes, axis)], 1)
        channels = 2 if assemble == "channels" else 4
        together = resnet.ConcatenatedMaps(channels, (5, 5), 2, assemble)
        assert torch.equal(together(rows), maps), assemble
        assert together.channels == 4, assemble


def test_stem_and_rest_are_the_whole() -> None:
    whole = resnet.whole((3, 8, 8), 10, width=4)
    stem = resnet.stem((3, 8, 8), width=4)
    rest = resnet.rest(4 * 64, 10, image=(8, 8), parts=1, assemble="width", width=4)
    values = [part.detach() for part in whole.parameters()]
    for part, value in zip([*stem.parameters(), *rest.parameters()], values, strict=True):
        part.data.copy_(value)
    images = torch.randn(3, 3, 8, 8)
    assert torch.equal(rest(stem(images)), whole(images))


def test_two_clients_and_a_server() -> None:
    for assemble in ["width", "height", "channels"]:
        shape = {"width": (3, 8, 4), "height": (3, 4, 8), "channels": (3, 8, 8)}[assemble]
        stems = [wrap(resnet.stem(shape, width=4)) for _ in range(2)]
        rows = torch.cat([stem(torch.randn(3, *shape)) for stem in stems], 1)
        shared = {"image": (8, 8), "parts": 2, "assemble": assemble, "width": 4}
        server = wrap(resnet.rest(rows.shape[1], 10, **shared))
        outputs, pullback = server.forward(Points(rows))
        assert outputs.shape == (3, 10), assemble
        assert pullback.inputs(torch.ones(3, 10)).shape == rows.shape, assemble
        assert torch.allclose(server(rows), outputs, atol=1e-6), assemble


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        resnet.rest(1000, 10, image=(32, 32), parts=2, assemble="width")
    assert str(caught.value) == (
        "resnet18-rest puts 2 parts together along the width to 64 maps of 32 by 32, 65536 numbers;"
        " the joined embeddings have 1000: set image, parts and width to fit the clients' "
        "resnet18-stem"
    )
    with pytest.raises(ConfigError, match="cannot share a height of 2 by 3 parts"):
        resnet.ConcatenatedMaps(4, (2, 9), 3, "height")
