"""Building the models that a configuration names, for the shape of the data.

A model that does not fit is refused here, before anything is trained, in a line that names the
option.

This module also decides which models train in PyTorch's training mode, with dropout and batch
normalisation: those of first-order methods without any privacy, so that a user's module learns in a
baseline as it would anywhere else. All others are in evaluation mode: zeroth-order methods compare
losses, which must not differ by their masks, and guarantees need models that treat each record by
itself.

A user's module is told about its inputs as far as it asks: parameters called ``inputs``
(numbers of a record, int), ``shape`` (of a record), ``cardinalities`` (numbers of categories of
each of the first columns, which hold codes) and, of a server's model, ``outputs`` (int) are filled
in, unless ``arguments`` sets them.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from operator import index
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vertizo.config import architectures as kinds
from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError
from vertizo.core.memory import available
from vertizo.core.plugins.imports import load_object
from vertizo.core.randomness import Stream
from vertizo.models.architectures import networks, resnet, text
from vertizo.models.architectures.text import tuned
from vertizo.models.array import ArrayModel
from vertizo.models.base import PROCESSOR, DifferentiableModel, Model, Points, Where
from vertizo.models.encoded import EncodedModel
from vertizo.models.mixing import mixes_records
from vertizo.models.parts import first_line, materialised, other_in_training, user_code_errors
from vertizo.models.pretrained import FilterMeans, Preparation, Pretrained
from vertizo.models.recordwise import RecordwiseModel
from vertizo.models.torch import TorchModel, rejects_single_record, wrap
from vertizo.party.checks import is_bounded
from vertizo.privacy.options import ON_LABELS
from vertizo.run.build import placement


def brought_module(
    key: str,
    config: kinds.ModuleConfig | kinds.OwnModel,
    shape: tuple[int, ...],
    cardinalities: tuple[int, ...] = (),
    *,
    tokens: bool = False,
    outputs: int | None = None,
) -> nn.Module:
    """Make a user's module for records of that shape; its first parameters are random, not lazy.

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
        factory = callable_at(f"{key}.path", name, "make a torch.nn.Module")
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


def callable_at(key: str, path: str, must: str) -> Callable[..., Any]:
    """What an import path names; ConfigError, which names ``key``, if it cannot be called."""
    found = load_object(key, path)
    if not callable(found):
        raise ConfigError(f"{key} is {path!r}, which is a {type(found).__name__}; it must {must}")
    function: Callable[..., Any] = found
    return function


def _asked_for(
    make: Callable[..., Any], facts: Mapping[str, Any], given: Collection[str] = ()
) -> dict[str, Any]:
    """Select the facts that ``make`` has a parameter for, except those that are given."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # of no Python code
        return {}
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    wanted = {parameter.name for parameter in parameters if parameter.kind in by_name}
    return {name: facts[name] for name in facts if name in wanted and name not in given}


ImageModel = kinds.CnnConfig | kinds.FiltersConfig | kinds.ResnetConfig | kinds.ResnetStemConfig
TextModel = kinds.BagConfig | kinds.TextConfig | kinds.TextEmbeddingsConfig
Foreign = kinds.ModuleConfig | kinds.FunctionConfig | kinds.OwnModel
"""Models of a user's own code, of which only trials tell anything."""


def client_model(
    config: kinds.ClientModelConfig,
    shape: tuple[int, ...],
    stream: Stream,
    cardinalities: tuple[int, ...] = (),
    *,
    tokens: bool = False,
    records: Tensor | None = None,
    where: Where = PROCESSOR,
    training: Stream | None = None,
    front: Preparation | FilterMeans | None = None,
    apart: bool = False,
) -> Model:
    """Make the model that turns one party's features, of that shape, into embeddings.

    ``cardinalities`` are the numbers of categories of each of the first columns, which hold codes.
    ``tokens``: features are token ids. ``records`` are training records, between whose quantiles
    the bins of a table's model lie. First parameters are drawn on the processor, then moved to
    ``where``. ``training`` is the randomness of training mode (dropout); None for evaluation mode
    always. ``front`` prepares the features; a linear model behind it begins as the identity.
    ``apart``: as in `keeps_apart`.

    Raises:
        ConfigError: it cannot be made, or does not fit the features.
    """
    if front is not None:
        shape, cardinalities = (front.components,), ()
    if isinstance(config, kinds.FunctionConfig):
        if where.device != "cpu":
            raise ConfigError(
                f"client.device is {where.device!r} but client.model is a plain function, which "
                "works on arrays of the processor; use 'cpu'"
            )
        function = callable_at("client.model.path", config.path, "be a function")
        initial = stream.generator().standard_normal(config.num_parameters) * config.initial_std
        parameters = torch.from_numpy(initial).to(torch.float32)
        return ArrayModel(function, parameters, recordwise=apart)
    placement.check_device("client.device", where.device)
    _check_norm("client.model", config, training)
    with stream.torch_default(), room_for_parameters():
        module = _client_module("client.model", config, shape, cardinalities, tokens=tokens)
    if isinstance(module, networks.TabularNet) and records is not None:
        module.fit(records)
    linear = isinstance(config, kinds.MlpConfig) and (config.hidden, config.last_layer)
    if front is not None and linear == ((), "random"):  # begins as what is in front makes
        layer = next(part for part in module.modules() if isinstance(part, nn.Linear))
        nn.init.eye_(layer.weight)
        nn.init.zeros_(layer.bias)
    with named("client.model"):
        model = wrap(module, where, training, kind=_kind(config, apart))
    return model if front is None else Pretrained(front, model)


def check_reads_tokens(key: str, config: kinds.ClientModelConfig | kinds.EncoderConfig) -> None:
    """Raise ConfigError, which names ``key``, for a model that cannot read tokens of a text."""
    if not isinstance(config, TextModel | Foreign):
        raise ConfigError(
            f"{key} is {config.name!r} but a party's features are tokens of a text; "
            "use 'bag', 'text' or 'text-embeddings'"
        )


def _check_norm(key: str, config: object, training: Stream | None) -> None:
    if training is None and isinstance(config, kinds.Normed) and config.norm == "batch":
        raise ConfigError(
            f"{key}.norm is 'batch', which takes the records of a batch together; it is for "
            "first-order methods without privacy (vafl, split; server.update 'sgd'): use 'group'"
        )


def _client_module(
    key: str,
    config: kinds.ClientModelConfig | kinds.EncoderConfig,
    shape: tuple[int, ...],
    cardinalities: tuple[int, ...],
    *,
    tokens: bool,
) -> nn.Module:
    """Make a module for features of that shape, with random parameters; errors name ``key``."""
    if isinstance(config, kinds.FunctionConfig):
        raise ConfigError(f"{key} is a plain function; a torch.nn.Module is needed here")
    if isinstance(config, kinds.ModuleConfig | kinds.OwnModel):
        return brought_module(key, config, shape, cardinalities, tokens=tokens)
    if isinstance(config, TextModel) and not tokens:
        raise ConfigError(
            f"{key} is {config.name!r} but a party's features have shape {list(shape)} and are no "
            "tokens; it needs texts (a data set of texts, data.split segments)"
        )
    if tokens:
        check_reads_tokens(key, config)
    for kind, axes, needs in (
        (ImageModel, 3, "images (data.split rows, patches, halves or sides)"),
        (kinds.TableConfig, 1, "columns of a table"),
    ):
        if isinstance(config, kind) and len(shape) != axes:
            raise ConfigError(
                f"{key} is {config.name!r} but a party's features have shape {list(shape)}; "
                f"it needs {needs}"
            )
    with named(key):
        return _module(config, shape, cardinalities)


def _module(
    config: kinds.MlpConfig | kinds.TableConfig | ImageModel | TextModel,
    shape: tuple[int, ...],
    cardinalities: tuple[int, ...],
) -> nn.Module:
    if isinstance(config, kinds.TableConfig):
        return networks.TabularNet(shape[0], cardinalities, **config.model_dump(exclude={"name"}))
    if isinstance(config, kinds.CnnConfig):
        return networks.cnn(shape, config.channels, config.outputs)
    if isinstance(config, kinds.FiltersConfig):
        options = config.model_dump(exclude={"name", "initial"})
        return networks.Filters(shape, **options, oriented=config.initial == "oriented")
    if isinstance(config, kinds.ResnetConfig):
        return resnet.whole(shape, config.outputs, config.width, config.norm)
    if isinstance(config, kinds.ResnetStemConfig):
        return resnet.stem(shape, config.width, config.norm)
    if isinstance(config, kinds.BagConfig):
        return networks.Bag(config.vocabulary, config.dimension, config.hidden, config.outputs)
    if isinstance(config, kinds.TextConfig):
        whole = text.Text(config.spec(), shape[0], config.pooling, config.outputs)
        return tuned(whole, config.tuning())
    if isinstance(config, kinds.TextEmbeddingsConfig):
        return tuned(text.TextEmbeddings(config.spec(), shape[0]), config.tuning())
    inputs = torch.Size(shape).numel()
    hidden, outputs, final_relu = config.hidden, config.outputs, config.final_relu
    if cardinalities:
        net = networks.TableNet(inputs, cardinalities, hidden, outputs, final_relu=final_relu)
        return _begun(net, config.last_layer)
    return _begun(networks.mlp(inputs, hidden, outputs, final_relu=final_relu), config.last_layer)


def _begun(module: nn.Module, last_layer: str) -> nn.Module:
    """Set the last linear layer of a module to zeros, if ``last_layer`` says so."""
    if last_layer == "zeros":
        last = [part for part in module.modules() if isinstance(part, nn.Linear)][-1]
        for part in last.parameters():
            nn.init.zeros_(part)
    return module


def embedding_dim(model: Model, sample: Tensor, bound: float, *, first_order: bool) -> int:
    """d_h, found by one evaluation, in which a model that does not fit its data fails."""
    fails = f"it fails for features of shape {list(sample.shape[1:])}"
    with named("client.model"), user_code_errors(fails):
        embeddings = model(sample)
        if first_order and isinstance(model, DifferentiableModel):
            _, pullback = model.forward(Points(sample))
            if isinstance(model, RecordwiseModel):  # as in `server_model`
                pullback(torch.zeros_like(embeddings))
    if not is_bounded(embeddings.cpu(), bound):
        raise ConfigError(
            f"client.model: its first embeddings are infinite, NaN or beyond {bound:g}"
        )
    return int(embeddings.shape[1])


@dataclass(frozen=True)
class OwnFeatures:
    """The encoder of the label holder's own features, and training records that it reads."""

    encoder: kinds.EncoderConfig
    records: Tensor
    cardinalities: tuple[int, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one record's features."""
        return tuple(self.records.shape[1:])

    @property
    def tokens(self) -> bool:
        """Whether features are token ids."""
        return not self.records.is_floating_point()


def server_model(
    config: kinds.ServerModelConfig,
    width: int,
    outputs: int,
    stream: Stream,
    *,
    purpose: str,
    own: OwnFeatures | None = None,
    training: Stream | None = None,
    sizes: Sequence[int] = (),
    parts: int | None = None,
    where: Where = PROCESSOR,
    apart: bool = False,
) -> DifferentiableModel:
    """Make the model that turns joined embeddings, ``width`` numbers, into ``outputs`` numbers.

    ``own`` features of the label holder follow the embeddings in each row. A user's model is tried
    at batches of the ``sizes`` that it will see; messages say that ``purpose`` needs so many
    outputs. ``parts`` is the number of embeddings that are concatenated. ``training``, ``where``
    and ``apart`` are as in `client_model`.

    Raises:
        ConfigError: it cannot be made, does not fit, or mixes records.
    """
    key, tokens = "server.model", own is not None and own.tokens
    placement.check_device("server.device", where.device)
    _check_norm(key, config, training)
    if own is not None:
        _check_norm("server.encoder", own.encoder, training)
    with stream.torch_default(), room_for_parameters():
        if own is None:
            module = server_module(config, width, outputs, parts)
            with named(key):
                kind = _kind(config, apart)
                model: DifferentiableModel = wrap(module, where, training, kind=kind)
        else:
            encoder, dtype = _encoder(own, apart), torch.int64 if tokens else torch.float32
            with user_code_errors(f"server.encoder fails for features of shape {list(own.shape)}"):
                model = EncodedModel(
                    lambda encoded: server_module(config, width + encoded, outputs),
                    *(encoder, width, own.shape, dtype, training, where),
                    kinds=(_kind(config, apart), _kind(own.encoder, apart)),
                )
    rows = torch.zeros(2, width + (torch.Size(own.shape).numel() if own else 0))
    with named(key), user_code_errors(f"it fails for {width} joined embeddings"):
        size = model(rows).shape[1]
        _, pullback = model.forward(Points(rows))
        if apart:  # what fails for these fails for all; later a failure is one record's
            slopes = torch.zeros(2, size)
            pullback.inputs(slopes)
            pullback.record_gradients(slopes, slice(0, 2)).squares()
    sample = torch.randn((5, rows.shape[1]), generator=torch.Generator().manual_seed(0))
    sample, scale = (sample.abs(), 1.0) if tokens else (sample, 1000.0)
    foreign = isinstance(config, Foreign) or (own and isinstance(own.encoder, Foreign))
    with named(key):
        mixes = foreign and mixes_records(model, sample, sizes, scale, slopes=training is None)
    if mixes:
        raise ConfigError(
            "server.model predicts a record from other records of the batch as well, which no "
            "guarantee survives; it must treat each record by itself"
        )
    if size != outputs:
        raise ConfigError(f"server.model has {size} outputs; {purpose} needs {outputs}")
    return model


def check_tokens(key: str, model: Model, tables: Iterable[Tensor]) -> None:
    """Raise ConfigError, which names ``key``, for tokens that the model's encoder does not know.

    For a model on a card, which looks at no token.
    """
    parts = model.module.modules() if isinstance(model, TorchModel) else ()
    for part in parts:
        if isinstance(part, text.TokenEmbedding):
            with named(key):
                for table in tables:
                    part.check(table)


def _encoder(own: OwnFeatures, apart: bool) -> nn.Module:
    key, cardinalities = "server.encoder", own.cardinalities
    module = _client_module(key, own.encoder, own.shape, cardinalities, tokens=own.tokens)
    for part in module.modules():
        if isinstance(part, text.TokenEmbedding):
            part.takes_any = apart
            if not apart:
                with named(key):
                    part.check(own.records)
        if isinstance(part, networks.TabularNet):
            part.fit(own.records)
    return module


def keeps_apart(config: ExperimentConfig, *, noised: bool = False) -> bool:
    """Whether users' own models are evaluated record by record, since a guarantee may rest on that.

    True if releases or embeddings carry noise; ``noised`` as in `why_evaluates`.
    """
    return noised or config.privacy.mechanism not in ("none", *ON_LABELS)


def _kind(config: object, apart: bool) -> type[TorchModel] | None:
    return RecordwiseModel if apart and isinstance(config, Foreign) else None


def server_module(
    config: kinds.ServerModelConfig, width: int, outputs: int, parts: int | None = None
) -> nn.Module:
    """Make a module that predicts from rows of ``width`` numbers; its parameters are random.

    Raises:
        ConfigError: it cannot be made, or does not fit.
    """
    if isinstance(config, kinds.ModuleConfig | kinds.OwnModel):
        return brought_module("server.model", config, (width,), outputs=outputs)
    with named("server.model"):
        if isinstance(config, kinds.SumConfig):
            return networks.Sum(width, outputs, parts)
        if isinstance(config, kinds.ResnetRestConfig):
            return resnet.rest(width, outputs, **config.model_dump(exclude={"name"}))
        if isinstance(config, kinds.TextRestConfig):
            rest = text.TextRest(config.spec(), width, config.pooling, config.hidden, outputs)
            return tuned(rest, config.tuning())
        module = networks.mlp(width, config.hidden, outputs, final_relu=False)
        return _begun(module, config.last_layer)


def unlike(table: Tensor) -> Tensor:
    """Five records to try a model on, different from each other if there are so many kinds."""
    kinds: Tensor = torch.unique(table[:4096], dim=0)
    return kinds[torch.linspace(0, len(kinds) - 1, 5).long()]


def why_evaluates(
    config: ExperimentConfig, *, server: bool = False, noised: bool = False
) -> str | None:
    """The reason why a client's or the server's module stays in evaluation mode; None if it trains.

    ``noised`` says that replies carry noise, for a client whose configuration does not.
    """
    mechanism, method, update = config.privacy.mechanism, config.method, config.server.update
    if noised or mechanism == "gaussian":
        return "replies carry noise"
    if mechanism not in ("none", *ON_LABELS):
        return f"privacy.mechanism is {mechanism!r}"
    if not method.as_pytorch:
        return f"method {method.name!r} compares losses, which must be of one mask"
    return f"server.update is {update!r}, not 'sgd'" if server and update != "sgd" else None


def check_last_batch(model: Model, row: Tensor, records: int, batch_size: int) -> None:
    """Raise ConfigError if a batch of one record meets batch normalisation, which needs two."""
    alone = batch_size == 1 or records % batch_size == 1
    if alone and isinstance(model, TorchModel) and rejects_single_record(model.module, row):
        raise ConfigError(
            f"batch_size is {batch_size}, which leaves one of {records} training records alone in "
            "a batch, and batch normalisation needs two; use another batch_size"
        )


def mode_notes(key: str, model: Model, why: str | None) -> tuple[str, ...]:
    """A note for users on a model's mode; none if the mode changes nothing for its layers."""
    parts = model.parts if isinstance(model, EncodedModel) else (model,)
    modules = [part.module for part in parts if isinstance(part, TorchModel)]
    layers = ", ".join(sorted({kind for one in modules for kind in other_in_training(one)}))
    if not layers:
        return ()
    if why is None:
        return (f"{key}: {layers} as PyTorch has it: in training, and not where it predicts",)
    return (f"{key}: {layers} does nothing, in evaluation mode throughout: {why}",)


@contextmanager
def named(key: str) -> Iterator[None]:
    """Put ``key`` in front of a ConfigError or a MemoryError inside, as a ConfigError."""
    try:
        yield
    except (ConfigError, MemoryError) as error:
        raise ConfigError(f"{key}: {error}") from None


SHARE = 0.5
"""Share of free memory that parameters may take; training makes a second copy of them."""
BESIDE = 2**12
"""Bytes of a layer's tensor beside its numbers, mostly for Python objects."""


def room_for_parameters() -> AbstractContextManager[Any]:
    """Raise MemoryError for a module made inside that is too large for the free memory.

    Otherwise the system would end the process. Tensors that layers make by `torch.empty`, as all of
    PyTorch's do, are counted before they are made.
    """
    free = available()
    return nullcontext() if free is None else _Counted(SHARE * free)


class _Counted(TorchFunctionMode):
    def __init__(self, most: float) -> None:
        super().__init__()
        self.most, self.taken = most, 0.0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.empty:
            self._count(kwargs.get("size", args), kwargs.get("dtype"), kwargs.get("device"))
        return func(*args, **kwargs)

    def _count(self, size: Any, dtype: torch.dtype | None, device: Any) -> None:
        if device is not None and torch.device(device).type != "cpu":
            return
        sides = size[0] if size and isinstance(size[0], tuple | list) else size
        try:
            numbers = math.prod(map(index, sides))
        except TypeError:  # no size, as PyTorch is about to say
            return
        self.taken += numbers * (dtype or torch.get_default_dtype()).itemsize + BESIDE
        if self.taken > self.most:
            raise MemoryError(
                f"its parameters take {self.taken / 1e9:,.1f} GB or more, and there is room for "
                f"{self.most / 1e9:,.1f} GB of them here; make its layers smaller"
            )
