"""DPZV against plain PyTorch in float64, and what only a zeroth-order method can train."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests import federations
from tests.rows import each
from torch import Tensor

from vertizo.config.schema import ExperimentConfig
from vertizo.methods.dpzv import Dpzv
from vertizo.protocol.messages import Reply
from vertizo.zeroth_order.directions import LAWS

TIMINGS = ("asynchronous", "synchronous")
SMOOTHING = 0.05
LARGE = {"method.smoothing": SMOOTHING}


K = 3
EACH = {**LARGE, "method.num_directions": K}
JOINTLY = {**EACH, "method.clipping": "jointly"}
FORMS = [(LARGE, 1), (EACH, K), (JOINTLY, K)]


@each("timing", TIMINGS)
@each(
    "changes, count, momentum",
    [(LARGE, 1, 0.0), (LARGE, 1, 0.9), (EACH, K, 0.0), (JOINTLY | federations.HARDLY_ANY, K, 0.0)],
)
def test_rounds_by_hand(timing: str, changes: dict[str, Any], count: int, momentum: float) -> None:
    """A slope for each direction; table and server's step are at the mean of all points."""
    changes = {**changes, "epochs": 4, "server.optimizer.momentum": momentum}
    federation = federations.build("dpzv", timing, changes)
    for made in federations.rounds(
        federation, timing, stored=lambda points: points.mean(0), slack=1e-6, momentum=momentum
    ):
        for query, reply in made.pairs:
            assert query.embeddings.shape == (2 * count, made.ids.numel(), federations.DIM)
            points = [made.losses(query.client, h).sum().item() / 8 for h in query.embeddings]
            pairs = zip(points[::2], points[1::2], strict=True)
            expected = [(plus - minus) / (2 * SMOOTHING) for plus, minus in pairs]
            assert reply.values.tolist() == pytest.approx(expected, abs=3e-5)


@each("law", LAWS)
@each("momentum", [0.0, 0.9])
@each("count", [1, K])
def test_a_client_asks_on_both_sides_and_moves_along_the_same_directions(
    law: Any, momentum: float, count: int
) -> None:
    """By the mean of its estimates."""
    method = Dpzv(smoothing=SMOOTHING, directions=law, num_directions=count)
    half, model = federations.bare(method, momentum)
    features, velocity, seen = torch.zeros(3, 2), torch.zeros(7), []
    for number, values in enumerate([[0.7, -1.3, 2.0], [-1.3, 0.0, -0.4], [2.0, 0.1, 0.6]]):
        told, before = torch.tensor(values[:count]), model.parameters.clone()
        points = half.ask(number, features)[:, 0]
        assert torch.equal(model.parameters, before)
        assert points.shape == (2 * count, 7)
        assert torch.allclose((points[::2] + points[1::2]) / 2, before.expand(count, 7), atol=1e-6)
        directions = (points[::2] - points[1::2]) / (2 * SMOOTHING)
        if law in federations.NORMS:
            norms = [federations.NORMS[law]] * count
            assert directions.norm(dim=1).tolist() == pytest.approx(norms, rel=1e-5)
        half.tell(number, features, told)
        estimates = federations.FACTORS.get(law, 1.0) * told[:, None] * directions
        velocity = momentum * velocity + estimates.mean(0)
        assert torch.allclose(model.parameters, before - 0.1 * velocity, atol=1e-5)
        seen += [*directions]
    for i, u in enumerate(seen):
        few = law in ("coordinate", "rademacher")  # of which there are 7, and 128
        assert few or all(not torch.allclose(u, other) for other in seen[:i])


@pytest.mark.full
@each("law", LAWS)
def test_many_directions_approach_the_gradient(law: Any) -> None:
    method = Dpzv(smoothing=0.01, directions=law)
    estimate, gradient = federations.estimated_gradient(method, 3000)
    error = float((estimate - gradient).norm() / gradient.norm())
    assert error < 3 * math.sqrt((gradient.numel() + 1) / 3000)


RULES = """
import numpy as np

def signs(w, x):
    return np.where(x @ w[:, None] > 0, 1.0, -1.0)
"""


def with_signs(path: Path, seed: int, control: str) -> dict[str, float]:
    """Test scores of clients that say a sign and nothing more."""
    (path / "rules.py").write_text(RULES)
    signs = {"name": "function", "path": f"{path / 'rules.py'}:signs"}
    changes = {"seed": seed, "epochs": 40, "batch_size": 32, "control": control}
    changes["client.model"] = {**signs, "num_parameters": 4, "initial_std": 1.0}
    changes |= {"client.optimizer.learning_rate": 0.2, "method.smoothing": 0.3}
    changes["server.model"] = {"name": "mlp", "hidden": [16]}
    changes |= {"server.optimizer.learning_rate": 0.05, "server.optimizer.momentum": 0.9}
    federation, _ = federations.ran("dpzv", "asynchronous", changes, of=federations.two_bits(320))
    federation.simulator.upload("test", 400)
    return dict(federation.server.score("test"))


@pytest.mark.full
@each("seed", [0, 1, 2])
def test_a_client_without_gradients_is_trained(tmp_path: Path, seed: int) -> None:
    """Its derivative is zero almost everywhere; the server alone explains little of the result."""
    trained = with_signs(tmp_path, seed, "none")
    assert trained["accuracy"] > 0.85
    for control in ("frozen", "random"):
        alone = with_signs(tmp_path, seed, control)
        assert trained["accuracy"] > alone["accuracy"] + 0.2
        assert trained["loss"] < alone["loss"] - 0.3


@each("changes, count", FORMS)
def test_noise_is_on_every_sum_and_divided_by_the_nominal_batch(
    changes: dict[str, Any], count: int
) -> None:
    """With parties that stay, replies differ by it alone; every scalar has its own."""
    still = {**changes, "control": "frozen", "server.update": "none", "epochs": 20}
    still |= {"method.clipping": "each"}
    noisy = {**still, **changes, **federations.HARDLY_ANY, "privacy.noise_std": 4.0}
    replies = []
    for more in (still, noisy):
        _, tape = federations.ran("dpzv", changes=more)
        told = [m.values for *_, m in tape.messages() if isinstance(m, Reply)]
        replies.append(torch.stack(told))
    noise = (replies[1] - replies[0]).numpy() * 8 / 4
    assert noise.shape == (20 * 4 * 3, count)
    assert noise.std() == pytest.approx(1, abs=4 / math.sqrt(2 * noise.size))
    assert abs(noise.mean()) < 4 / math.sqrt(noise.size)
    correlations = np.corrcoef(noise.T) - np.eye(count)
    assert np.abs(correlations).max() < 4.5 / math.sqrt(len(noise))


@each("changes, count", FORMS)
def test_slopes_are_clipped_each_or_jointly(changes: dict[str, Any], count: int) -> None:
    """One by one to ±C, or a record's together to norm C: what makes entries of them, or one."""
    plain = federations.build("dpzv", changes={**EACH, "method.num_directions": count})
    query = federations.query(federations.ask(plain, 0))
    generator = torch.Generator().manual_seed(0)
    query = replace(query, embeddings=torch.randn(2 * count, 8, 3, generator=generator))
    rows = torch.zeros(2 * count, 8, plain.server.side.table.width)
    rows[..., :3] = query.embeddings
    labels = plain.data.labels["train"][query.ids].repeat(2 * count)
    logits = federations.server_twin(plain)(rows.double().flatten(0, 1))
    at = F.cross_entropy(logits, labels, reduction="none").detach().view(2 * count, 8)
    slopes = ((at[::2] - at[1::2]) / (2 * SMOOTHING)).t()
    clip = min(float(slopes.max()), -float(slopes.min())) / 2
    assert clip > 0.1

    plan = {**federations.HARDLY_ANY, "privacy.clip": clip}
    federation = federations.build("dpzv", changes={**changes, **plan})
    ((_, answer),) = federation.server.receive(federations.encoded(query))
    jointly = changes is JOINTLY
    norms = slopes.norm(dim=1, keepdim=True)
    bounded = slopes * (clip / norms.clamp(min=clip)) if jointly else slopes.clamp(-clip, clip)
    told = federations.reply(answer).values
    assert told.tolist() == pytest.approx((bounded.sum(0) / 8).tolist(), abs=1e-5)
    clipped = norms > clip if jointly else slopes.abs() > clip
    assert federation.server.side.plan.clip_fraction == float(clipped.double().mean())
    counts, entries = federations.charged(federation), 1 if jointly else count
    assert counts[0, query.ids].tolist() == [entries] * 8
    assert int(counts.sum()) == 8 * entries


def test_the_variance_falls_as_directions_rise() -> None:
    spread = []
    for count in (1, 4):
        method = Dpzv(smoothing=0.01, num_directions=count)
        rows, gradient = federations.estimates(method, 1000)
        spread.append(float(rows.var(0).sum()))
        error = rows.std(0) / math.sqrt(len(rows))
        assert torch.all((rows.mean(0) - gradient).abs() <= 5 * error + 2e-5)
    assert spread[0] / spread[1] == pytest.approx(4, rel=0.25)


def test_one_direction_is_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """However it is clipped: with the same noise too, the same frames and the same weights."""
    monkeypatch.setattr(ExperimentConfig, "digest", "the same")
    plain, tape = federations.ran("dpzv", changes=federations.GAUSSIAN)
    for clipping in ("each", "jointly"):
        one = {"method.num_directions": 1, "method.clipping": clipping}
        same, other = federations.ran("dpzv", changes={**federations.GAUSSIAN, **one})
        assert tape.seen == other.seen
        assert not federations.differences(plain.state(), same.state())


def test_directions_that_are_not_kept_give_the_same_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn again from their seeds, bit by bit; the embeddings differ by rounding alone."""

    def update(limit: int) -> tuple[Tensor, Tensor]:
        monkeypatch.setattr("vertizo.zeroth_order.directions.KEEP_UP_TO", limit)
        federation = federations.build("dpzv", changes={**EACH, **momentum})
        model, half = federation.models[0], federation.clients[0].pair
        features = federation.data.features[0]["train"][:5]
        for number in range(3):
            half.tell(number, features, torch.tensor([0.5, -1.0, 2.0]))
        parameters = model.parameters.clone()
        return parameters, half.ask(3, features)

    momentum = {"client.optimizer.momentum": 0.9}
    size = federations.build("dpzv").models[0].parameters.numel()
    kept, asked = update(size * K)
    for limit in (0, size * K - 1):
        again, other = update(limit)
        assert torch.equal(kept, again)
        assert not torch.equal(asked, other)
        assert torch.allclose(asked, other, atol=1e-6)


@each("clipping, entries", [("each", K), ("jointly", 1)])
@each("timing", TIMINGS)
def test_the_noise_covers_every_entry_of_a_run(timing: str, clipping: str, entries: int) -> None:
    """ε = 2 at M·E·K entries a record, all of which a whole run uses up."""
    epochs, clients, epsilon, delta, clip = 2, 3, 2.0, 1e-5, 0.5
    changes = {**EACH, "method.clipping": clipping, "server.update": "none"}
    changes |= {"privacy.mechanism": "gaussian", "privacy.clip": clip, "privacy.epsilon": epsilon}
    federation, _ = federations.ran("dpzv", timing, changes)
    statement = federation.statement()
    releases = epochs * clients * entries
    assert statement.max_releases == releases
    assert statement.max_participations == epochs * clients
    assert statement.guarantee == "simulated"
    assert statement.epsilon == pytest.approx(epsilon, rel=1e-6)
    assert statement.epsilon <= epsilon
    mu = 2 * clip * math.sqrt(releases) / statement.noise_std
    spread = NormalDist()
    at = spread.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * spread.cdf(-epsilon / mu - mu / 2)
    assert at == pytest.approx(delta, rel=1e-6)
    counts = federations.charged(federation)
    assert torch.equal(counts, torch.full_like(counts, epochs * entries))
