"""Label-free preparation of a client's features."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.rows import each

from vertizo.core.errors import ConfigError
from vertizo.core.names import PretrainName
from vertizo.core.randomness import Stream
from vertizo.models.base import Points, Selected
from vertizo.models.pretrained import (
    FilterMeans,
    Preparation,
    Pretrained,
    preparation,
    spline_basis,
)
from vertizo.models.torch import wrap
from vertizo.zeroth_order.directions import Directions
from vertizo.zeroth_order.estimators import outputs, readable_table


def table(records: int = 500) -> torch.Tensor:
    """Two columns of codes (3 and 2 categories), then three numbers of which two go together."""
    generator = np.random.default_rng(0)
    codes = np.stack([generator.integers(0, 3, records), generator.integers(0, 2, records)], 1)
    numbers = generator.normal(size=(records, 2)) @ [[3.0, 1.0, 0.0], [0.0, 0.2, 0.1]]
    return torch.from_numpy(np.concatenate([codes, numbers], 1)).float()


def test_components_are_those_of_a_singular_value_decomposition() -> None:
    features = table()
    columns = [np.eye(3)[features[:, 0].long()], np.eye(2)[features[:, 1].long()]]
    rows = np.concatenate([*columns, features[:, 2:].numpy()], 1)
    centred = rows - rows.mean(0)
    _, singular, right = np.linalg.svd(centred, full_matrices=False)
    for kind, wanted in (
        ("pca", centred @ right[:3].T),
        ("whiten", centred @ right[:3].T / singular[:3] * np.sqrt(len(rows))),
    ):
        prepared = Preparation(kind, features, (3, 2), 3, 0)(features).numpy()
        assert np.allclose(np.abs(prepared), np.abs(wanted), atol=1e-3)


def test_what_does_not_vary_is_left_out() -> None:
    """Five one-hot columns and three numbers have rank 5 once they are centred."""
    prepared = Preparation("whiten", table(), (3, 2), 64, 0)(table())
    spread = prepared.std(0)
    assert int((spread > 0.5).sum()) == 5
    assert bool(prepared.isfinite().all())


def test_centroids_light_up_what_is_close() -> None:
    features = torch.cat([torch.randn(100, 2) + 9 * corner for corner in torch.eye(2)])
    prepared = Preparation("kmeans", features, (), 2, 0)(features)
    assert prepared.shape == (200, 2)
    assert bool((prepared.argmax(1)[:100] == prepared.argmax(1)[0]).all())
    assert bool((prepared.argmax(1)[100:] != prepared.argmax(1)[0]).all())


def test_tokens_are_refused() -> None:
    with pytest.raises(ConfigError, match="not for tokens"):
        Preparation("pca", torch.ones(5, 3, dtype=torch.int64), (), 2, 0)


@each("kind", ["pca", "kmeans", "splines"])
def test_the_model_behind_it_is_that_of_prepared_features(kind: str) -> None:
    torch.manual_seed(0)
    features = table(60)
    front = Preparation(kind, features, (3, 2), 4, 0)
    inner = wrap(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2)))
    whole = Pretrained(front, inner)
    prepared = front(features)
    assert torch.equal(whole(features), inner(prepared))
    direction = torch.randn(whole.parameters.numel())
    assert torch.equal(
        whole.along(direction, (0.1, -0.1), features), inner.along(direction, (0.1, -0.1), prepared)
    )
    outputs, pullback = whole.forward(Points(features))
    assert torch.equal(outputs, inner(prepared))
    wanted = inner.forward(Points(prepared))[1](torch.ones(60, 2)).clone()
    assert torch.equal(pullback(torch.ones(60, 2)), wanted)


def test_hats_are_straight_between_tips_and_bounded_for_every_number() -> None:
    tips = torch.tensor([[0.0, 1.0, 3.0], [0.0, 0.0, 3.0], [0.0, 3.0, 3.0], [3.0, 3.0, 3.0]])
    numbers = torch.tensor([-1e30, 0.0, 0.5, 1.0, 2.0, 3.0, 1e30, torch.inf])
    found = spline_basis(numbers.unsqueeze(1).repeat(1, 4), tips)
    assert bool(((found >= 0) & (found <= 1)).all())
    assert torch.allclose(found.sum(2), torch.ones(8, 4))
    # What numbers are straight combinations of: themselves, cut at the outer tips.
    assert torch.allclose((found * tips).sum(2)[:, :3], numbers.clamp(0, 3).unsqueeze(1))
    halfway = [[0.5, 0.5, 0.0], [0.0, 5 / 6, 1 / 6], [5 / 6, 0.0, 1 / 6], [0.0, 0.0, 1.0]]
    assert torch.allclose(found[2], torch.tensor(halfway))


def test_a_linear_model_of_splines_bends_at_medians() -> None:
    """And reads categories; no new record, however far, takes it beyond what it is at an edge."""
    features = table()
    numbers = features[:, 2:]
    bends = (numbers - numbers.quantile(0.5, dim=0)).abs().sum(1) + features[:, 0].eq(1)
    front = preparation("splines", features, (3, 2), 64, 0)
    prepared = torch.cat([front(features), torch.ones(len(features), 1)], 1).double()
    weights = torch.linalg.pinv(prepared, rtol=1e-6) @ bends.double()
    assert torch.allclose(prepared @ weights, bends.double(), atol=1e-4)
    edges, far = features[:1].repeat(2, 1), features[:1].repeat(2, 1)
    edges[:, 2:] = torch.stack([numbers.amin(0), numbers.amax(0)])
    far[:, 2:] = torch.tensor([[-1e9], [1e9]])
    assert torch.equal(front(far), front(edges))


def test_a_table_is_prepared_once() -> None:
    """Each direction of a query prepared its batch anew: filters took most of a round."""
    features = table(60)
    calls = []

    class Counted(Preparation):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            calls.append(len(rows))
            return super().forward(rows)

    whole = Pretrained(Counted("pca", features, (3, 2), 4, 0), wrap(torch.nn.Linear(4, 2)))
    directions, ids = Directions("gaussian", 10, Stream.from_seed(0), 3), torch.tensor([5, 2, 59])
    known = readable_table(whole, directions, features)
    assert known is not None
    for u in directions.of_query(0):
        found = outputs(whole, Selected(known, ids), u, (0.1, -0.1))
        assert torch.allclose(found, outputs(whole, features[ids], u, (0.1, -0.1)), atol=1e-6)
    assert calls == [60, 3, 3, 3]
    whole.load(whole.state())
    outputs(whole, Selected(known, ids), u, (0.0,))
    assert calls[-1] == 60  # prepared as its new state has it


@each("kind", ["pca", "splines"])
def test_its_state_goes_with_the_model(kind: PretrainName) -> None:
    """A model made of other records is the same once it has the state."""
    torch.manual_seed(0)
    made = [
        Pretrained(Preparation(kind, part, (3, 2), 3, 0), wrap(torch.nn.Linear(3, 2)))
        for part in (table(300), table(500)[300:])
    ]
    features = table(20)
    assert not torch.allclose(made[0](features), made[1](features), atol=1e-4)
    made[1].load(made[0].state())
    assert torch.equal(made[0](features), made[1](features))
    for wrong in (made[0].parameters, {**made[0].state(), "front": {}}):
        with pytest.raises((TypeError, ValueError)):
            made[1].load(wrong)


@each(
    "shape, components, made",
    [
        ((1, 4, 28), 56, 56),  # a strip of MNIST: 8 directions, 7 cells
        ((1, 4, 28), 64, 56),
        ((1, 4, 28), 200, 112),  # two scales
        ((3, 16, 32), 64, 64),
        ((2, 30, 30), 8, 8),
        ((1, 1, 28), 20, 16),
        ((1, 9, 3), 3, 3),
    ],
)
def test_filters_are_at_most_so_many(shape: tuple[int, ...], components: int, made: int) -> None:
    front = FilterMeans(shape, components)
    images = torch.randn(5, *shape, generator=torch.Generator().manual_seed(0))
    found = front(images)
    assert found.shape == (5, made)
    assert front.components == made
    assert bool((found >= 0).all())
    assert bool((found.amax(0) > 0).sum() >= made // 2)
    assert float(front(torch.full((2, *shape), 7.0)).abs().max()) < 1e-4  # edges are continued
    assert front(images[:0]).shape == (0, made)


def test_filters_tell_directions_and_places_apart() -> None:
    """An edge lights up the filter across it, in its cell; a turned image, the turned filter."""
    front = FilterMeans((1, 8, 8), 32)  # 8 directions, 4 cells
    edge = torch.zeros(1, 1, 8, 8)
    edge[..., 2:] = 1.0  # brighter to the right of the third column
    found = front(edge).reshape(8, 2, 2)
    assert int(found[:, 0, 0].argmax()) == 0
    assert float(found[:, :, 1].max()) < 1e-5
    turned = front(edge.rot90(1, (2, 3))).reshape(8, 2, 2)
    assert torch.allclose(turned, found.rot90(1, (1, 2)).roll(-2, 0), atol=1e-5)


def test_filters_know_no_other_record_and_no_label() -> None:
    """Nothing is fitted: of other records they are the same, bit for bit."""
    records = torch.rand(30, 3, 8, 12, generator=torch.Generator().manual_seed(0))
    front = preparation("filters", records, (), 24, 0)
    other = preparation("filters", 100 * records[:3], (), 24, 1)
    assert torch.equal(front(records)[:4], other(records[:4]))
    assert not front.state_dict()


@each(
    "features, words",
    [
        (torch.ones(5, 4), r"shape \[4\]; use 'pca', 'whiten' or 'kmeans'"),
        (torch.ones(5, 3, dtype=torch.int64), "are tokens; use 'none'"),
    ],
)
def test_filters_are_for_images(features: torch.Tensor, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        preparation("filters", features, (), 8, 0)
