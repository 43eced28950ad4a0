"""Regularisers against their formulas in float64, in every kind of step."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from tests import federations
from tests.rows import each
from torch import Tensor

from vertizo.config.schema import parse
from vertizo.config.sections.optimizer import GivenConfig, OptimizerConfig
from vertizo.core.errors import ConfigError
from vertizo.core.randomness import Stream
from vertizo.models.optimizers import Dense
from vertizo.run.build import optimizers as build_optimizers
from vertizo.run.build.coverage import REGULARIZER_HOLDS
from vertizo.zeroth_order.directions import LAWS, Directions
from vertizo.zeroth_order.estimators import Sum, estimate
from vertizo.zeroth_order.penalties import GivenPenalty

HERE = __name__
STRENGTH, RATE = 0.3, 0.1


def cubes(w: Any) -> Any:
    """Not even, so that one side of a difference is not the other."""
    return (w**3 + 0.5 * w).sum()


def by_numpy(w: Tensor) -> float:
    """Of which PyTorch knows no gradient."""
    return float(np.sum(w.numpy() ** 3 + 0.5 * w.numpy()))


KNOWN = {
    "l2": lambda w: w,
    "l1": np.sign,
    "non-convex": lambda w: w / (1 + w**2) ** 2,
    f"{HERE}:cubes": lambda w: 3 * w**2 + 0.5,
}


def optimizer(name: str, algorithm: str, momentum: float, **more: Any) -> Any:
    chosen: Any = {"name": "function", "path": name} if ":" in name else name
    numbers = {"learning_rate": RATE, "momentum": momentum, "weight_decay": STRENGTH}
    options = OptimizerConfig(algorithm=algorithm, regularizer=chosen, **numbers)
    return build_optimizers.made(options, RATE, 10, torch.zeros(4), **more)


@each("name", KNOWN)
@each("algorithm, momentum", [("sgd", 0.0), ("sgd", 0.6), ("adam", 0.6)])
def test_steps_by_hand(name: str, algorithm: str, momentum: float) -> None:
    """λ ∂g/∂w joins the gradient; of Adam it is taken off by itself, as weight decay is."""
    moves = optimizer(name, algorithm, momentum)
    parameters = torch.tensor([0.0, 1.5, -0.25, 3.0])
    w, slopes = parameters.double().numpy(), np.array([0.2, -1.0, 0.0, 0.5])
    velocity, square = np.zeros(4), np.zeros(4)
    for step in range(1, 4):
        moves.step(parameters, Dense(torch.tensor(slopes, dtype=torch.float32)))
        pulled = STRENGTH * KNOWN[name](w)
        if algorithm == "sgd":
            velocity = momentum * velocity + slopes + pulled
            w = w - RATE * velocity
        else:
            velocity = momentum * velocity + (1 - momentum) * slopes
            square = 0.999 * square + 0.001 * slopes**2
            mean = velocity / (1 - momentum**step)
            w = w - RATE * (mean / (np.sqrt(square / (1 - 0.999**step)) + 1e-8) + pulled)
        assert np.allclose(parameters.numpy(), w, atol=1e-6)


@each("law", LAWS)
@each("forward", [True, False])
@each("count", [1, 3])
@each("function", [cubes, by_numpy])
def test_an_estimate_goes_along_the_directions_of_the_loss(
    law: Any, forward: bool, count: int, function: Any
) -> None:
    """``φ/(K μ) Σ_k λ (g(w + μu_k) − g(w)) u_k``, or with both sides; no PyTorch is needed."""
    smoothing, parameters = 0.05, torch.tensor([0.3, 1.5, -0.25, 3.0, -2.0])
    directions = Directions(law, 5, Stream.from_seed(3), count).of_query(0)
    parts = tuple(estimate(u, 1.0 / count) for u in directions)
    loss: Any = parts[0] if count == 1 else Sum(parts)
    penalty = GivenPenalty(function, STRENGTH, smoothing, forward, "regularizer.path")
    found = torch.zeros(5, dtype=torch.float64)
    penalty.gradient(parameters, loss).add_to(found, 1.0)
    expected, w = np.zeros(5), parameters.double().numpy()
    for direction in directions:
        numbers = torch.zeros(5, dtype=torch.float64)
        direction.add_to(numbers, 1.0)
        u = numbers.numpy()
        other = w if forward else w - smoothing * u
        rise = cubes(w + smoothing * u) - cubes(other)
        factor = 5 if law in ("sphere", "coordinate") else 1
        expected += factor * STRENGTH * rise / (smoothing if forward else 2 * smoothing) * u / count
    assert np.allclose(found.numpy(), expected, rtol=1e-5, atol=1e-7)
    assert float(found.norm()) > 0.01


@each("method, update", [("cascaded", "sgd"), ("zoo-vfl", "forward-difference"), ("dpzv", "sgd")])
def test_a_round_with_a_function_on_both_sides(method: str, update: str) -> None:
    """A client's loss differences take g's along the same u; the server takes its gradient."""
    smoothing = 0.05
    own = {"name": "function", "path": f"{HERE}:cubes"}
    changes = {
        "method.smoothing": smoothing,
        **({} if update == "sgd" else {"server.smoothing": smoothing}),
        "server.update": update,
        **{f"{side}.optimizer.regularizer": own for side in ("client", "server")},
        **{f"{side}.optimizer.weight_decay": STRENGTH for side in ("client", "server")},
        "server.optimizer.learning_rate": 0.01,
    }
    plain = {k: v for k, v in changes.items() if "regularizer" not in k and "decay" not in k}
    with_it = federations.build(method, "asynchronous", changes)
    without = federations.build(method, "asynchronous", plain)
    before = with_it.models[1].parameters.double()
    server = with_it.server.side.model.parameters.double()
    for federation in (with_it, without):
        federations.converse(federation, [1])
    client = with_it.clients[1]
    assert client.index == 1
    u = torch.zeros_like(before)
    law = "scaled-sphere" if method == "dpzv" else "gaussian"
    stream = Stream.from_seed(0).child("client", 1).child("directions")
    Directions(law, before.numel(), stream).draw(0).add_to(u, 1.0)
    back = before - smoothing * u if method == "dpzv" else before
    width = 2 * smoothing if method == "dpzv" else smoothing
    rise = STRENGTH * (cubes(before + smoothing * u) - cubes(back)) / width
    moved = with_it.models[1].parameters.double() - without.models[1].parameters.double()
    assert torch.allclose(moved, -0.05 * rise * u, atol=1e-6)
    assert abs(float(rise)) > 0.01
    moved = with_it.server.side.model.parameters - without.server.side.model.parameters
    pulled = STRENGTH * (3 * server**2 + 0.5)
    if update == "forward-difference":
        v = torch.zeros_like(server)
        own_stream = Stream.from_seed(0).child("server").child("directions")
        Directions("scaled-sphere", server.numel(), own_stream).draw(0).add_to(v, 1.0)
        pulled = STRENGTH * (cubes(server + smoothing * v) - cubes(server)) / smoothing * v
    assert torch.allclose(moved.double(), -0.01 * pulled, atol=1e-6)


def test_a_resumed_run_goes_on_bit_by_bit() -> None:
    own = {"name": "function", "path": f"{HERE}:cubes"}
    for method in ("cascaded", "vafl"):
        changes = {
            **{f"{side}.optimizer.regularizer": own for side in ("client", "server")},
            **{f"{side}.optimizer.weight_decay": 0.01 for side in ("client", "server")},
            **{f"{side}.optimizer.momentum": 0.5 for side in ("client", "server")},
        }
        whole, _ = federations.ran(method, None, changes)
        first, _ = federations.ran(method, None, changes, rounds=5)
        second = federations.build(method, None, changes)
        second.load(federations.copied(first.state()))
        federations.go_on(second)
        assert not federations.differences(whole.parameters, second.parameters)


def test_a_guarantee_names_a_function_as_an_assumption() -> None:
    """It could read anything; one with a name could not."""
    chosen = {"name": "function", "path": f"{HERE}:cubes"}
    for side, update in (("client", "none"), ("server", "private-sgd")):
        noise = {"privacy.server_noise_std": 0.3} if update != "none" else {}
        changes = {**federations.GAUSSIAN, **noise, "server.update": update}
        changes[f"{side}.optimizer.weight_decay"] = 0.1
        key = f"{side}.optimizer.regularizer"
        held = federations.build("dpzv", None, {**changes, key: chosen}).statement()
        assert held.guarantee == "simulated"
        assert held.assumptions == (f"{key} ({HERE}:cubes) {REGULARIZER_HOLDS}",)
        plain = federations.build("dpzv", None, {**changes, key: "l1"}).statement()
        assert plain.assumptions == ()
        assert plain.epsilon == held.epsilon


def nothing(w: Tensor) -> None:
    """Forgets to return something."""


def rows(w: Tensor) -> Tensor:
    """Forgets the sum."""
    return w.abs()


def fails(w: Tensor) -> Tensor:
    """Has a mistake of its own."""
    return w @ torch.ones(3, dtype=w.dtype)


NUMBER = 3


@each(
    "name, words",
    [
        ("nothing", "gives a NoneType; it must give one number"),
        ("rows", r"gives a Tensor of \d+ numbers; it must give one number"),
        ("fails", r"the function fails for \d+ parameters: RuntimeError"),
        ("by_numpy", "has no gradient|RuntimeError"),
        ("NUMBER", "is a int; it must be a function"),
        ("missing", "has no 'missing'"),
    ],
)
def test_what_is_no_regulariser_is_refused_before_a_run(name: str, words: str) -> None:
    changes = {
        "client.optimizer.weight_decay": 0.1,
        "client.optimizer.regularizer": {"name": "function", "path": f"{HERE}:{name}"},
    }
    with pytest.raises(ConfigError, match=words) as error:
        federations.build("vafl", None, changes)
    assert str(error.value).startswith("client.optimizer.regularizer.path")
    assert "\n" not in str(error.value)


def nested() -> Any:
    def local(w: Tensor) -> Tensor:
        return w.sum()

    return local


@each("function", [lambda w: w.sum(), nested()])
def test_a_function_that_cannot_travel_is_refused(function: Any) -> None:
    """Runs go on in other processes, which find it by its path or not at all."""
    given = {"optimizer": {"regularizer": function, "weight_decay": 0.1}}
    with pytest.raises(
        ConfigError, match="it must be a function at the top of an imported module"
    ) as error:
        parse({"client": given})
    assert "\n" not in str(error.value)


def test_a_function_is_kept_by_its_path() -> None:
    found = parse({"server": {"optimizer": {"regularizer": cubes, "weight_decay": 0.1}}})
    chosen = found.server.optimizer.regularizer
    assert chosen == GivenConfig(path=f"{HERE}:cubes")
    assert f"path: {HERE}:cubes" in found.to_yaml()
    assert pickle.loads(pickle.dumps(found)) == found


def test_one_without_strength_is_refused() -> None:
    for side in ("client", "server"):
        with pytest.raises(ConfigError, match=f"{side}.optimizer.regularizer.name is 'l1' but"):
            parse({side: {"optimizer": {"regularizer": "l1"}}})


def test_runs_without_one_keep_their_noise() -> None:
    """The key came later: it is no part of what older runs' noise follows from."""
    usual = parse({"seed": 0})
    named = parse({"seed": 0, "client": {"optimizer": {"regularizer": {"name": "l2"}}}})
    other = parse({"seed": 0, "client": {"optimizer": {"regularizer": "l1", "weight_decay": 1}}})
    plain = parse({"seed": 0, "client": {"optimizer": {"weight_decay": 1}}})
    assert usual.digest == named.digest
    assert len({usual.digest, plain.digest, other.digest}) == 3
