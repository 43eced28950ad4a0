"""The whole house: client party, method, codec, wire, simulator, server party; as training runs."""

from __future__ import annotations

from typing import Any

from report import Rounds

from vertizo.config.schema import parse
from vertizo.run.loop.federation import Federation, build
from ways.setting import Records, Setting, as_vertical


def federation(setting: Setting, data: Records) -> Federation:
    """All parties, started."""
    shape, variant = setting.shape, setting.variant
    method: dict[str, Any] = {"name": variant.method}
    if variant.law:
        method |= {"directions": variant.law, "smoothing": setting.smoothing}
    if variant.method == "czofo":
        method["num_directions"] = setting.directions
    estimates = variant.method in ("zoo-vfl", "syn-zoo-vfl")
    server = {"smoothing": setting.smoothing, "directions": "gaussian"} if estimates else {}
    config = parse(
        {
            "batch_size": setting.batch,
            "epochs": 1_000_000,
            "method": method,
            "client": {
                "model": {"name": "mlp", "hidden": shape.hidden, "outputs": shape.outputs},
                "optimizer": {"learning_rate": setting.client_rate, "momentum": 0},
            },
            "server": {
                "model": {"name": "mlp", "hidden": shape.server_hidden},
                "optimizer": {"learning_rate": setting.server_rate, "momentum": 0},
                **server,
            },
        }
    )
    made = build(config, as_vertical(data, shape.classes))
    made.start(upload_table=False)
    return made


def rounds(setting: Setting, data: Records) -> Rounds:
    """Rounds of the simulator, with everything it does in training."""
    simulator = federation(setting, data).simulator

    def some() -> int:
        for _ in range(5):
            simulator.step()
        return 5

    return some
