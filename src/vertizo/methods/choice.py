"""The methods by name, and how a configuration chooses one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vertizo.core.plugins.registry import Registry
from vertizo.methods.base import Method

_HERE = "vertizo.methods"
METHODS: Registry[type[Method]] = Registry(
    "method",
    {
        "dpzv": f"{_HERE}.dpzv:Dpzv",
        "czofo": f"{_HERE}.czofo:Czofo",
        "cascaded": f"{_HERE}.forward_difference:Cascaded",
        "zoo-vfl": f"{_HERE}.forward_difference:ZooVfl",
        "syn-zoo-vfl": f"{_HERE}.forward_difference:SynZooVfl",
        "vafl": f"{_HERE}.first_order:Vafl",
        "split": f"{_HERE}.first_order:Split",
        "compressed-vfl": f"{_HERE}.first_order:CompressedVfl",
        "fedbcd": f"{_HERE}.first_order:FedBcd",
        "flex-vfl": f"{_HERE}.first_order:FlexVfl",
        "tangent": f"{_HERE}.tangent:Tangent",
        "label-statistic": f"{_HERE}.label_statistic:LabelStatistic",
        "one-shot": f"{_HERE}.one_shot:OneShot",
    },
    f"{_HERE}.base:Method",
)
"""Every method by name."""


def asking() -> tuple[str, ...]:
    """Names of the methods whose clients ask and are told; the others upload once."""
    return tuple(name for name, method in METHODS.items() if method.asks)


if TYPE_CHECKING:
    MethodConfig = Method
else:
    MethodConfig = METHODS.choice("dpzv")
