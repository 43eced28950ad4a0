"""Parts of a module: its trained parameters, its buffers, and layers that are refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy

from vertizo.core.errors import ConfigError, VertizoError

OURS = "torch.nn.", "vertizo."
"""Where layers come from whose code is known."""
BatchNorm = nn.modules.batchnorm._BatchNorm
Weights: TypeAlias = dict[str, Tensor]
"""Weights of a module, by name."""
_forward_differentiation = threading.RLock()
COMPARED = 2**16
"""Most numbers of a buffer whose values are compared; of others PyTorch's counter of changes is."""


class ChangedBufferError(ConfigError):
    """An evaluation changed a buffer of the module."""


def trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that training moves, those with ``requires_grad``, by name."""
    return {name: part for name, part in module.named_parameters() if part.requires_grad}


def flatten(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Make one vector that holds all parameters in order; each becomes a view of its part.

    ConfigError where there are none, or of several dtypes.
    """
    parts = list(parameters)
    if not parts:
        raise ConfigError(
            "the model has no parameters with requires_grad; there is nothing to train"
        )
    kinds = {part.dtype for part in parts}
    if len(kinds) > 1:
        raise ConfigError(f"the model's parameters have dtypes {kinds}; they must be of one")
    flat = torch.cat([part.detach().reshape(-1) for part in parts])
    offset = 0
    for part in parts:
        part.requires_grad_(False)
        part.data = flat[offset : offset + part.numel()].view(part.shape)
        offset += part.numel()
    return flat


def derivative(function: Callable[[Weights], Tensor], at: Weights, along: Weights) -> Tensor:
    """The derivative of a function at some weights along others, by forward differentiation.

    One thread at a time: PyTorch's levels of forward differentiation are of the whole process, and
    a thread that leaves one takes the tangents of all others with it.
    """
    with _forward_differentiation:
        found: Tensor = torch.func.jvp(function, (at,), (along,))[1]
    return found


def materialised(module: nn.Module, example: Tensor) -> nn.Module:
    """Let lazy layers (LazyLinear) learn their sizes from ``example`` [2, ...]."""
    if any(map(is_lazy, [*module.parameters(), *module.buffers()])):
        with torch.no_grad():
            module.eval()(example)
    return module


def check(module: nn.Module, *, batch_norm: bool) -> None:
    """Refuse a user's module with unsuitable layers, by ConfigError.

    These are layers that normalise over a batch, unless ``batch_norm``, and lazy layers without
    sizes even after a first batch (`materialised`).
    """
    lazy = None
    for name, part in module.named_modules():
        layer = f"the model's layer {name or 'itself'} is {type(part).__name__}"
        if isinstance(part, BatchNorm) and not batch_norm:
            raise ConfigError(
                f"{layer}, which mixes the records of a batch; use GroupNorm or LayerNorm"
            )
        if any(map(is_lazy, [*part.parameters(recurse=False), *part.buffers(recurse=False)])):
            lazy = lazy or layer
    if lazy:
        raise ConfigError(
            f"{lazy}, whose sizes a first batch does not tell; give them, as "
            "nn.Linear(inputs, outputs) does"
        )


def is_known(module: nn.Module) -> bool:
    """Whether all of a module's layers are PyTorch's or ours, so that their code is known."""
    return all(type(part).__module__.startswith(OURS) for part in module.modules())


def is_same_in_training(module: nn.Module) -> bool:
    """Whether a module is known to do the same in training mode as in evaluation mode.

    Then none of its layers keeps a buffer or acts differently.
    """
    has_buffers = next(module.buffers(), None) is not None
    return is_known(module) and not other_in_training(module) and not has_buffers


def other_in_training(module: nn.Module) -> list[str]:
    """Names of the layer classes that act differently in training, such as dropout."""
    kinds = set()
    for part in module.modules():
        share = part.p if isinstance(part, _DropoutNd) else getattr(part, "dropout", 0)
        is_random = isinstance(share, float) and share > 0
        if is_random or isinstance(part, BatchNorm | nn.RReLU):
            kinds.add(type(part).__name__)
    return sorted(kinds)


@contextmanager
def user_code_errors(what: str) -> Iterator[None]:
    """Turn errors of a user's code inside the block into a ConfigError of one line.

    It says ``what`` fails, and the error's first line; of nested blocks the outermost words it.
    """
    try:
        yield
    except VertizoError as error:
        if not isinstance(error, ConfigError) or error.__cause__ is None:
            raise
        raise ConfigError(f"{what}: {first_line(error.__cause__)}") from error.__cause__
    except Exception as error:
        raise ConfigError(f"{what}: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """The class of an error, and the first line of its message."""
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def failing(name: str, inputs: Tensor) -> str:
    """The words of an error line for a model that fails for these inputs."""
    return f"the model {name} fails for {len(inputs)} records of shape {list(inputs.shape[1:])}"


class Buffers:
    """A module's buffers: evaluations may change none, training passes those in checkpoints."""

    def __init__(self, module: nn.Module) -> None:
        self._name = type(module).__name__
        self._live = dict(module.named_buffers())
        paths = {name: name.rpartition(".") for name in self._live}
        self._owners = {name: (module.get_submodule(p), key) for name, (p, _, key) in paths.items()}
        """Name → the module that owns the buffer, and its key there."""
        self._dropped = {
            name
            for name, (owner, key) in self._owners.items()
            if key in owner._non_persistent_buffers_set
        }
        """Names of the buffers that no checkpoint has."""
        self._seen: dict[str, tuple[int, Tensor | None]] = {}
        self._look()

    def _look(self) -> None:
        for name, buffer in self._live.items():
            small = buffer.numel() <= COMPARED and buffer.is_cpu  # nothing looks at a card's values
            self._seen[name] = buffer._version, buffer.clone() if small else None

    def kept(self) -> dict[str, Tensor]:
        """The buffers that checkpoints have, live."""
        return {name: b for name, b in self._live.items() if name not in self._dropped}

    def copies(self) -> dict[str, Tensor]:
        """Copies of all buffers, for a pass to change."""
        return {name: buffer.clone() for name, buffer in self._live.items()}

    def check_unchanged(self) -> None:
        """Raise ChangedBufferError if an evaluation changed a buffer."""
        for name, (owner, key) in self._owners.items():
            version, seen = self._seen[name]
            buffer = self._live[name]
            same = owner._buffers.get(key) is buffer
            if same and seen is not None:
                both_nan = (buffer != buffer) & (seen != seen)
                same = bool(((buffer == seen) | both_nan).all())
            elif same:
                same = buffer._version == version
            if not same:
                raise ChangedBufferError(
                    f"the model {self._name} changes its buffer {name!r} when it is evaluated; "
                    "only first-order methods without privacy train such a model (split, vafl)"
                )

    def changed(self, swapped: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The buffers of checkpoints as a training pass left them.

        ConfigError where it changed a buffer that no checkpoint has, or a shape or type.
        """
        found = {}
        for name, buffer in self._live.items():
            new = swapped[name].detach()
            if new.shape != buffer.shape or new.dtype != buffer.dtype:
                raise ConfigError(
                    f"the model {self._name} changes its buffer {name!r} from "
                    f"{list(buffer.shape)} {buffer.dtype} to {list(new.shape)} {new.dtype}; "
                    "it must stay of one shape and type"
                )
            if name not in self._dropped:
                found[name] = new
            elif not torch.equal(new, buffer):
                raise ConfigError(
                    f"the model {self._name} changes its buffer {name!r}, which no checkpoint has; "
                    "register it with persistent=True"
                )
        return found

    def put(self, values: Mapping[str, Tensor]) -> None:
        """Copy values into the module's buffers."""
        for name, value in values.items():
            self._live[name].copy_(value)
        self._look()
