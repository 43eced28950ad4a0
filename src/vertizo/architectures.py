"""Models by name: what can be configured, and how it is made.

An option class for every kind of model; `client_model` and `server_model` turn one of them and the
shape of the data into a model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, PositiveInt, Tag
from torch import Tensor, nn

from vertizo import validate
from vertizo.errors import ConfigError, NonFiniteError
from vertizo.imports import load_object
from vertizo.models import networks
from vertizo.models.array import ArrayModel
from vertizo.models.base import DifferentiableModel, Model, Points
from vertizo.models.torch import wrap
from vertizo.options import Options, chosen_by
from vertizo.randomness import Stream


class MlpConfig(Options):
    """Linear layers with ReLU between."""

    name: Literal["mlp"] = "mlp"
    hidden: tuple[PositiveInt, ...] = ()
    outputs: PositiveInt = 3
    """Embedding size d_h."""
    final_relu: bool = False
    """ReLU after the last layer as well."""


class CnnConfig(Options):
    """3×3 convolutions with ReLU and pooling, then one linear layer."""

    name: Literal["cnn"] = "cnn"
    channels: tuple[PositiveInt, ...] = Field(default=(8, 16), min_length=1)
    outputs: PositiveInt = 16
    """Embedding size d_h."""


class ModuleConfig(Options):
    """Any torch.nn.Module that the user brings."""

    name: Literal["module"] = "module"
    path: str
    """``package.module:Class`` or ``file.py:Class``; called with ``arguments``."""
    arguments: dict[str, Any] = Field(default_factory=dict)


class FunctionConfig(Options):
    """Any function (parameters [d], features [batch, ...]) → outputs [batch, n], in NumPy."""

    name: Literal["function"] = "function"
    path: str
    """``package.module:function`` or ``file.py:function``."""
    num_parameters: PositiveInt
    initial_std: float = Field(default=0.0, ge=0)
    """Standard deviation of the normal numbers that training starts from."""


class ServerMlpConfig(Options):
    """Linear layers with ReLU between; as many outputs as the task needs."""

    name: Literal["mlp"] = "mlp"
    hidden: tuple[PositiveInt, ...] = (64,)


ClientModelConfig = Annotated[
    Annotated[MlpConfig, Tag("mlp")]
    | Annotated[CnnConfig, Tag("cnn")]
    | Annotated[ModuleConfig, Tag("module")]
    | Annotated[FunctionConfig, Tag("function")],
    chosen_by("name", "mlp"),
]
ServerModelConfig = Annotated[
    Annotated[ServerMlpConfig, Tag("mlp")] | Annotated[ModuleConfig, Tag("module")],
    chosen_by("name", "mlp"),
]


def client_model(
    config: ClientModelConfig,
    shape: tuple[int, ...],
    stream: Stream,
    cardinalities: tuple[int, ...] = (),
) -> Model:
    """The model that turns one party's features into embeddings.

    Args:
        config: its kind.
        shape: of one record's features.
        stream: randomness of its first parameters.
        cardinalities: number of categories of each of the first columns, which hold codes.

    Raises:
        ConfigError: it cannot be made, or does not fit the features.
    """
    if isinstance(config, FunctionConfig):
        function = load_object("client.model.path", config.path)
        if not callable(function):
            raise ConfigError(
                f"client.model.path is {config.path!r}, which is a {type(function).__name__}; "
                "it must be a function"
            )
        initial = stream.generator().standard_normal(config.num_parameters) * config.initial_std
        return ArrayModel(function, torch.from_numpy(initial).to(torch.float32))
    with stream.torch_default():
        if isinstance(config, MlpConfig):
            inputs = int(torch.Size(shape).numel())
            module: nn.Module = networks.mlp(
                inputs, config.hidden, config.outputs, final_relu=config.final_relu
            )
        elif isinstance(config, CnnConfig):
            if len(shape) != 3:
                raise ConfigError(
                    f"client.model is 'cnn' but a party's features have shape {list(shape)}; "
                    "it needs images (data.split rows, patches, halves or sides)"
                )
            module = networks.cnn(shape, config.channels, config.outputs)
        else:
            module = _user_module("client.model", config)
    with _named("client.model"):
        return wrap(module)


def _user_module(key: str, config: ModuleConfig) -> nn.Module:
    factory = load_object(f"{key}.path", config.path)
    if not callable(factory):
        raise ConfigError(
            f"{key}.path is {config.path!r}, which is a {type(factory).__name__}; "
            "it must make a torch.nn.Module"
        )
    try:
        module = factory(**config.arguments)
    except TypeError as error:
        raise ConfigError(f"{key}.arguments do not fit {config.path}: {_line(error)}") from None
    except Exception as error:
        raise ConfigError(f"{key}: making {config.path} failed: {_line(error)}") from None
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"{key}.path is {config.path!r}, which makes a {type(module).__name__}; "
            "it must make a torch.nn.Module"
        )
    return module


def embedding_dim(model: Model, sample: Tensor, bound: float, *, first_order: bool) -> int:
    """d_h, by one evaluation; so that a model that does not fit its data fails here."""
    with _named("client.model"):
        try:
            embeddings = model(sample)
            if first_order and isinstance(model, DifferentiableModel):
                model.forward(Points(sample))
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"it fails for features of shape {list(sample.shape[1:])}: {_line(error)}"
            ) from None
    try:
        validate.bounded("its first embeddings", embeddings, bound)
    except NonFiniteError:
        raise ConfigError(
            f"client.model: its first embeddings are infinite, NaN or beyond {bound:g}"
        ) from None
    return int(embeddings.shape[1])


def server_model(
    config: ServerModelConfig, width: int, outputs: int, stream: Stream, *, purpose: str
) -> DifferentiableModel:
    """The model that turns joined embeddings into predictions.

    Args:
        config: its kind.
        width: size of the joined embeddings.
        outputs: how many the task needs.
        stream: randomness of its first parameters.
        purpose: what needs so many outputs, for the message.

    Raises:
        ConfigError: it cannot be made, or does not fit.
    """
    with stream.torch_default():
        if isinstance(config, ServerMlpConfig):
            module: nn.Module = networks.mlp(width, config.hidden, outputs, final_relu=False)
        else:
            module = _user_module("server.model", config)
    with _named("server.model"):
        model = wrap(module)
        try:
            found = model(torch.zeros(2, width)).shape[1]
            model.forward(Points(torch.zeros(2, width)))
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(f"it fails for {width} joined embeddings: {_line(error)}") from None
    if found != outputs:
        raise ConfigError(f"server.model has {found} outputs; {purpose} needs {outputs}")
    return model


@contextmanager
def _named(key: str) -> Iterator[None]:
    """Put the key of a model in front of what is wrong with it."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from None


def _line(error: Exception) -> str:
    """The first line of somebody else's error."""
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
