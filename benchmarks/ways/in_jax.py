"""The same methods in JAX: many rounds compiled into one program (`jax.jit`, `lax.scan`).

Batches, directions (`jax.random`), gathers and updates of the table are all inside the program, and
its state is donated, so that nothing is copied between calls. Written for comparison only; the
extra ``[bench]`` brings JAX.

One thread: import this where the process is bound to one core (`report.one_core`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import jax
import jax.numpy as jnp
from report import Rounds

from ways.setting import Records, Setting

Array = Any
"""A `jax.Array`."""
Weights = list[tuple[Array, Array]]
"""[inputs, outputs] and [outputs] of every layer."""
Round = Callable[..., tuple["State", Array]]
AT_ONCE = 16_384
"""Records of the rounds of one call, about."""


class State(NamedTuple):
    """What a run changes."""

    clients: list[Weights]
    server: Weights
    table: Array
    """Embeddings side by side, [records, clients · d_h]."""


def init(key: Array, layers: Sequence[tuple[int, int]]) -> Weights:
    """Uniform, as PyTorch begins."""
    weights = []
    for place, (before, after) in enumerate(layers):
        a, b = jax.random.split(jax.random.fold_in(key, place))
        bound = before**-0.5
        weights.append(
            (
                jax.random.uniform(a, (before, after), minval=-bound, maxval=bound),
                jax.random.uniform(b, (after,), minval=-bound, maxval=bound),
            )
        )
    return weights


def start(setting: Setting, records: int) -> State:
    """First parameters, and a table of zeros."""
    shape, key = setting.shape, jax.random.key(0)
    return State(
        [init(jax.random.fold_in(key, m), shape.client_layers) for m in range(shape.clients)],
        init(jax.random.fold_in(key, shape.clients), shape.server_layers),
        jnp.zeros((records, shape.clients * shape.outputs)),
    )


def outputs(weights: Weights, x: Array) -> Array:
    """Linear layers with ReLU between."""
    *hidden, (w, b) = weights
    for v, c in hidden:
        x = jax.nn.relu(x @ v + c)
    return x @ w + b


def each_loss(server: Weights, joined: Array, y: Array) -> Array:
    """Cross-entropies, [records]."""
    scores = jax.nn.log_softmax(outputs(server, joined))
    return -jnp.take_along_axis(scores, y[:, None], 1, mode="promise_in_bounds")[:, 0]


def mean_loss(server: Weights, joined: Array, y: Array) -> Array:
    """Their mean."""
    return each_loss(server, joined, y).mean()


def moved(weights: Weights, directions: Weights, by: Array | float) -> Weights:
    """``w + by · u``."""
    return jax.tree.map(lambda w, u: w + by * u, weights, directions)  # type: ignore[no-any-return]


def like(law: str, key: Array, weights: Weights) -> Weights:
    """Normal numbers or signs in the weights' shapes."""
    leaves, tree = jax.tree.flatten(weights)
    draw = jax.random.rademacher if law == "rademacher" else jax.random.normal
    keys = jax.random.split(key, len(leaves))
    drawn = [draw(k, w.shape, w.dtype) for k, w in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(tree, drawn)  # type: ignore[no-any-return]


def rows(array: Array, ids: Array) -> Array:
    """Rows that are known to be there."""
    return array.at[ids].get(mode="promise_in_bounds")


def join(known: Array, m: int, own: Array) -> Array:
    """The server's input: what is known of all clients, one's embeddings replaced."""
    first, size = m * own.shape[1], own.shape[1]
    return jnp.concatenate([known[:, :first], own, known[:, first + size :]], 1)


def stored(table: Array, ids: Array, joined: Array) -> Array:
    """The table with whole rows replaced.

    Rows that were read just before: written in any other way the table is copied every round, and
    a round takes up to five times as long. A record that was drawn twice has the same row twice.
    """
    return table.at[ids].set(joined, mode="promise_in_bounds", unique_indices=True)


def replaced(clients: list[Weights], m: int, own: Weights) -> list[Weights]:
    """All clients' weights, one's replaced."""
    return [own if k == m else weights for k, weights in enumerate(clients)]


def cascaded(
    setting: Setting, m: int, state: State, ids: Array, u: Weights, x: Array, y: Array
) -> tuple[State, Array]:
    """Forward differences at clients, gradients at the server."""
    clients, server, table = state
    known = rows(table, ids)
    plain = outputs(clients[m], x)
    shifted = outputs(moved(clients[m], u, setting.smoothing), x)
    joined = join(known, m, plain)
    shifted_loss = mean_loss(server, join(known, m, shifted), y)
    loss, slopes = jax.value_and_grad(mean_loss)(server, joined, y)
    step = -setting.client_rate * (shifted_loss - loss) / setting.smoothing
    return State(
        replaced(clients, m, moved(clients[m], u, step)),
        moved(server, slopes, -setting.server_rate),
        stored(table, ids, joined),
    ), loss


def dpzv(
    setting: Setting, m: int, state: State, ids: Array, u: Weights, x: Array, y: Array
) -> tuple[State, Array]:
    """Differences between both sides at clients; the server's gradient at their middle."""
    clients, server, table = state
    known = rows(table, ids)
    plus = outputs(moved(clients[m], u, setting.smoothing), x)
    minus = outputs(moved(clients[m], u, -setting.smoothing), x)
    middle = (plus + minus) / 2
    loss_plus = mean_loss(server, join(known, m, plus), y)
    loss_minus = mean_loss(server, join(known, m, minus), y)
    joined = join(known, m, middle)
    loss, slopes = jax.value_and_grad(mean_loss)(server, joined, y)
    step = -setting.client_rate * (loss_plus - loss_minus) / (2 * setting.smoothing)
    return State(
        replaced(clients, m, moved(clients[m], u, step)),
        moved(server, slopes, -setting.server_rate),
        stored(table, ids, joined),
    ), loss


def zoo_vfl(
    setting: Setting,
    m: int,
    state: State,
    ids: Array,
    u: tuple[Weights, Weights],
    x: Array,
    y: Array,
) -> tuple[State, Array]:
    """Forward differences at clients and server."""
    clients, server, table = state
    known = rows(table, ids)
    own, servers = u
    plain = outputs(clients[m], x)
    shifted = outputs(moved(clients[m], own, setting.smoothing), x)
    joined = join(known, m, plain)
    loss = mean_loss(server, joined, y)
    client_loss = mean_loss(server, join(known, m, shifted), y)
    server_loss = mean_loss(moved(server, servers, setting.smoothing), joined, y)
    client_step = -setting.client_rate * (client_loss - loss) / setting.smoothing
    server_step = -setting.server_rate * (server_loss - loss) / setting.smoothing
    return State(
        replaced(clients, m, moved(clients[m], own, client_step)),
        moved(server, servers, server_step),
        stored(table, ids, joined),
    ), loss


def czofo(
    setting: Setting, m: int, state: State, ids: Array, u: Array, x: Array, y: Array
) -> tuple[State, Array]:
    """Zeroth order at the embeddings, gradients on either side of them."""
    clients, server, table = state
    known = rows(table, ids)
    count, _, dimension = u.shape
    plain, pull_back = jax.vjp(lambda w: outputs(w, x), clients[m])
    joined = join(known, m, plain)
    loss, slopes = jax.value_and_grad(mean_loss)(server, joined, y)
    losses = jax.vmap(
        lambda v: mean_loss(server, join(known, m, plain + setting.smoothing * v), y)
    )(u)
    gradient = jnp.tensordot((losses - loss) / setting.smoothing, u, 1) * (dimension / count)
    (steps,) = pull_back(gradient)
    return State(
        replaced(clients, m, moved(clients[m], steps, -setting.client_rate)),
        moved(server, slopes, -setting.server_rate),
        stored(table, ids, joined),
    ), loss


def vafl(
    setting: Setting, m: int, state: State, ids: Array, u: None, x: Array, y: Array
) -> tuple[State, Array]:
    """Gradients everywhere."""
    clients, server, table = state
    known = rows(table, ids)

    def whole(weights: tuple[Weights, Weights]) -> tuple[Array, Array]:
        embeddings = outputs(weights[0], x)
        return mean_loss(weights[1], join(known, m, embeddings), y), embeddings

    (loss, embeddings), slopes = jax.value_and_grad(whole, has_aux=True)((clients[m], server))
    return State(
        replaced(clients, m, moved(clients[m], slopes[0], -setting.client_rate)),
        moved(server, slopes[1], -setting.server_rate),
        stored(table, ids, join(known, m, embeddings)),
    ), loss


ROUNDS: dict[str, Round] = {
    "cascaded": cascaded,
    "dpzv": dpzv,
    "zoo-vfl": zoo_vfl,
    "czofo": czofo,
    "vafl": vafl,
}


def draw(setting: Setting, m: int, state: State, key: Array) -> Any:
    """The directions of one round."""
    law = setting.variant.law
    if setting.variant.method == "vafl":
        return None
    if setting.variant.method == "zoo-vfl":
        return like(law, key, (state.clients[m], state.server))  # type: ignore[arg-type]
    if setting.variant.method == "czofo":
        shape = (setting.directions, setting.batch, setting.shape.outputs)
        u = jax.random.normal(key, shape)
        return u / jnp.linalg.norm(u, axis=2, keepdims=True)
    return like(law, key, state.clients[m])


def rounds(setting: Setting, data: Records) -> Rounds:
    """Rounds of all clients in turn, some hundred records' worth of them a call."""
    clients, count = setting.shape.clients, len(data.labels)
    each = max(1, AT_ONCE // (setting.batch * clients))
    round_ = ROUNDS[setting.variant.method]

    def body(features: list[Array], labels: Array, state: State, key: Array) -> Any:
        for m in range(clients):
            for_ids, for_directions = jax.random.split(jax.random.fold_in(key, m))
            ids = jax.random.randint(for_ids, (setting.batch,), 0, count)
            u = draw(setting, m, state, for_directions)
            x, y = rows(features[m], ids), rows(labels, ids)
            state, _ = round_(setting, m, state, ids, u, x, y)
        return state, None

    def many(state: State, key: Array, features: list[Array], labels: Array) -> Any:
        keys = jax.random.split(key, each + 1)
        state, _ = jax.lax.scan(partial(body, features, labels), state, keys[1:])
        return state, keys[0]

    program = jax.jit(many, donate_argnums=(0, 1))
    features = [jnp.asarray(part.numpy()) for part in data.features]
    labels = jnp.asarray(data.labels.numpy().astype("int32"))
    now = [start(setting, count), jax.random.key(1)]

    def some() -> int:
        now[:] = jax.block_until_ready(program(*now, features, labels))
        return each * clients

    return some
