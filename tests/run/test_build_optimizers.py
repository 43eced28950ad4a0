"""Adam, weight decay and schedules as they are configured."""

from __future__ import annotations

from typing import Any

import torch

from vertizo.config.schema import parse
from vertizo.run.experiment import Experiment

SMALL: dict[str, Any] = {"seed": 1, "epochs": 2, "data": {"limit": 200, "parties": 2}}


def trained(**keys: Any) -> tuple[torch.Tensor, dict[str, Any]]:
    """The server's last parameters, and the summary."""
    result = Experiment(parse(SMALL | {"method": {"name": "vafl"}} | keys)).run()
    return result.federation.server.side.model.parameters, result.summary


def test_each_key_moves_the_server_otherwise() -> None:
    found = [
        trained(server={"optimizer": {"learning_rate": 0.05, **keys}})[0]
        for keys in (
            {},
            {"weight_decay": 0.1},
            {"decay": "cosine"},
            {"decay": "step"},
            {"decay": "step", "factor": 0.5},
            {"algorithm": "adam"},
            {"algorithm": "adam", "weight_decay": 0.1},
        )
    ]
    for number, one in enumerate(found):
        assert one.isfinite().all()
        assert not any(torch.equal(one, other) for other in found[:number]), number


def test_adam_has_a_rate_of_its_own_and_an_epsilon_stays_what_it_was() -> None:
    private = {"method": {"name": "dpzv"}, "privacy": {"epsilon": 2.0}}
    adam = {"optimizer": {"algorithm": "adam", "weight_decay": 0.01}}
    plain, usual = trained(**private)
    other, summary = trained(**private, client=adam, server=adam)
    assert not torch.equal(plain, other)
    assert summary["privacy"] == usual["privacy"]
    assert summary["privacy"]["guarantee"] == "simulated"
    assert summary["learning_rates"] == {"server": 1e-3, "clients": [1e-3, 1e-3]}
