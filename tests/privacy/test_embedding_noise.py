"""Noise on embeddings: its distribution, its figures, and what is said of it."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from tests import federations as fed
from tests.laws import plausible
from torch import Tensor

from vertizo.core.randomness import Stream
from vertizo.privacy.accounting.gaussian import epsilon_of
from vertizo.privacy.noise.embedding import EmbeddingNoise, account, noise_std_for_embeddings
from vertizo.protocol import wire
from vertizo.protocol.messages import Query, Upload
from vertizo.zeroth_order.directions import LAWS, Directions, record_directions

CLIP, SIGMA = 2.0, 0.7
RECORDS, BATCH, EPOCHS = 29, 8, 2


def noise(seed: int = 0, clip: float = CLIP, std: float = SIGMA) -> EmbeddingNoise:
    return EmbeddingNoise(clip, std, Stream.from_seed(seed).child("noise"))


def inside(*shape: int) -> Tensor:
    """Embeddings of norms far below C."""
    return torch.linspace(-1, 1, math.prod(shape)).view(shape) / math.sqrt(shape[-1])


def test_noise_is_normal_of_the_given_size() -> None:
    for points in [1, 2]:
        h, made = inside(points, 8, 5), noise()
        sample = torch.stack([made.release(n, h) - h for n in range(200)]).double().numpy().ravel()
        assert plausible(sample, SIGMA)
        assert not plausible(sample, 0.95 * SIGMA)
        assert not plausible(sample, 1.05 * SIGMA)


def test_every_number_of_a_query_has_noise_of_its_own() -> None:
    """Points, records and coordinates: none shares what another got."""
    made, h = noise(), inside(2, 4, 3)
    rows = torch.stack([made.release(n, h) - h for n in range(1500)]).flatten(1).double().numpy()
    correlations = np.corrcoef(rows.T) - np.eye(rows.shape[1])
    assert np.abs(correlations).max() < 5 / math.sqrt(len(rows))
    lagged = np.corrcoef(rows[:-1].ravel(), rows[1:].ravel())[0, 1]  # of query after query
    assert abs(lagged) < 5 / math.sqrt(rows.size)


def test_a_number_stands_for_one_noise_whatever_it_hides() -> None:
    h = inside(1, 8, 5)
    one = noise().release(3, h)
    assert torch.equal(one, noise().release(3, h))
    assert torch.allclose(one - h, noise().release(3, -h) + h, atol=1e-6)
    for other in (noise().release(4, h), noise(seed=1).release(3, h)):
        assert not torch.equal(one, other)


def test_embeddings_are_clipped_record_by_record() -> None:
    h = torch.tensor([[[0.3, -0.4], [30.0, -40.0], [math.nan, 1.0], [math.inf, 0.0], [0.0, 0.0]]])
    wanted = torch.tensor([[[0.3, -0.4], [1.2, -1.6], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]])
    made = noise(std=1e-9)
    assert torch.allclose(made.clipped(h), wanted, atol=1e-6)
    assert torch.allclose(made.release(0, h), wanted, atol=1e-6)
    assert torch.allclose(made.release_upload(0, h[0]), wanted[0], atol=1e-6)
    assert made.release(0, h).dtype == h.dtype
    generator = torch.Generator().manual_seed(0)
    many = made.clipped(100 * torch.randn(2, 50, 7, generator=generator))
    assert float(many.norm(dim=2).max()) <= CLIP * (1 + 1e-6)


def test_uploads_and_queries_share_no_noise() -> None:
    h, made = inside(8, 5), noise()
    uploaded = made.release_upload(0, h) - h
    for number in range(4):
        asked = made.release(number, h.unsqueeze(0))[0] - h
        assert not torch.allclose(uploaded, asked)
        assert number == 0 or not torch.allclose(uploaded, made.release_upload(number, h) - h)


def test_noise_and_directions_of_one_seed_are_unrelated() -> None:
    """Even if both came of one stream by mistake; and in a federation they come of two."""
    for law in LAWS:
        size, stream = 4000, Stream.from_seed(0)
        made = EmbeddingNoise(CLIP, 1.0, stream)
        hidden = made.release(0, torch.zeros(1, 1, size)).flatten()
        u = torch.zeros(size)
        Directions(law, size, stream).draw(0).add_to(u, 1.0)
        rows, _ = record_directions(law, 1, size // 5, 5, stream.seed(0))
        for other in (u, rows.flatten()):
            if float(other.count_nonzero()) > 1000:
                assert abs(float(torch.corrcoef(torch.stack([hidden, other]))[0, 1])) < 0.08


def queries(tape: Any) -> list[Query]:
    return [message for *_, message in tape.messages() if isinstance(message, Query)]


def test_only_embeddings_are_noised() -> None:
    """The first query of every client: what it would have sent, clipped, and noise."""
    for method in ["vafl", "czofo", "zoo-vfl"]:
        plain = fed.build(method)
        noised = fed.build(method, changes=fed.EMBEDDING_NOISE)
        quiet = {**fed.EMBEDDING_NOISE, "privacy.noise_std": 1e-9}
        clipped = fed.build(method, changes=quiet)
        for client in range(3):
            asked, hidden, inner = (
                fed.query(fed.ask(federation, client)) for federation in (plain, noised, clipped)
            )
            assert torch.equal(asked.ids, hidden.ids)
            norms = asked.embeddings.norm(dim=2, keepdim=True)
            expected = asked.embeddings * (0.5 / norms.clamp(min=0.5))
            assert torch.allclose(inner.embeddings, expected, atol=1e-6)
            sample = (hidden.embeddings - expected).double().numpy().ravel()
            assert 0.05 < sample.std() < 0.7
        rates = {"server.optimizer.learning_rate": 0.01, "epochs": 20, "control": "frozen"}
        sent = fed.ran(method, changes={**rates, **fed.EMBEDDING_NOISE})[1]
        means = fed.ran(method, changes={**rates, **quiet})[1]
        pairs = zip(queries(sent), queries(means), strict=True)
        sample = torch.cat([(a.embeddings - b.embeddings).flatten() for a, b in pairs])
        assert plausible(sample.double().numpy(), 0.3)


def test_each_client_has_noise_of_its_own() -> None:
    made = fed.build("vafl", changes=fed.EMBEDDING_NOISE)
    found = [client.noise.release(0, torch.zeros(1, 8, 3)) for client in made.clients]
    for i, one in enumerate(found):
        assert all(not torch.allclose(one, other) for other in found[:i])


def test_a_query_that_is_sent_again_is_the_same_bytes() -> None:
    """So that noise cannot be averaged away, not even by a server that loses queries."""
    federation = fed.build("vafl", changes=fed.EMBEDDING_NOISE)
    frame = fed.ask(federation, 1)
    assert fed.ask(federation, 1) == frame
    held = fed.client_holds(federation, 1)
    fresh = fed.build("vafl", changes=fed.EMBEDDING_NOISE)
    assert fed.ask(fresh, 1) == frame  # made again from nothing but the seed and the number
    fed.restore_client(fresh, 1, held)
    assert fed.ask(fresh, 1) == frame
    fed.converse(federation, [1])
    following = fed.query(fed.ask(federation, 1))
    assert following.number == 1
    assert not torch.allclose(following.embeddings, fed.query(frame).embeddings)


def test_the_clients_own_gradient_is_untouched() -> None:
    """Back-propagation goes through what the model said, not through what was sent."""
    models = []
    for changes in ({}, fed.EMBEDDING_NOISE):
        federation = fed.build("vafl", changes=changes)
        half, model = federation.clients[0].pair, federation.models[0]
        features = federation.data.features[0]["train"][:8]
        half.ask(0, features)
        half.tell(0, features, inside(8, 3))
        models.append(model.parameters)
    assert torch.equal(*models)


def test_figures() -> None:
    """``μ = 2C√k/σ``; the published one has a further ``√(B/D)``."""
    for delta, (clip, std, k, sampling) in product(
        [1e-5, 1e-3], [(1, 5, 20, 0.1), (0.5, 8, 300, 0.004)]
    ):
        found = account(clip, std, delta, releases=k, sampling=sampling)
        mu = 2 * clip * math.sqrt(k) / std
        assert found.mu == pytest.approx(mu, rel=1e-12)
        assert found.epsilon == pytest.approx(epsilon_of(mu, delta), rel=1e-6)
        published = epsilon_of(mu * math.sqrt(sampling), delta)
        assert found.epsilon_published == pytest.approx(published, rel=1e-6)
        assert (found.clip, found.noise_std, found.delta, found.releases) == (clip, std, delta, k)


def test_noise_for_a_target() -> None:
    for published in [False, True]:
        std = noise_std_for_embeddings(1.5, 0.8, releases=60, sampling=0.02, published=published)
        expected = 2 * 1.5 * math.sqrt(60) / 0.8 * (math.sqrt(0.02) if published else 1)
        assert std == pytest.approx(expected, rel=1e-12)


def calibrated(method: str = "vafl", **changes: Any) -> Any:
    tree = {"privacy.mechanism": "embedding-noise", "privacy.clip": 0.5, "privacy.epsilon": 3.0}
    more = {key.replace("__", "."): value for key, value in changes.items()}
    return fed.build(method, changes=tree | more)


def test_every_embedding_of_a_record_counts() -> None:
    """All points of every query, and the table's upload, are releases of it."""
    for table, (method, points) in product(
        ["zeros", "upload"], [("vafl", 1), ("czofo", 1), ("zoo-vfl", 2), ("dpzv", 2), ("dpzv", 6)]
    ):
        more = {"method__num_directions": points // 2} if points > 2 else {}
        statement = calibrated(method, simulation__table=table, **more).embedding_noise
        k = EPOCHS * points + (table == "upload")
        assert statement.releases == k
        assert statement.epsilon == pytest.approx(3.0, rel=1e-9)
        assert statement.noise_std == pytest.approx(2 * 0.5 * math.sqrt(k) / statement.mu, rel=1e-9)
        assert statement.epsilon_published < 3


def test_as_many_were_sent_as_were_counted() -> None:
    changes = {**fed.EMBEDDING_NOISE, "simulation.table": "upload"}
    tape = fed.Tape()
    federation = fed.build("zoo-vfl", changes=changes, observer=tape)
    federation.start(upload_table=True)
    fed.go_on(federation)
    sent = torch.ones(3, RECORDS)  # the uploads
    for query in queries(tape):
        sent[query.client, query.ids] += query.embeddings.shape[0]
    assert torch.equal(sent, torch.full_like(sent, federation.embedding_noise.releases))


def test_the_published_calibration_gives_less_noise() -> None:
    exact = calibrated().embedding_noise
    published = calibrated(privacy__accounting="published").embedding_noise
    assert published.epsilon_published == pytest.approx(3.0, rel=1e-9)
    assert published.noise_std / exact.noise_std == pytest.approx(math.sqrt(BATCH / RECORDS))
    assert published.epsilon > 3


def test_the_noise_is_that_of_the_statement() -> None:
    federation = calibrated(epochs=20)
    std = federation.embedding_noise.noise_std
    made = federation.clients[2].noise
    zeros = torch.zeros(1, 8, 3)
    sample = torch.stack([made.release(n, zeros) for n in range(200)])
    assert plausible(sample.double().numpy().ravel(), std)


def test_a_statement_promises_nothing_and_names_both_figures() -> None:
    federation = calibrated()
    statement, own = federation.statement(), federation.embedding_noise
    assert (statement.guarantee, statement.epsilon, statement.mu) == ("none", None, None)
    assert statement.words.startswith("No privacy guarantee")
    for words in (
        "labels are not protected",
        "ε = 3 at δ = 1e-05",
        f"published formula, which does not hold: {own.epsilon_published:.4g}",
    ):
        assert words in statement.words
    named = ("noise_std", "mu", "epsilon", "epsilon_published")
    known = {"clip": 0.5, "delta": 1e-5, "releases": EPOCHS, "simulated": True}
    assert own.as_dict() == known | {name: getattr(own, name) for name in named}
    secret = replace(own, simulated=False).words()
    for words in ("simulated ε = 3", "the noise follows from the run's seed"):
        assert words in statement.words
        assert words not in secret
    assert "ideal Gaussian noise" in secret, "it is on no grid, and its seeds have 64 bits"
    for update in ["sgd", "none"]:  # no server makes it a guarantee
        federation = fed.build("vafl", changes={**fed.EMBEDDING_NOISE, "server.update": update})
        assert federation.statement().guarantee == "none"
    # Without the mechanism nothing is stated.
    assert fed.build("vafl").embedding_noise is None
    assert fed.build("vafl", changes=fed.GAUSSIAN).embedding_noise is None


def test_uploads_for_the_table_carry_noise_and_those_for_scores_do_not() -> None:
    federation = fed.build("vafl", changes=fed.EMBEDDING_NOISE)
    client, model = federation.clients[1], federation.models[1]

    def uploaded(purpose: Any, start: int, stop: int) -> Tensor:
        message = wire.decode(client.upload(purpose, start, stop), fed.CODEC)
        assert isinstance(message, Upload)
        return message.embeddings[0]

    for purpose in ("train", "validation", "test"):
        h = model(federation.data.features[1][purpose])
        clipped = h * (0.5 / h.norm(dim=1, keepdim=True).clamp(min=0.5))
        seen = uploaded(purpose, 0, len(h))
        assert torch.allclose(seen, clipped, atol=1e-6) == (purpose != "train")
        assert torch.equal(seen, uploaded(purpose, 0, len(h)))
        if purpose == "train":
            first, second = uploaded("train", 0, 14), uploaded("train", 14, 28)
            assert not torch.allclose(first - clipped[:14], second - clipped[14:28])


def test_two_runs_of_one_seed_are_the_same_and_of_two_are_not() -> None:
    one, same, other = (
        fed.ran("vafl", changes={**fed.EMBEDDING_NOISE, "seed": seed})[1].seen for seed in (0, 0, 1)
    )
    assert one == same != other
