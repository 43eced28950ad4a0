"""One validated, frozen configuration of an experiment; every key has a default and a meaning.

A configuration comes from YAML, from ``key=value`` overrides, or from Python, and is complete once
it is built: written out again, it reruns the experiment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt, Tag, ValidationError, model_validator

from vertizo.architectures import (
    ClientModelConfig,
    FunctionConfig,
    MlpConfig,
    ServerMlpConfig,
    ServerModelConfig,
)
from vertizo.codecs.none import FloatName
from vertizo.data.options import DataConfig
from vertizo.errors import ConfigError
from vertizo.methods.cascaded import Cascaded
from vertizo.methods.dpzv import Dpzv
from vertizo.methods.vafl import Vafl
from vertizo.option_text import explain, override, read_yaml, write_yaml
from vertizo.options import Options, chosen_by
from vertizo.server.table import Join
from vertizo.simulation.links import Links
from vertizo.zeroth_order.directions import LawName

MethodConfig = Annotated[
    Annotated[Dpzv, Tag("dpzv")]
    | Annotated[Cascaded, Tag("cascaded")]
    | Annotated[Vafl, Tag("vafl")],
    chosen_by("name", "dpzv"),
]


class ClientOptimizerConfig(Options):
    """Stochastic gradient descent of a client."""

    learning_rate: float = Field(default=0.003, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)


class ServerOptimizerConfig(Options):
    """Stochastic gradient descent of the server."""

    learning_rate: float = Field(default=0.01, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)


class ClientConfig(Options):
    """Every client's model and optimiser."""

    model: ClientModelConfig = MlpConfig()
    optimizer: ClientOptimizerConfig = ClientOptimizerConfig()


class ServerConfig(Options):
    """The server's model, and how it is trained."""

    model: ServerModelConfig = ServerMlpConfig()
    optimizer: ServerOptimizerConfig = ServerOptimizerConfig()
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
    epochs: PositiveInt = 120
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
    threads: int = Field(default=1, gt=0, le=256)
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
        return write_yaml(self.model_dump(mode="json"))


def load(path: Path | None, overrides: Sequence[str] = ()) -> ExperimentConfig:
    """A configuration file, or the defaults, with ``key=value`` overrides applied.

    Raises:
        ConfigError: one line that names the file, the key, its value and what would be right.
    """
    tree = {} if path is None else read_yaml(path)
    override(tree, overrides, ExperimentConfig())
    _make_absolute(tree, Path.cwd() if path is None else path.parent)
    return parse(tree, "--set" if path is None else str(path))


def parse(tree: Mapping[str, Any], source: str = "configuration") -> ExperimentConfig:
    """A configuration from nested mappings; ``source`` is named in errors."""
    try:
        return ExperimentConfig.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(f"{source}: {explain(error, ExperimentConfig)}") from None


def _make_absolute(tree: dict[str, Any], beside: Path) -> None:
    """Make relative paths absolute, so that the run can go on from any folder.

    The file of a user's model is looked for where we are, then beside the configuration.
    """
    data = tree.get("data")
    if isinstance(data, dict) and isinstance(data.get("root"), str):
        data["root"] = str(Path(data["root"]).expanduser().absolute())
    for side in ("client", "server"):
        section = tree.get(side)
        model = section.get("model") if isinstance(section, dict) else None
        path = model.get("path") if isinstance(model, dict) else None
        if isinstance(model, dict) and isinstance(path, str):
            file, _, name = path.rpartition(":")
            for place in (Path(file), beside / file):
                if file.endswith(".py") and place.is_file():
                    model["path"] = f"{place.absolute()}:{name}"
                    break
