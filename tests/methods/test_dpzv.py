"""DPZV against plain PyTorch in float64, and what only a zeroth-order method can train."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.rows import each
from torch import Tensor, nn

from vertizo.config.schema import ExperimentConfig
from vertizo.core.randomness import Stream
from vertizo.methods.base import ClientSide
from vertizo.methods.dpzv import Dpzv
from vertizo.models.array import ArrayModel
from vertizo.models.optimizers import Sgd
from vertizo.protocol.messages import Reply
from vertizo.run.federation import Federation
from vertizo.zeroth_order.directions import LAWS

TIMINGS = ("asynchronous", "synchronous")
SMOOTHING = 0.05
LARGE = {"method.smoothing": SMOOTHING}


def losses(server: nn.Module, rows: Tensor, labels: Tensor) -> Tensor:
    """Per record, with a graph to the server's parameters."""
    return F.cross_entropy(server(rows.double()), labels, reduction="none")


def server_twin(federations: SimpleNamespace, federation: Federation) -> nn.Sequential:
    width = federation.server.side.table.width
    widths = [width, federations.HIDDEN, federations.CLASSES]
    return federations.twin(federation.server.side.model.parameters, widths)


@each("timing", TIMINGS)
@each("momentum", [0.0, 0.9])
def test_rounds_by_hand(federations: SimpleNamespace, timing: str, momentum: float) -> None:
    """Every reply, table entry and server step of a run, short batches included."""
    changes = {**LARGE, "server.optimizer.momentum": momentum}
    federation = federations.build("dpzv", timing, changes)
    side, nominal, rate = federation.server.side, 8, 0.1
    labels = federation.data.labels["train"]
    order = [0, 1, 2] if timing == "synchronous" else [1]
    velocity = torch.zeros_like(side.model.parameters, dtype=torch.float64)
    sizes = set()
    for round_ in range(10):
        server = server_twin(federations, federation)
        frames = [federations.ask(federation, client) for client in order]
        queries = [federations.query(frame) for frame in frames]
        ids = queries[0].ids
        sizes.add(ids.numel())
        table = side.table.values.clone()
        dim = federations.DIM
        for query in queries:
            start = dim * query.client
            table[ids, start : start + dim] = (query.embeddings[0] + query.embeddings[1]) / 2
        answers = [a for frame in frames for a in federation.server.receive(frame)]

        assert [client for client, _ in answers] == order
        for query, (_, answer) in zip(queries, answers, strict=True):
            sides = []
            for embeddings in query.embeddings:
                rows = table[ids].clone()
                start = dim * query.client
                rows[:, start : start + dim] = embeddings
                sides.append(losses(server, rows, labels[ids]))
            slopes = (sides[0] - sides[1]) / (2 * SMOOTHING)
            expected = slopes.sum() / nominal
            reply = federations.reply(answer)
            assert reply.number == query.number
            assert reply.values.shape == (1,)
            assert float(reply.values) == pytest.approx(expected.item(), abs=3e-5)

        assert torch.allclose(side.table.values, table, atol=1e-6)
        others = torch.ones(len(table), dtype=torch.bool)
        others[ids] = False
        assert torch.equal(side.table.values[others], table[others])

        (losses(server, table[ids], labels[ids]).sum() / nominal).backward()
        gradient = torch.cat([w.grad.reshape(-1) for w in server.parameters()])
        velocity = momentum * velocity + gradient
        stepped = federations.flat(server) - rate * velocity
        assert torch.allclose(side.model.parameters.double(), stepped, atol=1e-6)

        for client, answer in answers:
            federation.clients[client].tell(answer)
        if timing == "asynchronous":
            order = [(round_ * 2) % 3]
    assert sizes == {8, 29 % 8}


def bare(law: str, dimension: int, optimizer: Sgd) -> tuple[Any, ArrayModel]:
    """A client whose embedding is its parameters: perturbations can be read off."""
    model = ArrayModel(lambda w, x: np.repeat(w[None], len(x), 0), torch.linspace(-1, 1, dimension))
    method = Dpzv(smoothing=SMOOTHING, directions=law)
    return method.client(
        ClientSide(model, optimizer, Stream.from_seed(5), Stream.from_seed(9))
    ), model


NORMS = {"sphere": 1.0, "scaled-sphere": math.sqrt(7), "rademacher": math.sqrt(7), "coordinate": 1}
FACTORS = {"sphere": 7.0, "coordinate": 7.0}


@each("law", LAWS)
@each("momentum", [0.0, 0.9])
def test_a_client_asks_on_both_sides_and_moves_along_the_same_direction(
    law: str, momentum: float
) -> None:
    half, model = bare(law, 7, Sgd(0.1, momentum))
    features, velocity, seen = torch.zeros(3, 2), torch.zeros(7), []
    for number, value in enumerate([0.7, -1.3, 2.0]):
        before = model.parameters.clone()
        plus, minus = half.ask(number, features)
        assert torch.equal(model.parameters, before)
        assert torch.allclose((plus + minus)[0] / 2, before, atol=1e-6)
        direction = (plus - minus)[0] / (2 * SMOOTHING)
        if law in NORMS:
            assert float(direction.norm()) == pytest.approx(NORMS[law], rel=1e-5)
        half.tell(number, features, torch.tensor([value]))
        velocity = momentum * velocity + FACTORS.get(law, 1.0) * value * direction
        assert torch.allclose(model.parameters, before - 0.1 * velocity, atol=1e-5)
        seen.append(direction)
    assert law == "coordinate" or not torch.allclose(seen[0], seen[1])


@each("law", LAWS)
def test_many_directions_approach_the_gradient(federations: SimpleNamespace, law: Any) -> None:
    rounds = 3000
    method = Dpzv(smoothing=0.01, directions=law)
    estimate, gradient = federations.estimated_gradient(method, rounds)
    error = float((estimate - gradient).norm() / gradient.norm())
    assert error < 3 * math.sqrt((gradient.numel() + 1) / rounds)


RULES = """
import numpy as np

def signs(w, x):
    return np.where(x @ w[:, None] > 0, 1.0, -1.0)
"""


def with_signs(
    federations: SimpleNamespace, path: Path, seed: int, control: str
) -> dict[str, float]:
    """Test scores of clients that say a sign and nothing more."""
    (path / "rules.py").write_text(RULES)
    changes = {
        "seed": seed,
        "epochs": 40,
        "batch_size": 32,
        "control": control,
        "client.model": {
            "name": "function",
            "path": f"{path / 'rules.py'}:signs",
            "num_parameters": 4,
            "initial_std": 1.0,
        },
        "client.optimizer.learning_rate": 0.2,
        "method.smoothing": 0.3,
        "server.model": {"name": "mlp", "hidden": [16]},
        "server.optimizer.learning_rate": 0.05,
        "server.optimizer.momentum": 0.9,
    }
    federation, _ = federations.ran("dpzv", "asynchronous", changes, of=federations.two_bits(320))
    federation.simulator.upload("test", 400)
    return dict(federation.server.score("test"))


@each("seed", [0, 1, 2])
def test_a_client_without_gradients_is_trained(
    federations: SimpleNamespace, tmp_path: Path, seed: int
) -> None:
    """Its derivative is zero almost everywhere; the server alone explains little of the result."""
    trained = with_signs(federations, tmp_path, seed, "none")
    assert trained["accuracy"] > 0.85
    for control in ("frozen", "random"):
        alone = with_signs(federations, tmp_path, seed, control)
        assert trained["accuracy"] > alone["accuracy"] + 0.2
        assert trained["loss"] < alone["loss"] - 0.3


def test_noise_and_clip_of_no_weight_leave_the_method_as_it_is(
    federations: SimpleNamespace,
) -> None:
    """Seven decimals of noise on the sum move the parameters by as little."""
    changes = {**LARGE, "client.optimizer.momentum": 0.9}
    noise = 1e-6
    tiny = {"privacy.mechanism": "gaussian", "privacy.clip": 1e9, "privacy.noise_std": noise}
    plain, plain_tape = federations.ran("dpzv", "asynchronous", changes)
    noised, noised_tape = federations.ran("dpzv", "asynchronous", {**changes, **tiny})
    for a, b in zip(plain.models, noised.models, strict=True):
        assert not torch.equal(a.parameters, b.parameters)
        assert torch.allclose(a.parameters, b.parameters, atol=20 * noise)
    told = [
        [m.values for *_, m in tape.messages() if isinstance(m, Reply)]
        for tape in (plain_tape, noised_tape)
    ]
    first = float((told[0][0] - told[1][0]).abs())
    assert 0 < first < 6 * noise / 8 + 1e-7


def test_noise_is_on_the_sum_and_divided_by_the_nominal_batch(
    federations: SimpleNamespace,
) -> None:
    """With a server that stays and clients that stay, replies differ by the noise alone."""
    still = {**LARGE, "control": "frozen", "server.update": "none", "epochs": 40}
    plan = {"privacy.mechanism": "gaussian", "privacy.clip": 1e9, "privacy.noise_std": 4.0}
    replies = []
    for changes in (still, {**still, **plan}):
        _, tape = federations.ran("dpzv", "asynchronous", changes)
        replies.append([m.values.item() for *_, m in tape.messages() if isinstance(m, Reply)])
    noise = torch.tensor(replies[1]) - torch.tensor(replies[0])
    count = noise.numel()
    assert count == 40 * 4 * 3
    assert float(noise.std()) == pytest.approx(4.0 / 8, rel=4 / math.sqrt(2 * count))
    assert abs(float(noise.mean())) < 5 * 0.5 / math.sqrt(count)


def test_the_clip_bounds_each_records_slope_on_both_sides(federations: SimpleNamespace) -> None:
    plain = federations.build("dpzv", changes=LARGE)
    query = federations.query(federations.ask(plain, 0))
    shifts = torch.randn(1, 8, federations.DIM, generator=torch.Generator().manual_seed(0))
    query = replace(query, embeddings=torch.cat([shifts, -shifts]))
    rows = torch.zeros(2, 8, plain.server.side.table.width)
    rows[..., : federations.DIM] = query.embeddings
    labels = plain.data.labels["train"][query.ids]
    server = server_twin(federations, plain)
    plus, minus = (losses(server, point, labels).detach() for point in rows)
    slopes = (plus - minus) / (2 * SMOOTHING)
    clip = min(slopes.max().item(), -slopes.min().item()) / 2
    assert clip > 0.1

    plan = {"privacy.mechanism": "gaussian", "privacy.clip": clip, "privacy.noise_std": 1e-9}
    federation = federations.build("dpzv", changes={**LARGE, **plan})
    ((_, answer),) = federation.server.receive(federations.encoded(query))
    expected = slopes.clamp(-clip, clip).sum() / 8
    assert federations.reply(answer).values.item() == pytest.approx(expected.item(), abs=1e-5)
    clipped = float((slopes.abs() > clip).double().mean())
    assert federation.server.side.plan.clip_fraction == clipped


K = 3
SEVERAL = {**LARGE, "method.num_directions": K}


@each("timing", TIMINGS)
@each("clipping", ["each", "jointly"])
def test_rounds_of_several_directions_by_hand(
    federations: SimpleNamespace, timing: str, clipping: str
) -> None:
    """K slopes come back; the table and the server's step are at the mean of all points."""
    changes = {**SEVERAL, "method.clipping": clipping}
    if clipping == "jointly":
        changes |= federations.HARDLY_ANY
    federation = federations.build("dpzv", timing, changes)
    side, labels, dim = federation.server.side, federation.data.labels["train"], federations.DIM
    order = [0, 1, 2] if timing == "synchronous" else [1]
    for round_ in range(6):
        server = server_twin(federations, federation)
        frames = [federations.ask(federation, client) for client in order]
        queries = [federations.query(frame) for frame in frames]
        ids = queries[0].ids
        table = side.table.values.clone()
        for query in queries:
            table[ids, dim * query.client : dim * (query.client + 1)] = query.embeddings.mean(0)
        answers = [a for frame in frames for a in federation.server.receive(frame)]
        assert torch.allclose(side.table.values, table, atol=1e-6)
        for query, (client, answer) in zip(queries, answers, strict=True):
            assert query.embeddings.shape == (2 * K, ids.numel(), dim)
            means = []
            for embeddings in query.embeddings:
                rows = table[ids].clone()
                rows[:, dim * client : dim * (client + 1)] = embeddings
                means.append(losses(server, rows, labels[ids]).sum().item() / 8)
            expected = [
                (a - b) / (2 * SMOOTHING) for a, b in zip(means[::2], means[1::2], strict=True)
            ]
            told = federations.reply(answer).values
            assert told.tolist() == pytest.approx(expected, abs=3e-5)
        (losses(server, table[ids], labels[ids]).sum() / 8).backward()
        gradient = torch.cat([w.grad.reshape(-1) for w in server.parameters()])
        stepped = federations.flat(server) - 0.1 * gradient
        assert torch.allclose(side.model.parameters.double(), stepped, atol=1e-6)
        for client, answer in answers:
            federation.clients[client].tell(answer)
        if timing == "asynchronous":
            order = [(round_ * 2) % 3]


@each("law", LAWS)
@each("momentum", [0.0, 0.9])
def test_a_client_moves_by_the_mean_of_its_estimates(law: Any, momentum: float) -> None:
    model = ArrayModel(lambda w, x: np.repeat(w[None], len(x), 0), torch.linspace(-1, 1, 7))
    method = Dpzv(smoothing=SMOOTHING, directions=law, num_directions=K)
    own, shared = Stream.from_seed(5), Stream.from_seed(9)
    half = method.client(ClientSide(model, Sgd(0.1, momentum), own, shared))
    features, velocity, seen = torch.zeros(3, 2), torch.zeros(7), []
    for number, values in enumerate([[0.7, -1.3, 2.0], [0.1, 0.0, -0.4]]):
        before = model.parameters.clone()
        points = half.ask(number, features)[:, 0]
        assert points.shape == (2 * K, 7)
        directions = (points[::2] - points[1::2]) / (2 * SMOOTHING)
        assert torch.allclose((points[::2] + points[1::2]) / 2, before.expand(K, 7), atol=1e-6)
        half.tell(number, features, torch.tensor(values))
        estimates = FACTORS.get(law, 1.0) * torch.tensor(values)[:, None] * directions
        velocity = momentum * velocity + estimates.mean(0)
        assert torch.allclose(model.parameters, before - 0.1 * velocity, atol=1e-5)
        seen += [*directions]
    for i, u in enumerate(seen):
        few = law in ("coordinate", "rademacher")  # of which there are 7, and 128
        assert few or all(not torch.allclose(u, other) for other in seen[:i])


def test_the_variance_falls_as_directions_rise(federations: SimpleNamespace) -> None:
    spread = []
    for count in (1, 4):
        method = Dpzv(smoothing=0.01, num_directions=count)
        rows, gradient = federations.estimates(method, 1000)
        spread.append(float(rows.var(0).sum()))
        error = rows.std(0) / math.sqrt(len(rows))
        assert torch.all((rows.mean(0) - gradient).abs() <= 5 * error + 2e-5)
    assert spread[0] / spread[1] == pytest.approx(4, rel=0.25)


def test_one_direction_is_what_it_was(
    federations: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However it is clipped: with the same noise too, the same frames and the same weights."""
    monkeypatch.setattr(ExperimentConfig, "digest", "the same")
    plain, tape = federations.ran("dpzv", changes=federations.GAUSSIAN)
    for clipping in ("each", "jointly"):
        one = {"method.num_directions": 1, "method.clipping": clipping}
        same, other = federations.ran("dpzv", changes={**federations.GAUSSIAN, **one})
        assert tape.seen == other.seen
        assert not federations.differences(plain.state(), same.state())


def test_directions_that_are_not_kept_give_the_same_update(
    federations: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawn again from their seeds, bit by bit; the embeddings differ by rounding alone."""

    def update(limit: int) -> tuple[Tensor, Tensor]:
        monkeypatch.setattr("vertizo.zeroth_order.directions.KEEP_UP_TO", limit)
        federation = federations.build("dpzv", changes={**SEVERAL, **momentum})
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


def slopes_of(federations: SimpleNamespace) -> tuple[Any, Tensor]:
    """A query of K strange pairs, and the slopes of each record along them, [batch, K]."""
    plain = federations.build("dpzv", changes=SEVERAL)
    query = federations.query(federations.ask(plain, 0))
    generator = torch.Generator().manual_seed(0)
    query = replace(query, embeddings=torch.randn(2 * K, 8, 3, generator=generator))
    rows = torch.zeros(2 * K, 8, plain.server.side.table.width)
    rows[..., :3] = query.embeddings
    labels = plain.data.labels["train"][query.ids]
    server = server_twin(federations, plain)
    at = torch.stack([losses(server, point, labels).detach() for point in rows])
    return query, ((at[::2] - at[1::2]) / (2 * SMOOTHING)).t()


@each("clipping", ["each", "jointly"])
def test_slopes_are_clipped_each_or_jointly(federations: SimpleNamespace, clipping: str) -> None:
    """One by one to ±C, or a record's K together to norm C: what makes K entries of them, or 1."""
    query, slopes = slopes_of(federations)
    clip = float(slopes.abs().median())
    plan = {"privacy.mechanism": "gaussian", "privacy.clip": clip, "privacy.noise_std": 1e-9}
    changes = {**SEVERAL, **plan, "method.clipping": clipping}
    federation = federations.build("dpzv", changes=changes)
    ((_, answer),) = federation.server.receive(federations.encoded(query))
    if clipping == "each":
        bounded = slopes.clamp(-clip, clip)
    else:
        bounded = slopes * (clip / slopes.norm(dim=1).clamp(min=clip))[:, None]
    assert not torch.allclose(bounded, slopes)
    told = federations.reply(answer).values
    assert told.tolist() == pytest.approx((bounded.sum(0) / 8).tolist(), abs=1e-5)
    counts = federations.charged(federation)
    assert counts[0, query.ids].tolist() == [K if clipping == "each" else 1] * 8
    assert int(counts.sum()) == 8 * (K if clipping == "each" else 1)


@each("clipping", ["each", "jointly"])
def test_every_scalar_has_noise_of_its_own(federations: SimpleNamespace, clipping: str) -> None:
    """With parties that stay, replies differ from those without noise by it alone."""
    still = {**SEVERAL, "control": "frozen", "server.update": "none", "epochs": 30}
    plan = {
        "method.clipping": clipping,
        "privacy.mechanism": "gaussian",
        "privacy.clip": 1e9,
        "privacy.noise_std": 4.0,
    }
    replies = []
    for changes in (still, {**still, **plan}):
        _, tape = federations.ran("dpzv", changes=changes)
        told = [m.values for *_, m in tape.messages() if isinstance(m, Reply)]
        replies.append(torch.stack(told))
    noise = (replies[1] - replies[0]).numpy() * 8 / 4
    assert noise.shape == (30 * 4 * 3, K)
    assert noise.std() == pytest.approx(1, abs=4 / math.sqrt(2 * noise.size))
    assert abs(noise.mean()) < 4 / math.sqrt(noise.size)
    correlations = np.corrcoef(noise.T) - np.eye(K)
    assert np.abs(correlations).max() < 4.5 / math.sqrt(len(noise))


@each("clipping, entries", [("each", K), ("jointly", 1)])
@each("timing", TIMINGS)
def test_the_noise_covers_every_entry_of_a_run(
    federations: SimpleNamespace, timing: str, clipping: str, entries: int
) -> None:
    """ε = 2 at M·E·K entries a record, all of which a whole run uses up."""
    epochs, clients, epsilon, delta, clip = 2, 3, 2.0, 1e-5, 0.5
    changes = {
        **SEVERAL,
        "method.clipping": clipping,
        "privacy.mechanism": "gaussian",
        "privacy.clip": clip,
        "privacy.epsilon": epsilon,
        "server.update": "none",
    }
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
