"""How a configuration chooses a mechanism: what carries noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import PlainSerializer, WrapValidator
from pydantic_core import PydanticCustomError

from vertizo.core.errors import ConfigError
from vertizo.core.registry import Registry

_PLAN = "vertizo.privacy.plan"
MECHANISMS: Registry[Any] = Registry(
    "mechanism",
    {
        "none": f"{_PLAN}:NoPrivacy",
        "gaussian": f"{_PLAN}:ClippedGaussian",
        "embedding-noise": "vertizo.privacy.embedding_noise:EmbeddingStatement",
    },
    "vertizo.privacy.own_mechanism:OwnMechanism",
)


def _own(name: Any, builtin: Callable[[Any], Any]) -> Any:
    """A name that is not built in: of an installed package, or an import path."""
    if not isinstance(name, str) or name in MECHANISMS or not MECHANISMS.knows(name):
        return builtin(name)
    try:
        MECHANISMS.find(name, "privacy.mechanism")
    except ConfigError as error:
        raise PydanticCustomError("whole_line", "{line}", {"line": str(error)}) from None
    return name


MechanismName = Annotated[
    Literal["none", "gaussian", "embedding-noise"], WrapValidator(_own), PlainSerializer(str)
]
