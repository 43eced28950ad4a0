"""`benchmarks/devices.py`, on the processor: what it holds Vertizo against is the same method."""

from __future__ import annotations

from dataclasses import replace

import devices
import pytest

from vertizo.models.optimizers import Sgd
from vertizo.run.loop.federation import Federation

NAME = "dpzv, 85 million parameters at 2 clients"


def small() -> devices.Case:
    """The large client's case, with a small one."""
    case = devices.CASES[NAME]
    model = {"name": "cnn", "channels": [2], "outputs": 3}
    return replace(
        case, shapes=[(3, 4, 4)] * 2, options={**case.options, "client": {"model": model}}
    )


def held(made: Federation) -> int:
    """Numbers that optimisers keep from round to round."""
    sgds = [client.optimizer for client in made.made] + [made.server.side.update.optimizer]
    assert all(isinstance(each, Sgd) for each in sgds)
    return sum(each._velocity.numel() for each in sgds if each._velocity is not None)


def test_rounds_keep_no_vector_that_the_loops_by_hand_do_not() -> None:
    """As momentum would, which is Vertizo's default: it is as large as the model."""
    made = devices.federation(small(), "float32")
    devices.steps(made)
    assert not held(made)


def test_inference_is_measured_before_training_holds_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []
    monkeypatch.setattr(devices, "steps", lambda made: order.append("round"))
    monkeypatch.setattr(devices, "two_passes", lambda made, batch: order.append("passes"))

    def peak(rounds: devices.Rounds) -> float:
        rounds()
        order.append("peak")
        return 1e9 * len(order)

    monkeypatch.setattr(devices, "peak", peak)
    assert devices.peak_over_inference(small(), "float32") == pytest.approx(2.0, abs=1e-3)
    assert order == ["passes", "passes", "peak", "round", "round", "peak"]
