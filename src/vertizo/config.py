"""One validated, frozen configuration of an experiment; every key has a default and a meaning.

A configuration comes from YAML, from ``key=value`` overrides, or from Python, and is complete once
it is built: written out again, it reruns the experiment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, PositiveInt, ValidationError, model_validator
from pydantic_core import ErrorDetails

from vertizo.codecs.none import FloatName
from vertizo.data.vertical import SplitName
from vertizo.errors import ConfigError
from vertizo.methods.cascaded import Cascaded
from vertizo.methods.dpzv import Dpzv
from vertizo.methods.vafl import Vafl
from vertizo.options import Options
from vertizo.server.table import Join
from vertizo.simulation.links import Links
from vertizo.zeroth_order.directions import LawName


class DataConfig(Options):
    """Which records, and who holds what of them."""

    name: str = "digits"
    """`vertizo list datasets` shows what there is."""
    root: Path | None = None
    """Folder of data files; unset: the environment variable VERTIZO_DATA, else a cache."""
    parties: PositiveInt | None = None
    """Number of clients; unset: as many as the split says, 4 for images."""
    split: SplitName | None = None
    """How features are cut; unset: rows of pixels for images, named columns for tables."""
    columns: dict[str, list[str]] | None = None
    """For tables: party name → column names."""
    validation: float = Field(default=0.1, ge=0, lt=1)
    """Share of the training records that select the best model and are not trained on."""
    limit: int | None = Field(default=None, ge=2)
    """Use at most so many training records."""


class MlpConfig(Options):
    """Linear layers with ReLU between."""

    name: Literal["mlp"] = "mlp"
    hidden: tuple[PositiveInt, ...] = ()
    outputs: PositiveInt = 64
    """Embedding size of a client; the server's outputs follow from the task instead."""
    final_relu: bool = False
    """ReLU after the last layer as well."""


class CnnConfig(Options):
    """3×3 convolutions with ReLU and pooling, then one linear layer."""

    name: Literal["cnn"] = "cnn"
    channels: tuple[PositiveInt, ...] = Field(default=(8, 16), min_length=1)
    outputs: PositiveInt = 64
    """Embedding size."""


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


ClientModelConfig = Annotated[
    MlpConfig | CnnConfig | ModuleConfig | FunctionConfig, Field(discriminator="name")
]
ServerModelConfig = Annotated[MlpConfig | ModuleConfig, Field(discriminator="name")]
MethodConfig = Annotated[Dpzv | Cascaded | Vafl, Field(discriminator="name")]


class OptimizerConfig(Options):
    """Stochastic gradient descent."""

    learning_rate: float = Field(gt=0)
    momentum: float = Field(default=0.0, ge=0, lt=1)


class ClientConfig(Options):
    """Every client's model and optimiser."""

    model: ClientModelConfig = MlpConfig(outputs=16)
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=0.005, momentum=0.9)


class ServerConfig(Options):
    """The server's model, and how it is trained."""

    model: ServerModelConfig = MlpConfig(hidden=(64,))
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=0.02, momentum=0.9)
    update: Literal["sgd", "zeroth-order", "none"] = "sgd"
    """sgd and zeroth-order train on the raw labels; none leaves the model as initialised."""
    smoothing: float = Field(default=1e-3, gt=0)
    """λ of a zeroth-order update."""
    directions: LawName = "scaled-sphere"
    """Law of a zeroth-order update."""
    join: Join = "concat"
    """How the clients' embeddings become the server model's input."""
    embedding_bound: float = Field(default=1e6, gt=0)
    """Largest absolute value accepted in an embedding."""


class PrivacyConfig(Options):
    """What the server's replies pass through."""

    mechanism: Literal["none", "gaussian"] = "none"
    clip: float | None = Field(default=None, gt=0)
    """C, the largest norm of one record's values."""
    noise_std: float | None = Field(default=None, gt=0)
    """σ, the noise on the sum over the batch; or give epsilon."""
    epsilon: float | None = Field(default=None, gt=0)
    """The ε that the noise is calibrated to, over all clients and epochs."""
    delta: float = Field(default=1e-5, gt=0, lt=1)

    @model_validator(mode="after")
    def _complete(self) -> PrivacyConfig:
        given = [k for k in ("clip", "noise_std", "epsilon") if getattr(self, k) is not None]
        if self.mechanism == "none" and given:
            raise ValueError(
                f"privacy.{given[0]} is set but privacy.mechanism is 'none'; use 'gaussian'"
            )
        if self.mechanism == "gaussian":
            if self.clip is None:
                raise ValueError("privacy.mechanism 'gaussian' needs privacy.clip, e.g. 5.0")
            if (self.noise_std is None) == (self.epsilon is None):
                raise ValueError(
                    "privacy.mechanism 'gaussian' needs exactly one of privacy.noise_std and "
                    "privacy.epsilon"
                )
        return self


class CodecConfig(Options):
    """How arrays become bytes."""

    name: Literal["none"] = "none"
    dtype: FloatName = "float32"


class CodecsConfig(Options):
    """One codec for each way."""

    up: CodecConfig = CodecConfig()
    down: CodecConfig = CodecConfig()


class SimulationConfig(Links):
    """Timing of the rounds, and the clients' links."""

    timing: Literal["asynchronous", "synchronous"] = "asynchronous"
    table: Literal["zeros", "upload"] = "zeros"
    """What the embedding table holds before the first query; an upload's bytes are counted."""


class ExperimentConfig(Options):
    """Everything that decides a run's numbers."""

    seed: int = Field(default=0, ge=0)
    epochs: PositiveInt = 60
    """Passes of every client over its records."""
    rounds: PositiveInt | None = None
    """Stop after so many server steps, if that is earlier."""
    batch_size: PositiveInt = 64
    data: DataConfig = DataConfig()
    method: MethodConfig = Dpzv()
    client: ClientConfig = ClientConfig()
    server: ServerConfig = ServerConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    codecs: CodecsConfig = CodecsConfig()
    simulation: SimulationConfig = SimulationConfig()
    control: Literal["none", "frozen", "random"] = "none"
    """Replace the clients' updates: none at all, or random ones of the same length."""
    evaluate_every: PositiveInt | None = None
    """Server steps between two evaluations; unset: once an epoch of all clients."""
    checkpoint_seconds: float = Field(default=30.0, ge=0)
    """Wall-clock seconds between two checkpoints."""
    threads: PositiveInt = 1
    """Threads of one tensor operation; small models are fastest with one."""

    @model_validator(mode="after")
    def _fits(self) -> ExperimentConfig:
        method, update = self.method.name, self.server.update
        if self.method.first_order_client and isinstance(self.client.model, FunctionConfig):
            raise ValueError(
                f"method {method!r} back-propagates through client models but client.model "
                f"{self.client.model.path!r} is a plain function; use method 'dpzv' or 'cascaded'"
            )
        if self.privacy.epsilon is not None and update != "none":
            raise ValueError(
                f"privacy.epsilon is {self.privacy.epsilon} but server.update {update!r} trains on "
                "raw labels, so that no ε would hold; give privacy.noise_std instead, or set "
                "server.update to 'none'"
            )
        return self

    def to_yaml(self) -> str:
        """The complete configuration."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def load(path: Path | None, overrides: Sequence[str] = ()) -> ExperimentConfig:
    """A configuration file, or the defaults, with ``key=value`` overrides applied.

    Raises:
        ConfigError: one line that names the file, the key, its value and what would be right.
    """
    tree: dict[str, Any] = {}
    source = "--set" if path is None else str(path)
    if path is not None:
        tree = _read(path)
    for override in overrides:
        _set(tree, override)
    return parse(tree, source)


def parse(tree: Mapping[str, Any], source: str = "configuration") -> ExperimentConfig:
    """A configuration from nested mappings; ``source`` is named in errors."""
    try:
        return ExperimentConfig.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(f"{source}: {_explain(error.errors()[0], error.error_count())}") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a text file") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{path}: not YAML{where}: {getattr(error, 'problem', error)}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: holds a {type(tree).__name__}; keys and values were expected")
    return tree


def _set(tree: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise ConfigError(f"--set {override}: write key=value, for example epochs=20")
    *parents, last = key.split(".")
    node = tree
    for parent in parents:
        if not isinstance(node.get(parent), dict):
            node[parent] = {}
        node = node[parent]
    try:
        node[last] = _number(yaml.safe_load(text))
    except yaml.YAMLError:
        raise ConfigError(f"--set {override}: {text!r} is not a YAML value") from None


def _number(value: Any) -> Any:
    """YAML 1.1 reads 1e-3 as text; people mean a number."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _explain(error: ErrorDetails, count: int) -> str:
    """One line of a validation error: the key, its value, what would be right."""
    tags = {"mlp", "cnn", "module", "function", "dpzv", "cascaded", "vafl"}
    tags |= {"constant", "exponential", "log-normal", "trace"}
    parts = [str(p) for p in error["loc"] if str(p) not in tags]
    key = ".".join(parts) or "configuration"
    context = error.get("ctx", {})
    more = f" (and {count - 1} more)" if count > 1 else ""
    if error["type"] == "extra_forbidden":
        known = _keys_beside(error["loc"])
        near = get_close_matches(parts[-1], known, 1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"
        return f"unknown key {key!r}{hint if known else ''}{more}"
    if error["type"] in ("union_tag_invalid", "union_tag_not_found"):
        field = str(context["discriminator"]).strip("'")
        given = f"is {context['tag']!r}" if "tag" in context else "is missing"
        known_tags = context.get("expected_tags", "one of the known names")
        return f"{key}.{field} {given}; known are {known_tags}{more}"
    if error["type"] == "value_error":
        return f"{context['error']}{more}"
    message = error["msg"][0].lower() + error["msg"][1:]
    return f"{key} is {error['input']!r}: {message}{more}"


def _keys_beside(location: Sequence[str | int]) -> list[str]:
    """The keys that are known where an unknown one was found."""
    node: Any = ExperimentConfig()
    for part in location[:-1]:
        node = getattr(node, str(part), node)
    return list(type(node).model_fields) if isinstance(node, Options) else []
