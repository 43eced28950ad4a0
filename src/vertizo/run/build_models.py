"""The models that a configuration names, made for the shape of the data.

What does not fit is refused here, before anything is trained, in a line that names the option.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vertizo.config.architectures import (
    BagConfig,
    ClientModelConfig,
    CnnConfig,
    Device,
    EncoderConfig,
    FiltersConfig,
    FunctionConfig,
    MlpConfig,
    ModuleConfig,
    OwnModel,
    ResnetConfig,
    ResnetRestConfig,
    ResnetStemConfig,
    ServerModelConfig,
    SumConfig,
    TextConfig,
    TextEmbeddingsConfig,
    TextRestConfig,
)
from vertizo.core.errors import ConfigError
from vertizo.core.imports import load_object
from vertizo.core.randomness import Stream
from vertizo.models import networks, resnet, text
from vertizo.models.array import ArrayModel
from vertizo.models.base import DifferentiableModel, Model, Points
from vertizo.models.encoded import EncodedModel
from vertizo.models.parts import first_line, somebodys_code
from vertizo.models.pretrained import Preparation, Pretrained
from vertizo.models.torch import wrap
from vertizo.party.checks import is_bounded
from vertizo.run.record_mixing import mixes_records

ImageModel = CnnConfig | FiltersConfig | ResnetConfig | ResnetStemConfig
TextModel = BagConfig | TextConfig | TextEmbeddingsConfig


def client_model(
    config: ClientModelConfig,
    shape: tuple[int, ...],
    stream: Stream,
    cardinalities: tuple[int, ...] = (),
    *,
    tokens: bool = False,
    device: Device = "cpu",
    training: Stream | None = None,
    front: Preparation | None = None,
) -> Model:
    """The model that turns one party's features into embeddings.

    Args:
        config: its kind.
        shape: of one record's features.
        stream: randomness of its first parameters.
        cardinalities: number of categories of each of the first columns, which hold codes.
        tokens: whether the features are token ids.
        device: where it lives; its first parameters are drawn on the processor for any.
        training: randomness of a module in training (dropout); None for evaluation mode always.
        front: prepares the features; the first outputs of a linear model are what it yields.

    Raises:
        ConfigError: it cannot be made, or does not fit the features.
    """
    _check_device(device, config)
    if isinstance(config, FunctionConfig):
        function = load_object("client.model.path", config.path)
        if not callable(function):
            raise ConfigError(
                f"client.model.path is {config.path!r}, which is a {type(function).__name__}; "
                "it must be a function"
            )
        initial = stream.generator().standard_normal(config.num_parameters) * config.initial_std
        return ArrayModel(function, torch.from_numpy(initial).to(torch.float32))
    if front is not None:
        shape, cardinalities = (front.components,), ()
    with stream.torch_default():
        module = client_module("client.model", config, shape, cardinalities, tokens=tokens)
    if front is not None and _is_linear(config):
        (linear,) = (part for part in module.modules() if isinstance(part, nn.Linear))
        nn.init.eye_(linear.weight)
        nn.init.zeros_(linear.bias)
    with named("client.model"):
        model = wrap(module, device, training)
    return model if front is None else Pretrained(front, model)


def _is_linear(config: ClientModelConfig) -> bool:
    """Whether a model with `client.pretrain` begins as what that yields."""
    return isinstance(config, MlpConfig) and not config.hidden and config.last_layer == "random"


def _check_device(device: Device, config: ClientModelConfig) -> None:
    if device == "cpu":
        return
    if isinstance(config, FunctionConfig):
        raise ConfigError(
            f"client.device is {device!r} but client.model is a plain function, which works on "
            "arrays of the processor; use 'cpu'"
        )
    if not torch.cuda.is_available():
        raise ConfigError(
            f"client.device is {device!r}, but PyTorch finds no CUDA device; use 'cpu', or install "
            "a driver and a PyTorch that were built for CUDA"
        )


def check_reads_tokens(key: str, config: ClientModelConfig | EncoderConfig) -> None:
    """Refuse a model that does not take the tokens of a text.

    Raises:
        ConfigError: names ``key`` and the models that do.
    """
    if not isinstance(config, TextModel | ModuleConfig | FunctionConfig | OwnModel):
        raise ConfigError(
            f"{key} is {config.name!r} but a party's features are tokens of a text; "
            "use 'bag', 'text' or 'text-embeddings'"
        )


def client_module(
    key: str,
    config: ClientModelConfig | EncoderConfig,
    shape: tuple[int, ...],
    cardinalities: tuple[int, ...],
    *,
    tokens: bool,
) -> nn.Module:
    """A module for features of that shape, with random first parameters; ``key`` is for errors.

    Raises:
        ConfigError: it cannot be made, or does not fit the features.
    """
    if isinstance(config, FunctionConfig):
        raise ConfigError(f"{key} is a plain function; a torch.nn.Module is needed here")
    if isinstance(config, ModuleConfig):
        return _user_module(key, config)
    if isinstance(config, OwnModel):
        return _own_module(key, config, shape, None)
    if isinstance(config, TextModel) and not tokens:
        raise ConfigError(
            f"{key} is {config.name!r} but a party's features have shape {list(shape)} and are no "
            "tokens; it needs texts (a data set of texts, data.split segments)"
        )
    if tokens:
        check_reads_tokens(key, config)
    if isinstance(config, ImageModel) and len(shape) != 3:
        raise ConfigError(
            f"{key} is {config.name!r} but a party's features have shape {list(shape)}; "
            "it needs images (data.split rows, patches, halves or sides)"
        )
    with named(key):
        return _module(config, shape, cardinalities)


def _module(
    config: MlpConfig | ImageModel | TextModel,
    shape: tuple[int, ...],
    cardinalities: tuple[int, ...],
) -> nn.Module:
    if isinstance(config, CnnConfig):
        return networks.cnn(shape, config.channels, config.outputs)
    if isinstance(config, FiltersConfig):
        return networks.Filters(
            shape,
            config.count,
            size=config.size,
            cell=config.cell,
            centring=config.centring,
            scale=config.scale,
            background=config.background,
            oriented=config.initial == "oriented",
        )
    if isinstance(config, ResnetConfig):
        return resnet.whole(shape, config.outputs, config.width)
    if isinstance(config, ResnetStemConfig):
        return resnet.stem(shape, config.width)
    if isinstance(config, BagConfig):
        return networks.Bag(config.vocabulary, config.dimension, config.hidden, config.outputs)
    if isinstance(config, TextConfig):
        return text.Text(config.spec(), shape[0], config.pooling, config.outputs)
    if isinstance(config, TextEmbeddingsConfig):
        return text.TextEmbeddings(config.spec(), shape[0])
    inputs = int(torch.Size(shape).numel())
    hidden, outputs, final_relu = config.hidden, config.outputs, config.final_relu
    if cardinalities:
        net = networks.TableNet(inputs, cardinalities, hidden, outputs, final_relu=final_relu)
    else:
        net = networks.mlp(inputs, hidden, outputs, final_relu=final_relu)
    return _begun(net, config.last_layer)


def _user_module(key: str, config: ModuleConfig) -> nn.Module:
    factory = load_object(f"{key}.path", config.path)
    if not callable(factory):
        raise ConfigError(
            f"{key}.path is {config.path!r}, which is a {type(factory).__name__}; "
            "it must make a torch.nn.Module"
        )
    try:
        with somebodys_code(f"{key}: making {config.path} failed"):
            module = factory(**config.arguments)
    except ConfigError as error:
        if isinstance(error.__cause__, TypeError):
            words = f"{key}.arguments do not fit {config.path}: {first_line(error.__cause__)}"
            raise ConfigError(words) from None
        raise
    return _checked(module, f"{key}.path is {config.path!r}")


def _own_module(
    key: str, config: OwnModel, shape: tuple[int, ...], outputs: int | None
) -> nn.Module:
    with somebodys_code(f"{key}: making {config.name} failed"):
        module = config.module(shape, outputs)
    return _checked(module, f"{key}.name is {config.name!r}")


def _checked(module: object, words: str) -> nn.Module:
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"{words}, which makes a {type(module).__name__}; it must make a torch.nn.Module"
        )
    return module


def embedding_dim(model: Model, sample: Tensor, bound: float, *, first_order: bool) -> int:
    """d_h, by one evaluation; so that a model that does not fit its data fails here."""
    fails = f"it fails for features of shape {list(sample.shape[1:])}"
    with named("client.model"), somebodys_code(fails):
        embeddings = model(sample)
        if first_order and isinstance(model, DifferentiableModel):
            model.forward(Points(sample))
    if not is_bounded(embeddings, bound):
        raise ConfigError(
            f"client.model: its first embeddings are infinite, NaN or beyond {bound:g}"
        )
    return int(embeddings.shape[1])


def is_foreign(config: ClientModelConfig | EncoderConfig | ServerModelConfig) -> bool:
    """Whether a model is code of the user's, of which nothing is known but what was tried."""
    return isinstance(config, ModuleConfig | FunctionConfig | OwnModel)


@dataclass(frozen=True)
class OwnFeatures:
    """What an encoder of the label holder's own features is made for."""

    encoder: EncoderConfig
    shape: tuple[int, ...]
    """Of one record's features."""
    cardinalities: tuple[int, ...] = ()
    """As in `client_model`."""
    tokens: bool = False


def server_model(
    config: ServerModelConfig,
    width: int,
    outputs: int,
    stream: Stream,
    *,
    purpose: str,
    own: OwnFeatures | None = None,
    training: Stream | None = None,
    sizes: Sequence[int] = (),
    parts: int | None = None,
) -> DifferentiableModel:
    """The model that turns joined embeddings into predictions.

    Args:
        config: its kind.
        width: size of the joined embeddings.
        outputs: how many the task needs.
        stream: randomness of its first parameters.
        purpose: what needs so many outputs, for the message.
        own: the label holder's features, which follow the embeddings in each row; None for none.
        training: randomness of a module in training (dropout); None for evaluation mode always.
        sizes: of the batches that it will see, at which a model of the user's is tried.
        parts: embeddings that are concatenated in a row.

    Raises:
        ConfigError: it cannot be made, does not fit, or mixes records.
    """
    with stream.torch_default():
        if own is None:
            module = server_module(config, width, outputs, parts)
            with named("server.model"):
                model = wrap(module, training=training)
        else:
            model = _with_encoder(config, width, outputs, own, training)
    rows = torch.zeros(2, width + (torch.Size(own.shape).numel() if own else 0))
    with named("server.model"), somebodys_code(f"it fails for {width} joined embeddings"):
        size = model(rows).shape[1]
        model.forward(Points(rows))
    sample = torch.randn((5, rows.shape[1]), generator=torch.Generator().manual_seed(0))
    tokens = own is not None and own.tokens
    tried = sizes if is_foreign(config) or (own and is_foreign(own.encoder)) else ()
    with named("server.model"):
        scale = 1.0 if tokens else 1000.0
        mixes = mixes_records(model, sample.abs() if tokens else sample, tried, scale)
    if mixes:
        raise ConfigError(
            "server.model predicts a record from other records of the batch as well, which no "
            "guarantee survives; it must treat each record by itself"
        )
    if size != outputs:
        raise ConfigError(f"server.model has {size} outputs; {purpose} needs {outputs}")
    return model


def _with_encoder(
    config: ServerModelConfig,
    width: int,
    outputs: int,
    own: OwnFeatures,
    training: Stream | None,
) -> EncodedModel:
    if isinstance(config, SumConfig):
        raise ConfigError(
            "server.model is 'sum' but the label holder has features of its own, which have no "
            "place in a sum; use 'mlp'"
        )
    key = "server.encoder"
    encoder = client_module(key, own.encoder, own.shape, own.cardinalities, tokens=own.tokens)
    with somebodys_code(f"{key} fails for features of shape {list(own.shape)}"):
        return EncodedModel(
            lambda encoded: server_module(config, width + encoded, outputs),
            encoder,
            width,
            own.shape,
            torch.int64 if own.tokens else torch.float32,
            training,
        )


def server_module(
    config: ServerModelConfig, width: int, outputs: int, parts: int | None = None
) -> nn.Module:
    """A module that predicts from rows of ``width`` numbers, with random first parameters.

    Raises:
        ConfigError: it cannot be made, or does not fit.
    """
    if isinstance(config, ModuleConfig):
        return _user_module("server.model", config)
    if isinstance(config, OwnModel):
        return _own_module("server.model", config, (width,), outputs)
    with named("server.model"):
        if isinstance(config, SumConfig):
            return networks.Sum(width, outputs, parts)
        if isinstance(config, ResnetRestConfig):
            return resnet.rest(
                width,
                outputs,
                image=config.image,
                parts=config.parts,
                assemble=config.assemble,
                width=config.width,
            )
        if isinstance(config, TextRestConfig):
            return text.TextRest(config.spec(), width, config.pooling, config.hidden, outputs)
        module = networks.mlp(width, config.hidden, outputs, final_relu=False)
        return _begun(module, config.last_layer)


def _begun(module: nn.Module, last_layer: str) -> nn.Module:
    """The module, its last layer as it is to begin."""
    if last_layer == "zeros":
        last = [part for part in module.modules() if isinstance(part, nn.Linear)][-1]
        for part in last.parameters():
            nn.init.zeros_(part)
    return module


@contextmanager
def named(key: str) -> Iterator[None]:
    """Put the key of a model in front of what is wrong with it."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from None
