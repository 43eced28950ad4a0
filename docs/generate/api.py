"""The public names of the package, for Sphinx to describe."""

from __future__ import annotations

import inspect

import vertizo
from vertizo.core.options import Options


def page() -> str:
    """A directive for each name that `vertizo` exports."""
    parts = []
    for name in vertizo.__all__:
        if not name.startswith("_"):
            parts.append(f"```{{eval-rst}}\n{_directive(name)}```\n")
    return "\n".join(parts)


def _directive(name: str) -> str:
    value = getattr(vertizo, name)
    if not inspect.isclass(value):
        kind = "function" if callable(value) else "data"
        return f".. auto{kind}:: vertizo.{name}\n"
    if issubclass(value, Options):  # its keys are a page of their own
        return f".. autoclass:: vertizo.{name}()\n   :members: to_yaml\n"
    if issubclass(value, BaseException):
        return f".. autoexception:: vertizo.{name}\n"
    routed = [each for each in vars(value) if each.endswith("_request")]  # scikit-learn's own
    excluded = f"   :exclude-members: {', '.join(routed)}\n" if routed else ""
    return f".. autoclass:: vertizo.{name}\n   :members:\n{excluded}"
