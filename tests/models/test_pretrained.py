"""Label-free preparation of a client's features."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.rows import each

from vertizo.core.errors import ConfigError
from vertizo.models.base import Points
from vertizo.models.pretrained import Preparation, Pretrained
from vertizo.models.torch import wrap


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


@each("kind", ["pca", "kmeans"])
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


def test_its_state_goes_with_the_model() -> None:
    """A model made of other records is the same once it has the state."""
    torch.manual_seed(0)
    made = [
        Pretrained(Preparation("pca", part, (3, 2), 3, 0), wrap(torch.nn.Linear(3, 2)))
        for part in (table(300), table(500)[300:])
    ]
    features = table(20)
    assert not torch.allclose(made[0](features), made[1](features), atol=1e-2)
    made[1].load(made[0].state())
    assert torch.equal(made[0](features), made[1](features))
    for wrong in (made[0].parameters, {**made[0].state(), "front": {}}):
        with pytest.raises((TypeError, ValueError)):
            made[1].load(wrong)
