"""Strict JSON (RFC 8259), which every reader takes: NaN and infinities become null."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def text(value: Any, indent: int | None = None) -> str:
    """A value as JSON (RFC 8259); every number that is not finite becomes null."""
    return json.dumps(_finite(value), indent=indent, ensure_ascii=False, allow_nan=False)


def line(value: Any) -> str:
    """A value as one line of JSON in ASCII, for a terminal of any encoding; see `text`."""
    return json.dumps(_finite(value), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
