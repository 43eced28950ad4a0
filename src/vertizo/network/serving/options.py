"""The configurations of real parties: ``vertizo serve`` and ``vertizo join``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field, ValidationError, ValidationInfo, model_validator

from vertizo.config import tree as config_tree
from vertizo.config.error_lines import mistake, override, read_yaml, refusal
from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError
from vertizo.core.options import Options
from vertizo.core.text.suggestions import nearest
from vertizo.data.options import OwnTable
from vertizo.network.transport.addresses import is_loopback, parsed
from vertizo.network.transport.job_id import JobId
from vertizo.privacy.options import ON_LABELS
from vertizo.run.build.label_free import controlled

NO_LEDGER = "federation.trial makes all noise from a public seed; no ledger is for that"
SCORING_FILES = ("callers", "certificate", "key", "log")
"""Keys of `scoring` that are paths."""
NAME = re.compile(r"[\w.@-]{1,64}")


def _name(value: str) -> str:
    if NAME.fullmatch(value) is None:
        raise ValueError(f"{value!r} is no name; use 1 to 64 letters, digits and -._@")
    return value


def _address(value: str, info: ValidationInfo, *, reached: bool = False) -> str:
    try:
        parsed(value, reached=reached)
    except ValueError as error:
        raise ValueError(f"{info.field_name} {error}") from None
    return value


Name = Annotated[str, AfterValidator(_name)]
Address = Annotated[str, AfterValidator(_address)]
"""An address to listen at."""
ServerAddress = Annotated[str, AfterValidator(partial(_address, reached=True))]
"""An address to connect to."""


class FederationOptions(Options):
    """What a party's process takes part in."""

    name: Name
    """The federation's name, the same at all parties."""
    job: Name | None = None
    """The agents' name of the job, which they set: a process of another job is not talked to."""
    attempt: int = Field(default=0, ge=0)
    """The agents' number of the processes that belong together, which they set."""

    def job_id(self, run: str = "") -> JobId:
        """The job as connections name it; ``run`` is the run's name, once the job has begun."""
        return JobId(self.name, self.job or "", self.attempt, run)


class ServeOptions(FederationOptions):
    """How a label holder is reached, by whom, and where it keeps what it knows."""

    members: list[Name] = Field(min_length=1)
    """The feature holders by the names in their certificates, in the order of clients."""
    listen: Address = "0.0.0.0:7443"
    """Address to listen at."""
    certificates: Path
    """Folder of this party's certificate, its key and the authority's certificate."""
    folder: Path
    """Run folder; a server that is started again continues from it."""
    absent: Literal["wait", "go-on"] = "wait"
    """What to do about a member that is silent for `patience` seconds. wait: say so and wait.
    go-on: say so and continue without it; synchronous rounds are closed, and the job ends without
    its last part."""
    patience: float = Field(default=60.0, gt=0)
    """Seconds until a member that is waited for counts as silent."""
    rate: float | None = Field(default=None, gt=0)
    """Most messages a second from one member; more are read later. Default: no limit."""
    sync: bool = False
    """Whether to write each query to disk before it is answered, so that the job survives a power
    cut as well as the end of the process. A ledger's entries always are."""
    metrics: Address | None = None
    """Address of figures for Prometheus, without encryption. Default: none are given."""
    health: Address | None = None
    """Address of gRPC's health service, without encryption. Default: there is none."""
    trial: bool = False
    """Derive all randomness from `seed`, secrets too: for trying out; no guarantee holds."""

    @model_validator(mode="after")
    def _members_differ(self) -> ServeOptions:
        twice = next((m for m in self.members if self.members.count(m) > 1), None)
        if twice is not None:
            raise ValueError(f"federation.members has {twice!r} twice")
        return self


class ScoringOptions(Options):
    """Who may ask the label holder for scores while `vertizo score` runs, and how."""

    callers: Path | None = None
    """File of callers, their keys and rates, which `vertizo api-key` writes."""
    http: Address | None = None
    """Address for HTTP with JSON. Default: none."""
    grpc: Address | None = None
    """Address for gRPC. Default: none."""
    certificate: Path | None = None
    """Certificate for both, as callers know it. Without one they listen on this machine alone,
    such as at 127.0.0.1:8080, where a proxy may stand before them."""
    key: Path | None = None
    """The certificate's key."""
    most: int = Field(default=1000, ge=1, le=100_000)
    """Most records of one request."""
    deadline: float = Field(default=2.0, gt=0)
    """Seconds that members have to answer before a request is refused."""
    cache: float = Field(default=300.0, ge=0)
    """Seconds that a member's embedding of a record is kept, and used for scores."""
    cached: int = Field(default=1_000_000, ge=0)
    """Most embeddings of one member that are kept."""
    log: Path | None = None
    """File of requests, a line each. Default: queries.jsonl in `federation.folder`."""
    log_ids: bool = True
    """Whether the log says which records were asked for."""

    @model_validator(mode="after")
    def _reached(self) -> ScoringOptions:
        if self.http is None and self.grpc is None:
            raise ValueError("scoring.http and scoring.grpc are not set; set one, or both")
        if self.callers is None:
            raise ValueError(
                "scoring.callers is not set; name the file that `vertizo api-key` writes"
            )
        if (self.certificate is None) is not (self.key is None):
            raise ValueError("scoring.certificate and scoring.key belong together; set both")
        for name, place in (("http", self.http), ("grpc", self.grpc)):
            host = "" if place is None else parsed(place, reached=False)[0]
            if place is not None and self.certificate is None and not is_loopback(host):
                raise ValueError(
                    f"scoring.{name} is {place!r} without scoring.certificate, so that keys and "
                    "scores would travel in clear; listen at 127.0.0.1, or set scoring.certificate "
                    "and scoring.key"
                )
        return self


class ServeConfig(ExperimentConfig):
    """A label holder's configuration: the experiment, its own table, and the federation."""

    federation: ServeOptions
    scoring: ScoringOptions | None = None
    """For `vertizo score`."""

    @model_validator(mode="before")
    @classmethod
    def _noise_is_of_its_kind(cls, given: Any) -> Any:
        """A trial's noise follows from the seed, given or not; that of real parties never does."""
        tree = given if isinstance(given, Mapping) else {}
        sections = (tree.get(name) for name in ("federation", "privacy"))
        federation, privacy = (one if isinstance(one, Mapping) else {} for one in sections)
        if federation.get("trial") is True:
            return {"seed": 0, **given}
        if privacy.get("noise") == "seeded":
            raise ValueError(
                "privacy.noise is 'seeded' but noise of real parties is never made from a seed; "
                "leave it out, or set federation.trial"
            )
        return given

    @model_validator(mode="after")
    def _possible(self) -> ServeConfig:
        served, data = self.federation, self.data
        if data.name == "table" and data.id is None:
            raise ValueError("data.id is not set; name the column of keys that all parties have")
        if data.name == "table" and (data.columns or data.parties or data.split or data.sizes):
            raise ValueError(
                "data.columns, data.parties, data.split and data.sizes are for simulations; over a "
                "network every party has a table of its own"
            )
        if data.exclude_parties:
            raise ValueError(
                "data.exclude_parties is for simulations; leave members out of federation.members"
            )
        if data.parties not in (None, len(served.members)):
            raise ValueError(
                f"data.parties is {data.parties} but federation.members names "
                f"{len(served.members)}; leave data.parties out"
            )
        if self.client.models:
            raise ValueError(
                "client.models is for simulations; over a network each member's own configuration "
                "has its client.model"
            )
        if self.device != "cpu":
            raise ValueError(
                f"device is {self.device!r}, which is for simulations; use server.device here, and "
                "client.device in a member's own configuration"
            )
        if self.simulation.activation is not None:
            raise ValueError("simulation.activation is for simulations; leave it out")
        if self.control == "label-free":
            raise ValueError(
                "control is 'label-free', which is for simulations; set method.name to 'one-shot'"
            )
        if served.trial and self.privacy.ledger is not None:
            raise ValueError(NO_LEDGER)
        together = self.simulation.timing == "synchronous" and served.absent == "go-on"
        if together and self.server.update in ("private-sgd", "private-zeroth-order"):
            raise ValueError(
                f"federation.absent is 'go-on' and server.update {self.server.update!r}: a round "
                "without some members would be a whole step of the server, charged in part; use "
                "'wait', or server.update 'poisson-dp-sgd'"
            )
        once = self.privacy.mechanism == "embedding-noise" or self.codecs.feedback in ("up", "both")
        if together and once:
            raise ValueError(
                "federation.absent is 'go-on', which takes queries back in synchronous rounds; "
                "noise on embeddings and error feedback cannot be; use 'wait'"
            )
        return self

    def experiment(self) -> ExperimentConfig:
        """The experiment to train; its noise is made from a seed in a trial only."""
        # What nobody set stays so: some defaults follow from the data.
        own = self.model_fields_set - {"federation", "scoring"}
        plain = {name: getattr(self, name) for name in own}
        if self.privacy.mechanism in ("gaussian", *ON_LABELS) and not self.federation.trial:
            plain["privacy"] = self.privacy.model_copy(update={"noise": "secure"})
        if self.data.name != "table":
            held = self.data.label_holder is not None
            count = len(self.federation.members) + held
            plain["data"] = self.data.model_copy(update={"parties": count})
        return controlled(ExperimentConfig.model_validate(plain))


class JoinOptions(FederationOptions):
    """Where the label holder is, and who this party is."""

    server: ServerAddress
    """The label holder's address."""
    certificates: Path
    """Folder of this party's certificate, its key and the authority's certificate."""
    folder: Path
    """This party's run folder; a client that is started again continues from it."""
    server_name: str | None = None
    """The name in the label holder's certificate, if it is not the host of `server`."""
    patience: float = Field(default=3600.0, gt=0)
    """Seconds to keep trying while the label holder cannot be reached."""
    sync: bool = False
    """Whether to write each message to disk before it is acted on, to survive a power cut too."""
    metrics: Address | None = None
    """Address of figures for Prometheus, without encryption. Default: none are given."""
    health: Address | None = None
    """Address of gRPC's health service, without encryption. Default: there is none."""
    trial: bool = False
    """Whether to take part in a trial, where all randomness follows from a public seed."""
    require: dict[str, Any] = Field(default_factory=dict)
    """Keys of the label holder's configuration, such as method.name, and the values they must
    have."""


def _own_client(given: dict[str, Any]) -> dict[str, Any]:
    for key in given:
        if key not in OWN:
            known = f"; there are client.{', .'.join(OWN[:-1])} and .{OWN[-1]}"
            raise ValueError(f"client.{key} is no key{nearest(key, OWN) or known}")
    if line := mistake({"client": given}, ExperimentConfig):
        raise ValueError(line)
    return given


OWN = ("model", "optimizer", "device")
OwnClient = Annotated[dict[str, Any], AfterValidator(_own_client)]
"""What a member sets by itself; the other keys of `client` are the label holder's."""


class JoinConfig(Options):
    """A feature holder's configuration."""

    federation: JoinOptions
    data: OwnTable = OwnTable()
    client: OwnClient = Field(default_factory=dict)
    """``model``, ``optimizer`` and ``device`` of this party. Default: what the label holder
    proposes, on the CPU."""


Loaded = TypeVar("Loaded", ServeConfig, JoinConfig)


def is_label_holder(path: Path) -> bool:
    """Whether a file is for ``vertizo serve``; ConfigError if unreadable or of no real party."""
    return "members" in _section(read_yaml(path), path)


def load_serve(path: Path, overrides: Sequence[str] = ()) -> ServeConfig:
    """Load a label holder's file, with ``key=value`` overrides applied.

    ConfigError, in one line, names the file, the key, its value and what would be right.
    """
    tree = config_tree.read(path, overrides, None, ExperimentConfig())
    return _validated(tree, path, ServeConfig, overrides)


def load_join(path: Path, overrides: Sequence[str] = ()) -> JoinConfig:
    """Load a feature holder's file; arguments and errors as of `load_serve`."""
    tree = read_yaml(path)
    override(tree, overrides, OwnTable())
    _section(tree, path)
    config_tree.make_absolute(tree, path.parent)
    return _validated(tree, path, JoinConfig, overrides)


def _validated(
    tree: dict[str, Any], path: Path, kind: type[Loaded], settings: Sequence[str]
) -> Loaded:
    """Validate a configuration; relative paths in it are looked for beside its file."""
    beside(_section(tree, path), ("certificates", "folder"), path)
    beside(tree.get("scoring"), SCORING_FILES, path)
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        raise refusal(error, kind, str(path), settings) from None


def beside(section: Any, keys: Sequence[str], path: Path) -> None:
    """Make relative paths at these keys of a section absolute, from the folder of ``path``."""
    for key in keys:
        if isinstance(section, dict) and isinstance(section.get(key), str):
            section[key] = str((path.parent / Path(section[key]).expanduser()).absolute())


def _section(tree: Mapping[str, Any], path: Path) -> dict[str, Any]:
    section = tree.get("federation")
    if not isinstance(section, dict):
        raise ConfigError(
            f"{path} has no section federation; `vertizo train` is for configurations without one, "
            "and `vertizo predict` takes the run folder that it writes"
        )
    return section
