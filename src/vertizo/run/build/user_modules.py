"""Modules that a configuration brings along: from a path, or of a class that it names.

What makes one is told about its inputs as far as it asks: parameters called ``inputs`` (numbers of
a record, int), ``shape`` (of a record), ``cardinalities`` (numbers of categories of each of the
first columns, which hold codes) and, of a server's model, ``outputs`` (int) are filled in, unless
``arguments`` sets them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import nn

from vertizo.config import architectures as kinds
from vertizo.core.errors import ConfigError
from vertizo.core.imports import load_object
from vertizo.models.parts import first_line, materialised, user_code_errors


def brought_module(
    key: str,
    config: kinds.ModuleConfig | kinds.OwnModel,
    shape: tuple[int, ...],
    cardinalities: tuple[int, ...] = (),
    *,
    tokens: bool = False,
    outputs: int | None = None,
) -> nn.Module:
    """A module for records of that shape, with random first parameters, none of them lazy.

    Raises:
        ConfigError: it cannot be made, or is no module; names ``key``.
    """
    inputs = torch.Size(shape).numel()
    facts = {"inputs": inputs, "shape": shape, "cardinalities": cardinalities, "outputs": outputs}
    if isinstance(config, kinds.OwnModel):
        words, name = f"{key}.name is {config.name!r}", config.name
        more = _asked_for(config.module, {"cardinalities": cardinalities})
        with user_code_errors(f"{key}: making {name} failed"):
            module: object = config.module(shape, outputs, **more)
    else:
        words, name = f"{key}.path is {config.path!r}", config.path
        factory = load_object(f"{key}.path", name)
        if not callable(factory):
            raise ConfigError(
                f"{words}, which is a {type(factory).__name__}; it must make a torch.nn.Module"
            )
        known = {fact: value for fact, value in facts.items() if value is not None}
        told = _asked_for(factory, known, config.arguments)
        try:
            with user_code_errors(f"{key}: making {name} failed"):
                module = factory(**told, **config.arguments)
        except ConfigError as error:
            if not isinstance(error.__cause__, TypeError):
                raise
            reason = first_line(error.__cause__)
            raise ConfigError(f"{key}.arguments do not fit {name}: {reason}") from None
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"{words}, which makes a {type(module).__name__}; it must make a torch.nn.Module"
        )
    example = torch.zeros((2, *shape), dtype=torch.int64 if tokens else torch.float32)
    with user_code_errors(f"{key}: {name} fails for features of shape {list(shape)}"):
        return materialised(module, example)


def _asked_for(
    make: Callable[..., Any], facts: Mapping[str, Any], given: Collection[str] = ()
) -> dict[str, Any]:
    """The facts that it has a parameter for, but for those that are given."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # of no Python code
        return {}
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    wanted = {parameter.name for parameter in parameters if parameter.kind in by_name}
    return {name: facts[name] for name in facts if name in wanted and name not in given}
