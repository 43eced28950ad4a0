"""What every network of ours keeps to, from tables to transformers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from importlib.util import find_spec

import torch
from tests.autograd import flat, gradients, normal
from torch import Tensor, nn

from vertizo.models.architectures import resnet
from vertizo.models.architectures.networks import Bag, Filters, Sum, TableNet, TabularNet, cnn
from vertizo.models.architectures.text import Spec, Text, TextEmbeddings, TextRest
from vertizo.models.base import DifferentiableModel, Points
from vertizo.models.torch import wrap

TOKENS = torch.tensor([[3, 5, 5, 0], [9, 0, 0, 0], [7, 8, 2, 1]])
TABLE = torch.cat([torch.tensor([[0.0, 3.0], [2.0, 150.0], [1.0, 0.0]]), normal(2, 3, 2)], 1)
MODULES: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "table": (lambda: TableNet(4, (3, 200), (6,), 5, final_relu=False), TABLE),
    "tabular": (lambda: TabularNet(4, (3, 200), (6,), 5, bins=4, width=3), TABLE),
    "bag": (lambda: Bag(10, 4, (3,), 2), TOKENS.int()),
    "cnn": (lambda: cnn((1, 4, 8), [2, 3], 5), normal(1, 3, 1, 4, 8)),
    "filters": (lambda: Filters((1, 4, 12), 6), normal(1, 3, 1, 4, 12)),
    "sum": (lambda: Sum(8, 4), normal(1, 3, 8)),
    "resnet": (lambda: resnet.whole((1, 4, 4), 3, width=4), normal(1, 3, 1, 4, 4)),
    "resnet-stem": (lambda: resnet.stem((3, 8, 8), width=4), normal(1, 3, 3, 8, 8)),
    "resnet-rest": (
        lambda: resnet.rest(256, 3, image=(8, 8), parts=2, assemble="width", width=4),
        normal(1, 3, 256),
    ),
}
if find_spec("transformers"):
    for family in ("bert", "distilbert"):
        small = Spec("random", family, vector=8, layers=2, heads=2, vocabulary=50, positions=16)
        MODULES |= {
            f"{family}": (lambda spec=small: Text(spec, 4, "mean", 3), TOKENS),
            f"{family}-embeddings": (lambda spec=small: TextEmbeddings(spec, 4), TOKENS),
            f"{family}-rest": (
                lambda spec=small: TextRest(spec, 32, "mean", (), 3),
                normal(1, 3, 32),
            ),
        }


def made() -> Iterator[tuple[str, nn.Module, DifferentiableModel, Tensor]]:
    """Every module, and the model over it; views of one vector."""
    for name, (make, inputs) in MODULES.items():
        torch.manual_seed(0)
        module = make().eval()
        yield name, module, wrap(module), inputs


def test_gradients_equal_autograd() -> None:
    for name, module, model, inputs in made():
        twin = copy.deepcopy(module).requires_grad_(True)
        weights = normal(4, *module(inputs).flatten(1).shape)
        to_parameters, to_inputs = gradients(twin, inputs, weights)
        outputs, pullback = model.forward(Points(inputs))
        assert outputs.shape == weights.shape, name
        assert torch.allclose(pullback(weights), to_parameters, rtol=1e-3, atol=1e-5), name
        if inputs.is_floating_point():
            assert torch.allclose(pullback.inputs(weights), to_inputs, rtol=1e-3, atol=1e-5), name


def test_records_do_not_mix_and_one_vector_drives_all() -> None:
    for name, module, model, inputs in made():
        before, other = model(inputs), inputs.clone()
        other[1] = 4
        change = (before - model(other)).abs().amax(1)
        assert change[1] > 1e-4, name
        assert change[[0, 2]].max() < 1e-6, name
        direction = normal(5, *model.parameters.shape)
        plus, zero = model.along(direction, (1e-2, 0.0), inputs)
        assert torch.equal(zero, before), name
        assert (plus - before).abs().amax(1).min() > 0, name
        model.parameters.add_(direction, alpha=0.1)
        assert torch.equal(flat(module), model.parameters), name
        assert not torch.allclose(model(inputs), before), name


def test_points_are_written_out_in_order() -> None:
    rows = torch.arange(8.0).view(2, 4)
    one = torch.tensor([[[10.0], [20.0]], [[-10.0], [-20.0]]])
    points = Points(rows, ((3, one), (0, torch.full((1, 2, 2), 100.0))))
    assert (len(Points(rows)), len(points)) == (1, 4)
    assert points.changed().tolist() == [
        [0, 1, 2, 13],
        [4, 5, 6, 27],
        [0, 1, 2, -7],
        [4, 5, 6, -13],
        [100, 101, 2, 3],
        [104, 105, 6, 7],
    ]
    assert torch.equal(rows, torch.arange(8.0).view(2, 4))
