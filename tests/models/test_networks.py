"""The papers' networks have the layers they should."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from vertizo.core.errors import ConfigError
from vertizo.models.architectures.networks import (
    Bag,
    Filters,
    MaxPool,
    PiecewiseLinear,
    Sum,
    TableNet,
    TabularNet,
    category_size,
    cnn,
    mlp,
)
from vertizo.models.base import Points
from vertizo.models.linear.linear_stack import LinearStack
from vertizo.models.torch import wrap


def kinds(module: nn.Module) -> list[str]:
    return [type(part).__name__ for part in module.children()]


def test_mlp_layers() -> None:
    """Servers of VFL-Cascaded have the published sizes: figure 3 prints 66,954, 133,898 and 267,786
    parameters for four clients of 128 outputs."""
    for hidden, final_relu, layers in [
        ([], False, ["Flatten", "Linear"]),
        ([], True, ["Flatten", "Linear", "ReLU"]),
        ([128], False, ["Flatten", "Linear", "ReLU", "Linear"]),
        ([8, 6], True, ["Flatten", "Linear", "ReLU", "Linear", "ReLU", "Linear", "ReLU"]),
    ]:
        case = hidden, final_relu, layers
        module = mlp(12, hidden, 5, final_relu=final_relu)
        assert kinds(module) == layers, case
        assert module(torch.randn(3, 2, 6)).shape == (3, 5), case
        assert type(wrap(module)) is LinearStack, case
    for width, size in [(128, 66_954), (256, 133_898), (512, 267_786)]:
        server = mlp(4 * 128, [width], 10, final_relu=False)
        assert sum(part.numel() for part in server.parameters()) == size


def test_cnn_layers() -> None:
    two, four = cnn((1, 4, 28), [8, 16], 32), cnn((3, 16, 16), [16, 32, 64, 64], 16)
    conv, pool = ["Conv2d", "ReLU"], ["MaxPool"]
    assert kinds(two) == [*conv, *pool, *conv, *pool, "Flatten", "Linear"]
    convolutions = [part for part in two if isinstance(part, nn.Conv2d)]
    sizes = [(c.in_channels, c.out_channels, c.kernel_size) for c in convolutions]
    assert sizes == [(1, 8, (3, 3)), (8, 16, (3, 3))]
    assert [kinds(four).count(kind) for kind in ("Conv2d", "MaxPool")] == [4, 3]


def test_maxima_are_those_of_pytorch_with_and_without_a_gradient() -> None:
    for block in [(2, 2), (1, 2), (2, 1), (3, 2)]:
        for shape in [(4, 3, 8, 6), (2, 1, 5, 7), (1, 2, 3, 3)]:
            images = torch.randn(shape)
            images[images.abs() < 0.4] = -0.0
            images[..., ::2] = images[..., ::2].relu()  # zeros of both signs, and many ties
            pooled, expected = MaxPool(block), nn.MaxPool2d(block)(images)
            with torch.no_grad():
                found = pooled(images)
                assert torch.equal(found.view(torch.int32), expected.view(torch.int32)), "bits"
                images[0, 0, 0, 0] = torch.nan
                assert pooled(images)[0, 0, 0, 0].isnan()
            needed = images.clone().requires_grad_()
            pooled(needed).nansum().backward()
            reference = images.clone().requires_grad_()
            nn.MaxPool2d(block)(reference).nansum().backward()
            assert torch.equal(needed.grad, reference.grad)


def test_cnn_fits_every_size() -> None:
    for shape, channels, features in [
        ((1, 28, 28), [8, 16], 16 * 7 * 7),
        ((1, 4, 28), [8, 16], 16 * 2 * 7),
        ((3, 16, 16), [8, 8, 16, 16], 16 * 2 * 2),
        ((1, 5, 7), [4], 4 * 2 * 3),
        ((2, 3, 3), [4, 5], 5 * 3 * 3),
        ((1, 1, 1), [2], 2),
    ]:
        module = cnn(shape, channels, 9)
        assert module[-1].in_features == features, shape
        assert wrap(module)(torch.randn(2, *shape)).shape == (2, 9), shape


def table(rows: int = 5) -> Tensor:
    """Codes of 3 and 200 categories, then two numbers."""
    codes = torch.stack([torch.arange(rows) % 3, torch.arange(rows) * 37 % 200], 1)
    return torch.cat([codes.float(), torch.randn(rows, 2)], 1)


def table_net(hidden: tuple[int, ...] = (6,)) -> TableNet:
    return TableNet(4, (3, 200), hidden, 5, final_relu=False)


def test_categories_are_looked_up() -> None:
    """What is impossible as the nearest code."""
    for cardinality, size in [(1, 1), (2, 2), (4, 2), (5, 3), (1000, 16)]:
        assert category_size(cardinality) == size, (cardinality, size)
    module, rows = table_net(()), table()
    first, second = module.categories
    wide = torch.cat([first.weight[rows[:, 0].long()], second.weight[rows[:, 1].long()]], 1)
    expected = module.layers(torch.cat([wide, rows[:, 2:]], 1))
    assert torch.equal(module(rows), expected)
    assert wide.shape == (5, 2 + 15)
    meant = rows.clone()
    rows[:4, 1] = torch.tensor([-3.0, 1e9, float("nan"), float("inf")])
    meant[:4, 1] = torch.tensor([0.0, 199.0, 0.0, 199.0])
    assert torch.equal(module(rows), module(meant))


def test_a_table_of_categories_alone() -> None:
    model = wrap(TableNet(2, (3, 4), (), 5, final_relu=True))
    outputs, pullback = model.forward(Points(torch.tensor([[0.0, 3.0], [2.0, 1.0]])))
    assert outputs.shape == (2, 5)
    assert outputs.min() >= 0
    assert not pullback.inputs(torch.ones(2, 5)).any()


def test_numbers_are_how_far_they_are_into_bins() -> None:
    """By hand: quarters of 0 to 8, and of a column that is 0 but for one 1: of its values then."""
    module = PiecewiseLinear(2, 4)
    rare = [0.0] * 8 + [1.0]
    module.fit(torch.tensor([list(range(9)), rare]).t())
    found = module(torch.tensor([[3.0, 0.5], [-9.0, 0.0], [99.0, 7.0], [8.0, 1.0]]))
    assert found[:, 0].tolist() == [[1, 0.5, 0, 0], [0] * 4, [1] * 4, [1] * 4]
    assert found[:, 1].tolist() == [[1, 1, 0, 0], [0] * 4, [1] * 4, [1] * 4]
    fresh = PiecewiseLinear(1, 4).edges
    expected = [-4.0, -0.6745, 0.0, 0.6745, 4.0]
    assert np.allclose(fresh[0], expected, atol=1e-4)
    assert not PiecewiseLinear(1, 4)(torch.full((1, 1), float("nan"))).isinf().any()


def test_a_tabular_net_drops_in_training_alone_and_keeps_its_bins() -> None:
    rows = table(50)
    net = TabularNet(4, (3, 200), (64,), 5, dropout=0.5)
    net.fit(rows)
    assert (net.train()(rows) != net(rows)).any(), "two masks"
    assert torch.equal(net.eval()(rows), net(rows))
    assert [len(part.weight[0]) for part in net.categories] == [3, 16]
    other = wrap(TabularNet(4, (3, 200), (64,), 5))
    other.load(wrap(net).state())
    assert torch.equal(other(rows), net(rows).detach())
    linear = TabularNet(4, (3, 200), (), 5, dropout=0.5).train()
    assert torch.equal(linear(rows), linear(rows)), "nothing hidden, nothing dropped"


def test_a_tables_flat_vector_has_the_categories() -> None:
    rows = table()
    model = wrap(table_net())
    before = model(rows)
    assert model.parameters.numel() == 3 * 2 + 200 * 15 + 6 * (2 + 15 + 2 + 1) + 5 * 7
    model.parameters[:2].add_(1.0)  # category 0 of the first column
    changed = (model(rows) - before).abs().amax(1) > 0
    assert changed.tolist() == [True, False, False, True, False]


def test_the_sum_of_predictions() -> None:
    rows = torch.randn(3, 4 * 10)
    model = wrap(Sum(40, 10))
    assert torch.allclose(model(rows), rows.view(3, 4, 10).sum(1))
    model.parameters[2] = 7.0
    assert torch.allclose(model(rows)[:, 2], rows.view(3, 4, 10).sum(1)[:, 2] + 7, atol=1e-5)
    outputs, pullback = model.forward(Points(rows))
    assert torch.equal(pullback(torch.ones(3, 10)), torch.full((10,), 3.0))
    assert torch.equal(pullback.inputs(outputs), outputs.repeat(1, 4))
    with pytest.raises(ConfigError) as caught:
        Sum(32, 10)
    assert str(caught.value) == (
        "sum adds up embeddings of 10 numbers each, as many as the task needs; "
        "the joined embeddings have 32"
    )


WORDS = torch.tensor([[3, 5, 5, 0, 0], [9, 0, 0, 0, 0], [0, 0, 0, 0, 0]], dtype=torch.int32)


def test_a_bag_is_the_mean_of_the_words() -> None:
    """Neither padding nor order matters; words beyond the vocabulary share vectors."""
    module = Bag(10, 4, (3,), 2)
    vectors = module.words.weight
    means = torch.stack([(vectors[3] + 2 * vectors[5]) / 3, vectors[9], torch.zeros(4)])
    longer = torch.cat([WORDS.flip(1), torch.zeros(3, 4, dtype=torch.int32)], 1)
    for words in (WORDS, longer):
        assert torch.allclose(module(words), module.layers(means), atol=1e-6)
    model = wrap(module)
    far = torch.tensor([[10, 18, 19, 2_000_000_000]], dtype=torch.int32)
    near = torch.tensor([[1, 9, 1, (2_000_000_000 - 1) % 9 + 1]], dtype=torch.int32)
    assert torch.equal(model(far), model(near))


class TestFilters:
    IMAGES = torch.randn(5, 1, 4, 12, generator=torch.Generator().manual_seed(2))

    def test_sizes(self) -> None:
        module = Filters((1, 4, 12), 6)
        assert module(self.IMAGES).shape == (5, 6 * 3)
        assert sum(part.numel() for part in module.parameters()) == 6 * 10
        assert Filters((3, 9, 9), 2, size=5, cell=(4, 4))(torch.zeros(2, 3, 9, 9)).shape == (2, 8)

    def test_by_hand(self) -> None:
        """``scale · (cells − centring · their mean over filters)``; of 1, the outputs sum to 0."""
        for centring in (0.5, 1.0):
            module = Filters((1, 4, 12), 4, centring=centring, scale=3.0, background=-0.25)
            found = torch.relu(module.layer(self.IMAGES + 0.25)).unfold(3, 4, 4).mean((2, 4))
            expected = 3 * (found - centring * found.mean(1, keepdim=True))
            assert torch.allclose(module(self.IMAGES), expected.flatten(1), atol=1e-6)
        assert torch.allclose(expected.sum(1), torch.zeros(5, 3), atol=1e-5)

    def test_an_empty_image_is_nothing(self) -> None:
        """Padding equals the background, so that borders are no edges."""
        module = Filters((1, 4, 12), 6, background=-0.4, oriented=True)
        assert module(torch.full((1, 1, 4, 12), -0.4)).abs().max() == 0

    def test_first_filters(self) -> None:
        for oriented in [True, False]:
            weight = Filters((1, 4, 12), 8, oriented=oriented).layer.weight.detach()
            assert torch.allclose(weight.abs().sum((1, 2, 3)), torch.ones(8)), oriented
            assert torch.allclose(weight.sum((1, 2, 3)), torch.zeros(8), atol=1e-6), oriented
            if oriented:  # directions half a turn apart are opposite, a quarter apart are rotations
                assert torch.allclose(weight[0], -weight[4], atol=1e-6), oriented
                assert torch.allclose(weight[2], weight[0].transpose(1, 2), atol=1e-6), oriented

    def test_images_smaller_than_a_cell_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="cells of 5×4 pixels do not fit images of 4×12"):
            Filters((1, 4, 12), 6, cell=(5, 4))
