"""What is compared for its speed is the same computation: same losses, same parameters."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from ways import house, plain_torch, products
from ways.plain_torch import Loop
from ways.setting import SHAPES, VARIANTS, Records, Setting, Shape, Variant

from vertizo.methods.czofo import Czofo
from vertizo.run.loop.federation import Federation

ROUNDS = 9
ROUNDING = 0.005
"""Of what was moved by, in all rounds; a slope divides a rounding error by the smoothing."""
SMALL = {
    "mnist": Shape("mnist", 2, 12, (), 5, (7,), 4),
    "two-layer": Shape("two-layer", 2, 12, (9,), 5, (7,), 4),
    "table": Shape("table", 3, 6, (), 4, (), 2),
}
SETTINGS = [
    pytest.param(
        Setting(variant, shape, 16, 0.05, client_rate=0.1, server_rate=0.1, directions=3),
        id=f"{variant.name} {shape.name}",
    )
    for variant, shape in itertools.product(VARIANTS.values(), SMALL.values())
]


def small_records(shape: Shape) -> Records:
    generator = torch.Generator().manual_seed(1)
    features = tuple(
        torch.randn(100, shape.columns, generator=generator) for _ in range(shape.clients)
    )
    return Records(features, torch.arange(100) % shape.classes, "noise")


def split(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """A flat vector in the shapes of some weights."""
    parts = flat.split([w.numel() for w in like])
    return [part.view_as(w).clone() for part, w in zip(parts, like, strict=True)]


def drawn(setting: Setting, made: Federation, loop: Loop, m: int) -> list[Tensor]:
    """The directions of Vertizo's next round, of client m."""
    client, side = made.clients[m], made.server.side
    number = client.answered
    if setting.variant.method == "vafl":
        return []
    if setting.variant.method == "czofo":
        method = Czofo(num_directions=setting.directions)
        embeddings = torch.empty(setting.batch, setting.shape.outputs)
        return [method.drawn(side.shared[m], number, embeddings)[0]]
    pair: Any = client.pair
    (own_side,) = pair.ask.args
    u = own_side.directions(setting.variant.law).draw(number)
    found = split(u.numbers() * u.scale, loop.weights[m])
    if setting.variant.method == "zoo-vfl":
        update: Any = side.update
        own = update.directions.draw(update.steps)
        found += split(own.numbers() * own.scale, loop.server_weights)
    return found


def put(weights: Sequence[Tensor], flat: Tensor) -> None:
    with torch.no_grad():
        for w, values in zip(weights, split(flat, weights), strict=True):
            w.copy_(values)


def flat(weights: Sequence[Tensor]) -> Tensor:
    return torch.cat([w.detach().flatten() for w in weights])


def same_move(here: Tensor, there: Tensor, began: Tensor) -> None:
    """Both moved, to the same place."""
    assert (here - there).norm() <= ROUNDING * (there - began).norm()
    assert not torch.equal(there, began)


Known = tuple[int, Tensor, list[Tensor], float]


def side_by_side(setting: Setting) -> Iterator[tuple[Federation, Loop, Known]]:
    """Vertizo and the loop from the same parameters on; what a round was made of, and its
    loss."""
    data = small_records(setting.shape)
    made = house.federation(setting, data)
    loop = plain_torch.loop(setting, data)
    for weights, model in zip(loop.weights, made.models, strict=True):
        put(weights, model.parameters)
    put(loop.server_weights, made.server.side.model.parameters)
    yield made, loop, (0, torch.empty(0), [], 0.0)
    for _ in range(ROUNDS):
        m = made.simulator.state()["events"][0][2]
        ids = made.clients[m].open_ids
        assert ids is not None
        directions = drawn(setting, made, loop, m)
        made.server.side.meter.reset()
        made.simulator.step()
        yield made, loop, (m, ids, directions, made.server.side.meter.loss / len(ids))


@pytest.mark.full
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_plain_loop_makes_the_rounds_of_the_house(setting: Setting) -> None:
    rounds = side_by_side(setting)
    made, loop, _ = next(rounds)
    before = [flat(weights).clone() for weights in (*loop.weights, loop.server_weights)]
    for _, _, (m, ids, directions, loss) in rounds:
        assert loop.round(m, ids, directions) == pytest.approx(loss, rel=1e-5)
    ours = [*(model.parameters for model in made.models), made.server.side.model.parameters]
    for there, weights, began in zip(
        ours, (*loop.weights, loop.server_weights), before, strict=True
    ):
        same_move(flat(weights), there, began)
    table = made.server.side.table.values
    assert table.any()
    torch.testing.assert_close(loop.table.transpose(0, 1).flatten(1), table, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("setting", SETTINGS)
def test_jax_makes_the_rounds_of_the_house(setting: Setting) -> None:
    pytest.importorskip("jax", reason="JAX comes with the extra bench")
    from ways import in_jax

    def weights(parts: Sequence[Tensor]) -> in_jax.Weights:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        return [
            (in_jax.jnp.asarray(w.t().numpy()), in_jax.jnp.asarray(b.numpy())) for w, b in pairs
        ]

    data = small_records(setting.shape)
    rounds = side_by_side(setting)
    made, loop, _ = next(rounds)
    before = [flat(weights).clone() for weights in (*loop.weights, loop.server_weights)]
    state = in_jax.start(setting, len(data.labels))._replace(
        clients=[weights([w.detach() for w in each]) for each in loop.weights],
        server=weights([w.detach() for w in loop.server_weights]),
    )
    one_round = in_jax.ROUNDS[setting.variant.method]
    for _, _, (m, ids, directions, loss) in rounds:
        u: Any = None
        if setting.variant.method == "czofo":
            u = in_jax.jnp.asarray(directions[0].numpy())
        elif setting.variant.method == "zoo-vfl":
            own = len(loop.weights[m])
            u = weights(directions[:own]), weights(directions[own:])
        elif directions:
            u = weights(directions)
        x, y = data.features[m][ids], data.labels[ids]
        asked = [in_jax.jnp.asarray(each.numpy()) for each in (ids, x, y)]
        state, found = one_round(setting, m, state, asked[0], u, *asked[1:])
        assert float(found) == pytest.approx(loss, rel=1e-5)

    def back(there: in_jax.Weights) -> Tensor:
        parts = [torch.tensor(each.__array__()) for w, b in there for each in (w.T, b)]
        return flat(parts)

    found_there = [*map(back, state.clients), back(state.server)]
    ours = [*(model.parameters for model in made.models), made.server.side.model.parameters]
    for here, there, began in zip(found_there, ours, before, strict=True):
        same_move(here, there, began)
    table = torch.tensor(state.table.__array__())
    torch.testing.assert_close(table, made.server.side.table.values, rtol=1e-3, atol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("setting", SETTINGS)
def test_every_way_goes_on_by_itself(setting: Setting) -> None:
    data = small_records(setting.shape)
    ways = [house.rounds(setting, data), plain_torch.rounds(setting, data)]
    assert all(way() + way() >= 2 for way in (*ways, products.rounds(setting)))


def test_all_settings_are_tested() -> None:
    assert SMALL.keys() == SHAPES.keys()
    for name, shape in SHAPES.items():
        small = SMALL[name]
        assert (shape.clients, len(shape.client_layers), len(shape.server_layers)) == (
            small.clients,
            len(small.client_layers),
            len(small.server_layers),
        )


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=lambda variant: variant.name)
def test_jax_goes_on_by_itself(variant: Variant, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax", reason="JAX comes with the extra bench")
    from ways import in_jax

    monkeypatch.setattr(in_jax, "AT_ONCE", 96)
    setting = Setting(variant, SMALL["mnist"], 16)
    some = in_jax.rounds(setting, small_records(setting.shape))
    assert (some(), some()) == (6, 6)
