"""Options of the models that a configuration can name; `vertizo.run.build.models` builds them.

The first line of each option's docstring is what `vertizo list models` shows.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, PositiveInt, model_validator

from vertizo.core.names import Family, NormName, Pooling, Side, Trainable
from vertizo.core.options import Chosen, Options
from vertizo.core.plugins.registry import Registry

if TYPE_CHECKING:
    from torch import nn

    from vertizo.models.architectures.text import Spec, Tuning

Device = Literal["cpu", "cuda"]


class MlpConfig(Options):
    """Linear layers with ReLU between; categories of a table get embeddings."""

    name: Literal["mlp"] = "mlp"
    hidden: tuple[PositiveInt, ...] = ()
    """Widths of the layers before the last."""
    outputs: PositiveInt = 3
    """Embedding size d_h. Default: 3; for tables 16, or 64 under an exact guarantee."""
    final_relu: bool = False
    """ReLU after the last layer as well. Default: only for tables under an exact guarantee."""
    last_layer: Literal["random", "zeros"] = "random"
    """How the last layer begins; zeros: with the same embedding for every record."""


class EncoderMlpConfig(MlpConfig):
    """Linear layers with ReLU between, for the label holder's own features."""

    outputs: PositiveInt = 16
    """Size of the encoded features."""
    final_relu: bool = True
    """ReLU after the last layer as well."""


class TableConfig(Options):
    """For tables: numbers in bins, categories as embeddings, hidden layers and dropout."""

    name: Literal["table"] = "table"
    bins: PositiveInt = 32
    """Bins of each number, between quantiles of this party's own training records."""
    width: PositiveInt = 16
    """Learned combinations of a number's bins."""
    hidden: tuple[PositiveInt, ...] = (128,)
    """Widths of the layers before the last."""
    outputs: PositiveInt = 32
    """Embedding size d_h."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Share of the hidden numbers that a training pass leaves out, where modules train as PyTorch's
    do: in first-order methods without privacy."""


class CnnConfig(Options):
    """3×3 convolutions with ReLU and pooling, of any number and width, then one linear layer."""

    name: Literal["cnn"] = "cnn"
    channels: tuple[PositiveInt, ...] = Field(default=(8, 16), min_length=1)
    """Channels of each convolution; a four-layer CNN has [16, 32, 64, 64]."""
    outputs: PositiveInt = 16
    """Embedding size d_h."""


class FiltersConfig(Options):
    """One layer of small filters, averaged over cells: few parameters, for use under noise."""

    name: Literal["filters"] = "filters"
    count: PositiveInt = 8
    """Number of filters."""
    size: Literal[1, 3, 5, 7, 9] = 3
    """Width and height of a filter in pixels."""
    cell: tuple[PositiveInt, PositiveInt] = (4, 4)
    """Height and width of the cells that are averaged over."""
    centring: float = Field(default=0.8, ge=0, le=1)
    """Share of the mean over filters that is subtracted in each cell."""
    scale: float = Field(default=5.0, gt=0)
    """Factor that the outputs are multiplied by."""
    background: float = 0.0
    """Value of an image's background, used for padding: -0.4242 for normalised MNIST."""
    initial: Literal["random", "oriented"] = "random"
    """How filters start: at random, or as derivatives in evenly spaced directions."""


class _Normed(Options):
    """A part of ResNet-18."""

    norm: NormName = "group"
    """What normalises. batch: as He et al. have it, over the records of a batch; for first-order
    methods without privacy, which train as PyTorch does."""


class ResnetConfig(_Normed):
    """ResNet-18 for small images."""

    name: Literal["resnet18"] = "resnet18"
    outputs: PositiveInt = 10
    """Embedding size d_h."""
    width: PositiveInt = 64
    """Channels of the first convolution; 64 is ResNet-18."""


class ResnetStemConfig(_Normed):
    """The first convolution of ResNet-18; its maps are the embedding (server: resnet18-rest)."""

    name: Literal["resnet18-stem"] = "resnet18-stem"
    width: PositiveInt = 64
    """Channels of the convolution; 64 is ResNet-18."""


class BagConfig(Options):
    """For texts, without further libraries: the mean of the words' vectors, then linear layers."""

    name: Literal["bag"] = "bag"
    vocabulary: int = Field(default=8192, ge=2)
    """Number of word vectors; larger token numbers are taken modulo this number."""
    dimension: PositiveInt = 32
    """Size of a word's vector."""
    hidden: tuple[PositiveInt, ...] = ()
    """Widths of the layers before the last."""
    outputs: PositiveInt = 16
    """Embedding size d_h."""


class _EncoderConfig(Options):
    """A transformer. The sizes are for a random one; a checkpoint has its own."""

    side: ClassVar[str] = "client"

    checkpoint: str = "minilm"
    """minilm, a folder, a name in the Hugging Face cache, or random (no checkpoint)."""
    family: Family | None = None
    """bert or distilbert. Default of random: bert."""
    vector: PositiveInt | None = None
    """Size of a word's vector. Default of random: 64."""
    layers: PositiveInt | None = None
    """Attention blocks. Default of random: 2."""
    heads: PositiveInt | None = None
    """Attention heads. Default of random: 4."""
    vocabulary: PositiveInt | None = None
    """Number of tokens, padding included. Default of random: 4096."""
    positions: PositiveInt | None = None
    """Largest number of tokens of a text. Default of random: 512."""

    def sizes(self) -> dict[str, Any]:
        """The sizes that are set, by name."""
        sizes = self.model_dump(include=set(_EncoderConfig.model_fields) - {"checkpoint"})
        return {name: value for name, value in sizes.items() if value is not None}

    @model_validator(mode="after")
    def _sizes_are_used(self) -> _EncoderConfig:
        given = next(iter(self.sizes()), None)
        if self.checkpoint != "random" and given is not None:
            raise ValueError(
                f"{self.side}.model.{given} is set but checkpoint {self.checkpoint!r} has its own; "
                f"only 'random' takes it"
            )
        return self

    def spec(self) -> Spec:
        """The encoder's checkpoint and sizes."""
        from vertizo.models.architectures.text import Spec

        return Spec(self.checkpoint, **self.sizes())


class _BlocksConfig(_EncoderConfig):
    """A transformer's attention blocks, and linear layers behind them."""

    trainable: Trainable = "all"
    """What training moves; the rest stays as it is. head: the linear layers behind the encoder.
    bias: them and all biases. lora: them and additions of low rank to the projections to queries
    and values. A MiniLM has 22.6 million numbers, 25,728 biases, 73,728 in additions of rank 8."""
    rank: PositiveInt | None = None
    """Rank of lora's additions. Default: 8."""
    last_blocks: PositiveInt | None = None
    """How many of the last attention blocks training reaches. Default: all, and word vectors."""

    @model_validator(mode="after")
    def _tuning_is_used(self) -> _BlocksConfig:
        key = f"{self.side}.model"
        if self.rank is not None and self.trainable != "lora":
            raise ValueError(
                f"{key}.rank is {self.rank} but {key}.trainable is {self.trainable!r}; "
                "it is for 'lora'"
            )
        if self.last_blocks is not None and self.trainable == "head":
            raise ValueError(
                f"{key}.last_blocks is {self.last_blocks} but {key}.trainable is 'head', which "
                "reaches none; leave it out"
            )
        return self

    def tuning(self) -> Tuning:
        """The part of the encoder that is trained."""
        from vertizo.models.architectures.text import Tuning

        return Tuning(self.trainable, self.rank or Tuning.rank, self.last_blocks)


class TextConfig(_BlocksConfig):
    """A BERT or DistilBERT, pooled to one vector for each text."""

    name: Literal["text"] = "text"
    pooling: Pooling = "mean"
    """mean: the mean over the text's tokens. cls: the first token's vector."""
    outputs: PositiveInt | None = None
    """Embedding size d_h, by a linear layer. Default: the encoder's own vector, without one."""

    @model_validator(mode="after")
    def _has_a_head(self) -> TextConfig:
        if self.trainable == "head" and self.outputs is None:
            raise ValueError(
                "client.model.trainable is 'head' but client.model.outputs is unset, so that there "
                "is no linear layer to train; set outputs, or use 'bias' or 'lora'"
            )
        return self


class TextEmbeddingsConfig(_EncoderConfig):
    """The embedding layer of a BERT or DistilBERT (server: text-rest)."""

    name: Literal["text-embeddings"] = "text-embeddings"
    trainable: Literal["all", "bias"] = "all"
    """What training moves; bias: the bias behind the word vectors, 384 numbers of a MiniLM."""

    def tuning(self) -> Tuning:
        """The part of the encoder that is trained."""
        from vertizo.models.architectures.text import Tuning

        return Tuning(self.trainable)


class ModuleConfig(Options):
    """Any torch.nn.Module of your own."""

    name: Literal["module"] = "module"
    path: str
    """``package.module:Class`` or ``file.py:Class``."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments that the class is called with."""


class FunctionConfig(Options):
    """Any function (parameters [d], features [batch, ...]) → outputs [batch, n], in NumPy."""

    name: Literal["function"] = "function"
    path: str
    """``package.module:function`` or ``file.py:function``."""
    num_parameters: PositiveInt
    """Length d of the vector of parameters."""
    initial_std: float = Field(default=0.0, ge=0)
    """Standard deviation of the normal distribution that the first parameters are drawn from."""


class ServerMlpConfig(Options):
    """Linear layers with ReLU between; as many outputs as the task needs."""

    name: Literal["mlp"] = "mlp"
    hidden: tuple[PositiveInt, ...] = (64,)
    """Widths of the layers before the last."""
    last_layer: Literal["random", "zeros"] = "random"
    """How the last layer starts. zeros: with the same prediction for every record."""


class SumConfig(Options):
    """The sum of the clients' embeddings, which are predictions, and one bias for each output. The
    label holder's own columns are no part of it; `server.final_head` reads them."""

    name: Literal["sum"] = "sum"


class ResnetRestConfig(_Normed):
    """ResNet-18 behind its first convolution (clients: resnet18-stem)."""

    name: Literal["resnet18-rest"] = "resnet18-rest"
    image: tuple[PositiveInt, PositiveInt] = (32, 32)
    """Height and width of the clients' maps after they are put together."""
    parts: PositiveInt = 2
    """Number of clients."""
    assemble: Side = "width"
    """How maps are put together. width: left and right parts. height: upper and lower parts.
    channels: whole images."""
    width: PositiveInt = 64
    """Channels of the first convolution, the same as the clients'."""


class TextRestConfig(_BlocksConfig):
    """A BERT or DistilBERT behind its embedding layer, and linear layers that predict."""

    side: ClassVar[str] = "server"

    name: Literal["text-rest"] = "text-rest"
    pooling: Pooling = "mean"
    """mean: the mean over the text's tokens. cls: the first token's vector."""
    hidden: tuple[PositiveInt, ...] = ()
    """Linear layers between the text's vector and the predictions."""


class OwnModel(Chosen):
    """The base of a model of one's own, named by its import path or an entry point.

    Its fields are keys of the section ``model``, beside ``name``.
    """

    @abstractmethod
    def module(self, shape: tuple[int, ...], outputs: int | None) -> nn.Module:
        """A module with random first parameters, for rows [batch, *shape].

        ``shape`` is that of one record's features, or of the joined embeddings. ``outputs`` is how
        many numbers the task needs of a server's model; None for a client's or an encoder's.
        """


Normed = (ResnetConfig, ResnetStemConfig, ResnetRestConfig)
"""Options with a ``norm`` key, which chooses the normalisation layers."""


def _models(*options: type[Options]) -> Registry[type[Options]]:
    named = {option.model_fields["name"].default: option for option in options}
    return Registry("model", named, OwnModel)


CLIENT_MODELS = _models(
    *(MlpConfig, TableConfig, CnnConfig, FiltersConfig, ResnetConfig, ResnetStemConfig, BagConfig),
    *(TextConfig, TextEmbeddingsConfig, ModuleConfig, FunctionConfig),
)
ENCODERS = _models(
    *(EncoderMlpConfig, TableConfig, CnnConfig, FiltersConfig, ResnetConfig, BagConfig, TextConfig),
    ModuleConfig,
)
SERVER_MODELS = _models(ServerMlpConfig, SumConfig, ResnetRestConfig, TextRestConfig, ModuleConfig)

if TYPE_CHECKING:
    _Tables = TableConfig | CnnConfig
    _Features = _Tables | FiltersConfig | ResnetConfig | BagConfig | TextConfig | ModuleConfig
    _OnlyClients = ResnetStemConfig | TextEmbeddingsConfig | FunctionConfig
    _OnlyServers = ServerMlpConfig | SumConfig | ResnetRestConfig | TextRestConfig
    ClientModelConfig = MlpConfig | _Features | _OnlyClients | OwnModel
    EncoderConfig = EncoderMlpConfig | _Features | OwnModel
    ServerModelConfig = _OnlyServers | ModuleConfig | OwnModel
else:
    ClientModelConfig = CLIENT_MODELS.choice("mlp")
    EncoderConfig = ENCODERS.choice("mlp")
    ServerModelConfig = SERVER_MODELS.choice("mlp")
