"""A client model that nobody can differentiate, trained by DPZV; VAFL refuses it.

Every client rounds its weights to whole multiples of 1/4 before it uses them, as integer
arithmetic on a device without floating point does. The gradient of a rounded number is zero almost
everywhere, so back-propagation learns nothing; a zeroth-order method only asks how the loss differs
between two settings. Its smoothing λ has to be as wide as the steps.

Run: python examples/own_client_model.py
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vertizo import Experiment
from vertizo.config.schema import parse
from vertizo.core.errors import ConfigError

PIXELS, OUTPUTS = 16, 3
Array = NDArray[np.float32]


def rounded(parameters: Array, features: Array) -> Array:
    """``x · round(4 W)/4``: [d] and [batch, 1, 2, 8] to [batch, 3]."""
    weights = np.round(4 * parameters).reshape(PIXELS, OUTPUTS) / 4
    return np.asarray(features.reshape(len(features), PIXELS) @ weights, np.float32)


def settings(method: str, control: str = "none") -> dict[str, object]:
    return {
        "epochs": 60,
        "control": control,
        "method": {"name": "dpzv", "smoothing": 0.25} if method == "dpzv" else {"name": method},
        "client": {
            "model": {
                "name": "function",
                "path": f"{__file__}:rounded",
                "num_parameters": PIXELS * OUTPUTS,
                "initial_std": 0.25,
            },
            "optimizer": {"learning_rate": 0.005, "momentum": 0.9},
        },
    }


def main() -> None:
    for control in ("none", "frozen"):
        summary = Experiment(parse(settings("dpzv", control))).run().summary
        name = "trained" if control == "none" else "frozen "
        print(f"dpzv, clients {name}: test accuracy {100 * summary['test_accuracy']:.1f} %")
    try:
        parse(settings("vafl"))
    except ConfigError as error:
        print(f"vafl: {error}")


if __name__ == "__main__":
    main()
