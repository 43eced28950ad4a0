"""Tangent queries against float64 by hand, and what a release of them can tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests import federations
from tests.federations import ADDITIVE
from tests.rows import each
from torch import Tensor

from vertizo.core.errors import ConfigError
from vertizo.core.randomness import Stream
from vertizo.methods.base import Outcome
from vertizo.methods.tangent import Tangent
from vertizo.models.architectures.networks import mlp
from vertizo.models.array import ArrayModel
from vertizo.models.torch import wrap
from vertizo.party.checks import with_tangents
from vertizo.protocol.messages import Query

CLASSES, DIM = 3, 3


def whole(query: Query, brought: dict[int, Query]) -> Query:
    """A query with the tangents that it left out; those of each client are kept."""
    if len(query.embeddings) == 1:
        query = with_tangents(query, brought[query.client])
    brought[query.client] = query
    return query


def test_a_round_by_hand() -> None:
    """The reply is the damped Newton step; the table is then where the client's model is."""
    federation = federations.build("tangent", None, ADDITIVE)
    side, labels = federation.server.side, federation.data.labels["train"]
    brought: dict[int, Query] = {}
    for client in (0, 1, 2, 0):
        frame = federations.ask(federation, client)
        query = whole(federations.query(frame), brought)
        ids, nominal = query.ids, 29
        table = side.table.values.clone()
        table[ids, DIM * client : DIM * (client + 1)] = query.embeddings[0]
        logits = table[ids].double().reshape(len(ids), 3, CLASSES).sum(1)
        slopes = logits.softmax(1) - torch.eye(CLASSES, dtype=torch.float64)[labels[ids]]
        along = query.embeddings[1:].double()
        mean = torch.einsum("knd,nd->k", along, slopes) / nominal
        step = mean * 5.0 / along.square().sum(2).mean(1)  # η = 5, without noise
        ((_, answer),) = federation.server.receive(frame)
        assert torch.allclose(federations.reply(answer).values.double(), step, atol=1e-5)
        federation.clients[client].tell(answer)
        now = federation.models[client](federation.data.features[client]["train"][ids])
        kept = side.table.values[ids, DIM * client : DIM * (client + 1)]
        assert torch.allclose(now, kept, atol=1e-5)
        assert not torch.allclose(now, query.embeddings[0], atol=1e-2)


@each("directions", ["principal", "orthonormal"])
def test_tangents_are_derivatives(directions: Any) -> None:
    """Of any model: exact where it has derivatives, by differences where it has none."""
    torch.manual_seed(0)
    features = torch.randn(9, 4)
    for hidden in ([], [torch.nn.Linear(6, 6), torch.nn.Tanh()]):
        module = torch.nn.Sequential(torch.nn.Linear(4, 6), *hidden, torch.nn.Linear(6, 2))
        model = wrap(module.double().float())
        side = federations.side_of(model, seed=3)
        method = Tangent(num_directions=4, directions=directions)
        sent = method.ask(side, 0, features)
        chosen = side.pending[1]
        assert torch.equal(sent[0], model(features))
        for direction, tangent in zip(chosen, sent[1:], strict=True):
            step = 1e-2 / float(direction.norm())
            plus, minus = model.along(direction, (step, -step), features)
            assert torch.allclose(tangent, (plus - minus) / (2 * step), atol=2e-3)


def test_a_bent_model_goes_to_where_its_step_promised() -> None:
    """Nearer than a long step along its tangents, which an affine model makes exactly."""
    for hidden in ((), (16,)):
        torch.manual_seed(1)
        features = torch.randn(300, 4)
        model = wrap(mlp(4, hidden, 1, final_relu=False))
        side = federations.side_of(model, seed=3)
        method, start = Tangent(num_directions=6), model.parameters.clone()
        sent, values = method.ask(side, 0, features), 5 * torch.randn(6)
        wanted = sent[0] - torch.einsum("knd,k->nd", sent[1:], values)
        straight = start - values @ side.pending[1]
        method.tell(side, 0, features, values)
        fitted = float((model(features) - wanted).square().mean())
        model.parameters.copy_(straight)
        plain = float((model(features) - wanted).square().mean())
        assert fitted < plain / 2 if hidden else max(fitted, plain) < 1e-8, (plain, fitted)


def test_principal_directions_are_those_of_largest_variance() -> None:
    torch.manual_seed(1)
    features = torch.randn(400, 5) * torch.tensor([5.0, 3.0, 1.0, 0.1, 0.01])
    side = federations.side_of(wrap(torch.nn.Linear(5, 1)))
    Tangent(num_directions=2, whitening=1.0).ask(side, 0, features)
    rows = torch.cat([features, torch.ones(400, 1)], 1)
    moved = rows @ side.pending[1].t()
    assert torch.allclose(moved.square().sum(1).mean(), torch.tensor(1.0), atol=1e-4)
    gram = moved.t() @ moved / 400
    assert torch.allclose(gram, torch.eye(2) / 2, atol=1e-3)  # whitened, and orthogonal
    assert side.pending[1][:, :2].norm(dim=0).min() > 3 * side.pending[1][:, 2:].norm()


def test_random_directions_take_all_bits_of_their_seed() -> None:
    """PyTorch's generator keeps 32 of them, few enough to search."""
    model = wrap(torch.nn.Linear(6, 1))
    low, chosen = 0x89ABCDEF, []
    for high in (0, 1, 1 << 31):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Stream, "seed", lambda self, counter=0, s=high << 32 | low: s)
            side = federations.side_of(model)
            method = Tangent(num_directions=2, directions="orthonormal")
            chosen.append(method.chosen(side, 0, torch.randn(5, 6)))
    assert not torch.equal(chosen[0], chosen[1])
    assert not torch.equal(chosen[0], chosen[2])


def test_a_client_without_derivatives_asks_along_random_directions() -> None:
    model = ArrayModel(lambda w, x: np.outer(x[:, 0], w[:1]) + w[1:].sum(), torch.zeros(4))
    side = federations.side_of(model)
    features = torch.randn(6, 2)
    sent = Tangent(num_directions=3, directions="orthonormal").ask(side, 0, features)
    wanted = features[:, 0] * side.pending[1][:, :1] + side.pending[1][:, 1:].sum(1, keepdim=True)
    assert torch.allclose(sent[1:, :, 0], wanted, atol=1e-3)
    with pytest.raises(ConfigError, match="use 'orthonormal'"):
        Tangent(num_directions=3).ask(side, 0, features)


def test_more_directions_than_parameters_are_zeros_that_move_nothing() -> None:
    side = federations.side_of(wrap(torch.nn.Linear(2, 1)))
    method, features = Tangent(num_directions=7), torch.randn(20, 2)
    sent = method.ask(side, 0, features)
    assert bool((sent[4:] == 0).all())
    query = Query(0, 0, torch.arange(20), sent)
    for noise in (0.0, 0.1):
        values = method.answered(query, torch.ones(7), noise).values
        assert bool(values.isfinite().all())
        assert bool((values[3:] == 0).all())


def test_directions_without_variance_are_left_out() -> None:
    """A feature that is twice another, and one that is constant: rounding must not become steps."""
    torch.manual_seed(0)
    first = torch.randn(300, 2)
    features = torch.cat([first, 2 * first[:, :1], torch.ones(300, 1)], 1)
    side = federations.side_of(wrap(torch.nn.Linear(4, 1)))
    method = Tangent(num_directions=5)
    sent = method.ask(side, 0, features)
    assert [bool(tangent.abs().max() > 1e-3) for tangent in sent[1:]] == [True] * 3 + [False] * 2
    query = Query(0, 0, torch.arange(300), sent)
    slopes = torch.einsum("knd,nd->k", sent[1:], torch.randn(300, 1)) / 300
    assert float(method.answered(query, slopes, 0.0).values.abs().max()) < 10


def searched(records: int, count: int) -> list[Tensor]:
    """Tangents that a malicious client may send: huge, tiny, cancelling, one-sided, not finite."""
    generator = torch.Generator().manual_seed(0)
    plain = torch.randn(count, records, DIM, generator=generator)
    lone = plain.clone()
    lone[:, 0] *= 1e30
    alike = torch.ones_like(plain) * 1e6 + 1e-3 * plain
    broken = plain.clone()
    broken[0, 0, 0], broken[1, 1, 1] = torch.inf, torch.nan
    sizes = [plain * size for size in (1e-38, 1e-20, 1.0, 1e3, 1e6, 3e38)]
    return [*sizes, lone, alike, -alike, broken]


def outcome(query: Query, losses: Tensor, slopes: Tensor) -> Outcome:
    """Those slopes, wherever they are asked for."""
    return Outcome(losses, losses, lambda: slopes, query, lambda: slopes)


def test_no_tangents_make_a_label_count_more_than_the_clip() -> None:
    """K numbers of a record are one release of sensitivity 2C, whatever the client sends."""
    clip, batch, count = 0.5, 29, 5
    noise = {"privacy.mechanism": "gaussian", "privacy.clip": clip, "privacy.noise_std": 1e-7}
    federation = federations.build("tangent", None, {**ADDITIVE, **noise})
    side, method = federation.server.side, federation.server.side.method
    ids = torch.arange(batch)
    for tangents in searched(batch, count):
        query = Query(0, 0, ids, torch.cat([torch.zeros(1, batch, DIM), tangents]))
        slopes = torch.randn(batch, DIM, generator=torch.Generator().manual_seed(1))
        released = []
        for other in (slopes[0], -slopes[0], 1e6 * slopes[0], torch.full((DIM,), torch.nan)):
            changed = slopes.clone()
            changed[0] = other
            told = method.told(outcome(query, slopes, changed))
            released.append(side.plan.total(told).double())
        for noise in (0.0, 1e-30, 1e-3):
            answered = method.answered(query, released[0].float(), noise)
            assert bool(answered.values.isfinite().all())
            assert bool(answered.moved.isfinite().all()) or not bool(tangents.isfinite().all())
        for one in released:
            for another in released:
                assert float((one - another).norm()) * batch <= 2 * clip * (1 + 1e-4) + 1e-5


def test_random_directions_keep_a_record_out_of_what_others_get() -> None:
    """Tangents of one record, however large, change no step and no other record's row."""
    ids, released = torch.arange(20), torch.randn(4)
    along = torch.randn(4, 20, DIM)
    for directions, mixes in (("orthonormal", False), ("principal", True)):
        method = Tangent(num_directions=4, directions=directions)
        assert method.mixes_features is mixes
        first = method.answered(Query(0, 0, ids, torch.cat([along[:1], along])), released, 0.1)
        for size in (0.0, -1.0, 1e6):
            other = along.clone()
            other[:, 7] *= size
            changed = Query(0, 0, ids, torch.cat([along[:1], other]))
            second = method.answered(changed, released, 0.1)
            same = torch.equal(first.values, second.values)
            others = ids != 7
            same = same and torch.equal(first.moved[others], second.moved[others])
            assert same is (not mixes or size == -1.0), (directions, size)


def test_a_query_is_one_release_whatever_k_is() -> None:
    spent = []
    for count in (1, 40):
        changes = {**ADDITIVE, **federations.GAUSSIAN, "method.num_directions": count}
        federation, _ = federations.ran("tangent", None, changes)
        assert federation.releases.per_query == 1
        spent.append(federations.charged(federation))
    assert torch.equal(*spent)
    assert bool((spent[0] == 2).all())  # once an epoch


def test_the_step_shrinks_where_noise_hides_it() -> None:
    method, ids = Tangent(num_directions=2), torch.arange(50)
    along = torch.ones(2, 50, 1) * torch.tensor([1.0, 0.01])[:, None, None]
    query = Query(0, 0, ids, torch.cat([torch.zeros(1, 50, 1), along]))
    released = torch.tensor([0.1, 0.001])
    free = method.answered(query, released, 0.0).values
    assert torch.allclose(free, torch.tensor([0.5, 50.0]), rtol=1e-4)
    noised = method.answered(query, released, 0.01).values
    assert float(noised[0]) == pytest.approx(0.5, rel=1e-2)
    assert float(noised[1]) < 0.1
