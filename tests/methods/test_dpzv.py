"""DPZV against plain PyTorch in float64, and what only a zeroth-order method can train."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vertizo.federation import Federation
from vertizo.messages import Reply
from vertizo.methods.base import ClientSide
from vertizo.methods.dpzv import Dpzv
from vertizo.models.array import ArrayModel
from vertizo.models.optimizers import Sgd
from vertizo.randomness import Stream
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
    return federations.twin(federation.server.side.head.parameters, widths)


@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_rounds_by_hand(federations: SimpleNamespace, timing: str, momentum: float) -> None:
    """Every reply, table entry and server step of a run, short batches included."""
    changes = {**LARGE, "server.optimizer.momentum": momentum}
    federation = federations.build("dpzv", timing, changes)
    side, nominal, rate = federation.server.side, 8, 0.1
    labels = federation.data.labels["table"]
    order = [0, 1, 2] if timing == "synchronous" else [1]
    velocity = torch.zeros_like(side.head.parameters, dtype=torch.float64)
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
        assert torch.allclose(side.head.parameters.double(), stepped, atol=1e-6)

        for client, answer in answers:
            federation.clients[client].tell(answer)
        if timing == "asynchronous":
            order = [(round_ * 2) % 3]
    assert sizes == {8, 29 % 8}


def bare(law: str, dimension: int, optimizer: Sgd) -> tuple[Any, ArrayModel]:
    """A client whose embedding is its parameters: perturbations can be read off."""
    model = ArrayModel(lambda w, x: np.repeat(w[None], len(x), 0), torch.linspace(-1, 1, dimension))
    method = Dpzv(smoothing=SMOOTHING, directions=law)
    return method.client(ClientSide(model, optimizer, Stream.from_seed(5))), model


NORMS = {"sphere": 1.0, "scaled-sphere": math.sqrt(7), "rademacher": math.sqrt(7), "coordinate": 1}
FACTORS = {"sphere": 7.0, "coordinate": 7.0}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
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


@pytest.mark.parametrize("law", LAWS)
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


@pytest.mark.parametrize("seed", [0, 1, 2])
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
    labels = plain.data.labels["table"][query.ids]
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
