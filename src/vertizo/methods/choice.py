"""How a configuration chooses any method."""

from __future__ import annotations

from typing import Annotated

from pydantic import Tag

from vertizo.core.options import chosen_by, options_of
from vertizo.methods.base import Method
from vertizo.methods.cascaded import Cascaded
from vertizo.methods.compressed_vfl import CompressedVfl
from vertizo.methods.czofo import Czofo
from vertizo.methods.dpzv import Dpzv
from vertizo.methods.fedbcd import FedBcd
from vertizo.methods.flex_vfl import FlexVfl
from vertizo.methods.split import Split
from vertizo.methods.vafl import Vafl
from vertizo.methods.zoo_vfl import SynZooVfl, ZooVfl

MethodConfig = Annotated[
    Annotated[Dpzv, Tag("dpzv")]
    | Annotated[Czofo, Tag("czofo")]
    | Annotated[Cascaded, Tag("cascaded")]
    | Annotated[ZooVfl, Tag("zoo-vfl")]
    | Annotated[SynZooVfl, Tag("syn-zoo-vfl")]
    | Annotated[Vafl, Tag("vafl")]
    | Annotated[Split, Tag("split")]
    | Annotated[CompressedVfl, Tag("compressed-vfl")]
    | Annotated[FedBcd, Tag("fedbcd")]
    | Annotated[FlexVfl, Tag("flex-vfl")],
    chosen_by("name", "dpzv"),
]
METHODS: dict[str, type[Method]] = {
    option.model_fields["name"].default: option for option in options_of(MethodConfig)
}
"""Every method by name."""
