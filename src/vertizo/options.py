"""The base of every configuration object: frozen, and no key is ever ignored."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Discriminator


class Options(BaseModel):
    """Public fields, validated once at construction; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def chosen_by(key: str, default: str) -> Discriminator:
    """Which of several options is meant: what ``key`` says, or ``default`` where it is left out."""

    def tag(value: Any) -> Any:
        if isinstance(value, dict):
            return value.get(key, default)
        return getattr(value, key, None)

    return Discriminator(tag)
