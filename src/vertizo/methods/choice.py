"""How a configuration chooses any method."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vertizo.core.registry import Registry
from vertizo.methods.base import Method

_HERE = "vertizo.methods"
METHODS: Registry[type[Method]] = Registry(
    "method",
    {
        "dpzv": f"{_HERE}.dpzv:Dpzv",
        "czofo": f"{_HERE}.czofo:Czofo",
        "cascaded": f"{_HERE}.cascaded:Cascaded",
        "zoo-vfl": f"{_HERE}.zoo_vfl:ZooVfl",
        "syn-zoo-vfl": f"{_HERE}.zoo_vfl:SynZooVfl",
        "vafl": f"{_HERE}.vafl:Vafl",
        "split": f"{_HERE}.split:Split",
        "compressed-vfl": f"{_HERE}.compressed_vfl:CompressedVfl",
        "fedbcd": f"{_HERE}.fedbcd:FedBcd",
        "flex-vfl": f"{_HERE}.flex_vfl:FlexVfl",
        "tangent": f"{_HERE}.tangent:Tangent",
    },
    f"{_HERE}.base:Method",
)
"""Every method by name."""

if TYPE_CHECKING:
    MethodConfig = Method
else:
    MethodConfig = METHODS.choice("dpzv")
