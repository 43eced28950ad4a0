"""What every method must do, in both timings (`vertizo.methods.base`)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import federations
from tests.rows import each
from torch import Tensor, nn

from vertizo.methods.base import ClientSide, Features, Method, Outcome
from vertizo.methods.choice import METHODS, asking
from vertizo.testing.methods import (
    a_record_decides_its_own_values,
    check_method,
    restarted_clients_go_on,
    stopped_runs_go_on,
)
from vertizo.testing.sensitivity import a_record_moves_no_release_too_far
from vertizo.testing.subject import Subject
from vertizo.zeroth_order.estimators import estimate, outputs, two_point

PAIRS = [(name, timing) for name in asking() for timing in METHODS[name].timings]
LOGITS = ["label-statistic"]
"""Methods whose clients send as many numbers as there are classes, and learn by themselves."""


TRAINED = [pair for pair in PAIRS if pair[0] not in LOGITS]


@each("method, timing", TRAINED, gate=list(dict(TRAINED).items()))
def test_clients_are_trained(method: str, timing: str) -> None:
    """Held against the same run with clients that stay as they were initialised."""
    found = {}
    for control in ("none", "frozen"):
        subject = Subject(method, timing)
        changes = {
            **subject.large_steps(),
            "control": control,
            "batch_size": 16,
            "client.model": {"name": "mlp", "outputs": 1},
            "server.model": {"name": "mlp", "hidden": [12]},
            **subject.rates(),
        }
        federation, _ = federations.ran(method, timing, changes, of=federations.two_bits(160))
        federation.simulator.upload("test", 400)
        found[control] = federation.server.score("test")
    assert found["none"]["loss"] < found["frozen"]["loss"] - 0.15
    assert found["none"]["accuracy"] > found["frozen"]["accuracy"] + 0.1


SERVER = """
from torch import nn

def tanh():
    return nn.Sequential(nn.Linear(9, 4), nn.Tanh(), nn.Linear(4, 3))
"""


@each("method, timing", PAIRS)
def test_any_differentiable_module_may_be_the_server(
    tmp_path: Path, method: str, timing: str
) -> None:
    """It steps by the batch's losses at what its table then holds.

    By autograd's gradient, Q times where the method has local steps; where the method's server is
    one of forward differences, by the rise of the loss along the line that it moved on.
    """
    (tmp_path / "server.py").write_text(SERVER)
    model = {"name": "module", "path": f"{tmp_path / 'server.py'}:tanh"}
    subject = Subject(method, timing)
    changes = {**subject.large_steps(), "server.model": model, "server.join": "concat"}
    federation = federations.build(method, timing, changes)
    options = federations.config(method, timing).method
    side, labels = federation.server.side, federation.data.labels["train"]
    start = side.model.parameters.clone().double()
    clients = subject.askers
    asked = federations.query(federations.ask(federation, clients[0]), METHODS[method].up)
    ids, own = asked.ids, slice(3 * clients[0], 3 * clients[0] + 3)
    federations.converse(federation, clients)
    rows = side.table.values[ids].double()
    rows[:, own] = options.stored(asked.embeddings).double()  # a step may move the table on
    moved = side.model.parameters.double() - start

    def loss(module: nn.Module, parameters: Tensor) -> Tensor:
        nn.utils.vector_to_parameters(parameters, module.parameters())
        return nn.functional.cross_entropy(module(rows), labels[ids])

    module = nn.Sequential(nn.Linear(9, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    if options.server_update == "sgd":
        here = start
        for _ in range(options.server_steps):
            module.zero_grad()
            loss(module, here).backward()
            gradient = torch.cat([w.grad.reshape(-1) for w in module.parameters()])
            here = here - 0.1 * gradient
        assert torch.allclose(start + moved, here, atol=1e-6)
        return
    direction = moved * math.sqrt(start.numel()) / moved.norm()  # scaled-sphere, up to its sign
    with torch.no_grad():
        plain = loss(module, start)
        slopes = [(loss(module, start + 0.05 * u) - plain) / 0.05 for u in (direction, -direction)]
    expected = [-0.1 * slope * u for slope, u in zip(slopes, (direction, -direction), strict=True)]
    assert float(moved.norm()) > 0.01
    assert min(float((moved - e).norm() / moved.norm()) for e in expected) < 1e-4
    assert max(float((moved - e).norm() / moved.norm()) for e in expected) > 1e-3


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("dpzv", {"method.num_directions": 3}),
    ("dpzv", {"method.num_directions": 3, "method.clipping": "jointly"}),
    ("czofo", {"method.scalars": "record", "method.num_directions": 5}),
    ("cascaded", {"method.reply": "difference"}),
    ("zoo-vfl", {"method.reply": "difference"}),
    (
        "syn-zoo-vfl",
        {
            "method.server_embeddings": "published",
            "server.update": "forward-difference",
            "server.smoothing": 1.0,  # it divides noise on embeddings, whose steps would diverge
        },
    ),
    ("compressed-vfl", {"method.local_steps": 3}),
]
"""Methods, and options that change what is sent or remembered."""


@pytest.mark.parametrize("method", asking())
@pytest.mark.parametrize("pairwise", [True, pytest.param(False, marks=pytest.mark.full)])
def test_every_method_keeps_the_contract(method: str, pairwise: bool) -> None:
    check_method(method, pairwise=pairwise)


@pytest.mark.full
@each("method, options", VARIANTS)
def test_variants_keep_what_hangs_on_them(method: str, options: dict[str, Any]) -> None:
    """How slopes are clipped can be said where they are."""
    clips = "method.clipping" in options
    for name, plan in federations.PLANS.items():
        noise = federations.HARDLY_ANY if clips and name == "none" else {}
        changes = {**options, **noise, **plan}
        if name == "embedding-noise":
            changes.pop("method.clipping", None)
        subject = Subject(method, METHODS[method].timings[0], changes)
        restarted_clients_go_on(subject)
        stopped_runs_go_on(subject, (5,))
        if name == "none":
            a_record_decides_its_own_values(subject)
        if name == "gaussian" and "server.update" not in options:  # it is played without one
            a_record_moves_no_release_too_far(subject, tries=20)


class Plain(Method):
    """Two-point clients, as somebody writes them elsewhere."""

    @property
    def points(self) -> int:
        return 2

    def ask(self, side: ClientSide, number: int, features: Features) -> Tensor:
        (u,) = side.directions("sphere").of_query(number)
        return outputs(side.model, features, u, (0.05, -0.05))

    def told(self, outcome: Outcome) -> Tensor:
        return two_point(outcome.losses[0], outcome.losses[1], 0.05)

    def tell(self, side: ClientSide, number: int, features: Features, values: Tensor) -> None:
        (u,) = side.directions("sphere").of_query(number)
        side.step(estimate(u, values.item()))


class Centred(Plain):
    """Takes the mean of a batch off each record's slope, which mixes records."""

    def told(self, outcome: Outcome) -> Tensor:
        values = super().told(outcome)
        return values - values.mean()


class CentredAtTimes(Plain):
    """Does so where a slope is large, which no usual input shows."""

    def told(self, outcome: Outcome) -> Tensor:
        values = super().told(outcome)
        return values - values.mean() if values.abs().max() > 50 else values


class Doubled(Plain):
    """Says that a record takes part in two releases."""

    @property
    def releases_per_query(self) -> int:
        return 2


class Global(Plain):
    """Draws from PyTorch's generator."""

    def told(self, outcome: Outcome) -> Tensor:
        return super().told(outcome) * (1 + 1e-7 * torch.rand(()))


class Counting(Plain):
    """Steps by how often it was told, and forgets that when it is restarted."""

    def tell(self, side: ClientSide, number: int, features: Features, values: Tensor) -> None:
        side.kept = (side.kept or 0) + 1
        super().tell(side, number, features, values / side.kept)


@each(
    "method, words",
    [
        (Centred, "a record decides what others add"),
        (CentredAtTimes, "moves what is released by .* times its sensitivity"),
        (Doubled, "releases of a round: 1, not 2"),
        (Global, "draws from a global generator"),
        (Counting, "a copy differs at /parameters"),
    ],
)
def test_what_a_method_breaks_is_told_in_a_line(method: type[Method], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check_method(method)
