"""A method that somebody writes outside of this package, in as few lines as its page promises."""

from __future__ import annotations

import math
from typing import Literal

import pytest
from tests import federations
from torch import Tensor

from vertizo.methods.base import ClientSide, Features, Method, Outcome
from vertizo.run.build.coverage import METHOD_HOLDS, UNDECLARED
from vertizo.run.loop.federation import Federation, build
from vertizo.zeroth_order.estimators import estimate, outputs, two_point

pytestmark = pytest.mark.filterwarnings("ignore:Pydantic serializer")


class SignVfl(Method):
    """Two-point clients that step by the sign of the slope alone."""

    name: Literal["sign-vfl"] = "sign-vfl"
    smoothing: float = 1e-2

    @property
    def points(self) -> int:
        return 2

    def ask(self, side: ClientSide, number: int, features: Features) -> Tensor:
        (u,) = side.directions("sphere").of_query(number)
        return outputs(side.model, features, u, (self.smoothing, -self.smoothing))

    def told(self, outcome: Outcome) -> Tensor:
        return two_point(outcome.losses[0], outcome.losses[1], self.smoothing)

    def tell(self, side: ClientSide, number: int, features: Features, values: Tensor) -> None:
        (u,) = side.directions("sphere").of_query(number)
        side.step(estimate(u, math.copysign(0.1, values.item())))


class Declared(SignVfl):
    """The same, whose author knows what it releases."""

    @property
    def releases_per_query(self) -> int:
        return 1


def run(method: Method, timing: str, **changes: object) -> Federation:
    config = federations.config("dpzv", timing, {"batch_size": 16, "epochs": 20, **changes})
    config = config.model_copy(update={"method": method})
    federation = build(config, federations.two_bits(160))
    federation.start(upload_table=False)
    federations.go_on(federation)
    return federation


def test_it_trains_in_both_timings() -> None:
    for timing in ("asynchronous", "synchronous"):
        federation = run(SignVfl(), timing)
        federation.simulator.upload("test", 400)
        assert federation.server.score("test")["accuracy"] > 0.5, timing


def test_it_has_no_guarantee_until_it_declares_its_releases() -> None:
    private = {**federations.GAUSSIAN, "server.update": "private-sgd", "server.clip": 1.0}
    private |= {"privacy.server_noise_std": 1.0, "privacy.noise": "seeded"}
    bare = run(SignVfl(), "asynchronous", **private).statement()
    assert (bare.guarantee, bare.epsilon) == ("none", None)
    assert bare.words == UNDECLARED
    declared = run(Declared(), "asynchronous", **private).statement()
    assert declared.guarantee == "simulated"
    assert declared.epsilon is not None
    assert declared.assumptions == (f"method (sign-vfl) {METHOD_HOLDS}",)
    assert declared.assumptions[0] in declared.words
