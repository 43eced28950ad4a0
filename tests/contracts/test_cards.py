"""Rounds of parties on a card, on the processor's tensors here: by PyTorch, and never looked at.

What a card alone can show, Triton and CUDA graphs, is tested where there is one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests import federations
from tests.cards import a_stand_in, as_on_a_card
from tests.rows import each
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError
from vertizo.data.vertical import VerticalData
from vertizo.methods.choice import METHODS
from vertizo.models.torch import wrap
from vertizo.run.loop.federation import Federation, build

PAIRS = [
    (name, timing)
    for name, method in METHODS.items()
    for timing in method.timings
    if not method.sends_tangents and method.asks
]
UPDATES = [
    ("cascaded", "none"),
    ("dpzv", "zeroth-order"),
    ("dpzv", "forward-difference"),
    ("vafl", "sgd"),
]
ESTIMATED = ("zeroth-order", "forward-difference", "private-zeroth-order")
"""Updates of a server that have a smoothing."""
PLANS: dict[str, dict[str, Any]] = {
    "none": {},
    "clip": {"privacy.clip": 0.01},
    "gaussian": federations.GAUSSIAN,
    "both": {**federations.GAUSSIAN, "privacy.server_noise_std": 0.3},
}


def configured(
    method: str, timing: str, update: str | None, plan: str, device: str = "cpu"
) -> ExperimentConfig:
    changes = {"codecs.up": {"name": "none"}, "device": device, **PLANS[plan]}
    if METHODS[method].sends_tangents:
        changes |= {**federations.ADDITIVE, "method.directions": "orthonormal"}
    if (update or METHODS[method].server_update) in ESTIMATED:
        changes["server.smoothing"] = 0.1
    if "smoothing" in METHODS[method].model_fields:
        changes["method.smoothing"] = 0.1
    if update is not None:
        changes["server.update"] = update
    return federations.config(method, timing, changes)


def made(*case: Any, device: str = "cpu") -> Federation:
    return build(configured(*case, device), federations.data())


CASES = [
    *((method, timing, None, "none") for method, timing in PAIRS),
    *((method, timing, None, plan) for method, timing in PAIRS for plan in ("clip", "gaussian")),
    *((method, "asynchronous", update, "none") for method, update in UPDATES),
    ("dpzv", "asynchronous", "private-sgd", "both"),
    ("vafl", "asynchronous", "private-zeroth-order", "both"),
    ("cascaded", "asynchronous", "poisson-dp-sgd", "both"),
]


TANGENTS = [
    (name, "asynchronous", None, plan)
    for name, method in METHODS.items()
    if method.sends_tangents
    for plan in ("none", "clip", "gaussian")
]
GATE = [
    ("dpzv", "asynchronous", None, "gaussian"),
    ("dpzv", "asynchronous", "zeroth-order", "none"),
    ("cascaded", "asynchronous", None, "none"),
    ("syn-zoo-vfl", "synchronous", None, "none"),
    ("czofo", "asynchronous", None, "none"),
    ("vafl", "asynchronous", None, "clip"),
]


def held_to_the_processor(
    config: ExperimentConfig,
    monkeypatch: pytest.MonkeyPatch,
    of: VerticalData | None = None,
    near: float = 1e-4,
) -> int:
    """Whether twelve rounds on a stand-in for a card give the same; how often these wait for it."""
    stand_in, data = a_stand_in(), federations.data() if of is None else of
    with stand_in.with_a_card(monkeypatch) as looks:
        wanted, found = (build(each_one, data) for each_one in (config, stand_in.placed(config)))
        for federation in (wanted, found):
            federation.start(upload_table=True)
            before = looks.count
            federations.go_on(federation, 12)
        waited = looks.count - before
        for federation in (wanted, found):
            federation.simulator.upload("validation", len(data.labels["validation"]))
            federation.server.score("validation")
        resumed, state = build(config, data), federations.copied(found.state())
        assert not federations.differences(state, found.state())
        resumed.load(state)
    one, other = found.server, wanted.server
    pairs = [(a.parameters, b.parameters) for a, b in zip(found.models, wanted.models, strict=True)]
    pairs.append((one.side.model.parameters, other.side.model.parameters))
    pairs.append((one.side.table.values, other.side.table.values))
    for on_card, on_host in pairs:
        assert on_card.device == stand_in.CARD
        assert torch.allclose(on_card.cpu(), on_host, 10 * near, near)
    pairs = [
        (a.parameters, b.parameters) for a, b in zip(resumed.models, found.models, strict=True)
    ]
    for on_host, on_card in pairs:
        assert torch.equal(on_host, on_card.cpu())
    assert torch.equal(one.side.table.refreshed.cpu(), other.side.table.refreshed)
    assert one.staleness.read().mean == other.staleness.mean
    assert one.staleness.largest == other.staleness.largest
    meter = one.side.meter.read()
    assert meter.records == other.side.meter.records
    assert meter.loss == pytest.approx(other.side.meter.loss, rel=1e-3)
    assert meter.correct == other.side.meter.correct
    share = other.side.plan.clip_fraction
    assert one.side.plan.clip_fraction == (
        None if share is None else pytest.approx(share, abs=0.02)
    )
    return waited


@each("method, timing, update, plan", CASES + TANGENTS, gate=[*GATE, TANGENTS[2]])
def test_rounds_are_those_of_the_processor(
    method: str, timing: str, update: str | None, plan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same numbers up to rounding, with the same directions; and nothing waits for the card."""
    waited = held_to_the_processor(configured(method, timing, update, plan), monkeypatch)
    assert not waited or method == "label-statistic"  # which asks once, and fits by Newton's steps


@each("method", ("tangent", "label-statistic"))
def test_principal_directions_are_found_on_a_card(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them: of equal variances, as an affine model's are, any few may come."""
    all_of = {"method.directions": "principal", "method.num_directions": 15}
    config = federations.config(method, None, {**federations.ADDITIVE, **all_of})
    held_to_the_processor(config, monkeypatch, near=1e-3)


@each("method, timing, update, plan", CASES, gate=GATE)
def test_nothing_is_looked_at_in_a_round(
    method: str, timing: str, update: str | None, plan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every look at a value of a fake tensor fails."""
    with as_on_a_card(monkeypatch):
        federation = made(method, timing, update, plan)
        federation.start(upload_table=False)
        server, mode = federation.server, FakeTensorMode(allow_non_fake_inputs=True)

        def faked(function: Any) -> Any:
            def called(*given: Any) -> Any:
                with mode:
                    return function(*given)

            return called

        server.side.answer = faked(server.side.answer)  # type: ignore[method-assign]
        server.side.learn(mode.from_tensor(server.side.labels))
        server.side.table.values = mode.from_tensor(server.side.table.values)
        server.side.table.refreshed = mode.from_tensor(server.side.table.refreshed)
        for client in federation.clients:
            train = mode.from_tensor(client.features["train"])
            client.features = {**client.features, "train": train}
            pair = client.pair
            client.pair = replace(pair, ask=faked(pair.ask), tell=faked(pair.tell))
        federations.go_on(federation, 6)
        assert server.round >= 5


class Scaled(nn.Module):
    """With a buffer, which no evaluation may change."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("scale", torch.ones(2))

    def forward(self, rows: Tensor) -> Tensor:
        return self.layer(rows) * self.scale


class Growing(Scaled):
    def forward(self, rows: Tensor) -> Tensor:
        self.scale.add_(1)
        return super().forward(rows)


def test_buffers_are_not_looked_at_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """But a change of one is seen."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with as_on_a_card(monkeypatch):
        model = wrap(Scaled())
        with mode:
            assert model(torch.zeros(4, 3)).shape == (4, 2)
        with pytest.raises(ConfigError, match="changes its buffer 'scale'"):
            wrap(Growing())(torch.zeros(4, 3))


@each("method, timing, update, plan", GATE)
def test_a_run_goes_on_where_it_stopped(
    method: str, timing: str, update: str | None, plan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit, from what a checkpoint holds."""
    with as_on_a_card(monkeypatch):
        whole, stopped, resumed = (made(method, timing, update, plan) for _ in range(3))
        whole.start(upload_table=False)
        federations.go_on(whole)
        stopped.start(upload_table=False)
        federations.go_on(stopped, 5)
        resumed.load(federations.copied(stopped.state()))
        federations.go_on(resumed)
    assert resumed.server.round == whole.server.round
    for one, other in zip(resumed.models, whole.models, strict=True):
        assert torch.equal(one.parameters, other.parameters)
    one, other = resumed.server, whole.server
    assert torch.equal(one.side.model.parameters, other.side.model.parameters)
    assert torch.equal(one.side.table.values, other.side.table.values)
    assert one.staleness.read().mean == other.staleness.read().mean
