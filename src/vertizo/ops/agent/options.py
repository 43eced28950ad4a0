"""The file of ``vertizo agent``: who a party is, what tables it has, and what it lets run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from vertizo.config import tree as config_tree
from vertizo.config.error_lines import explain, mistake, read_yaml
from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError
from vertizo.core.names import Head
from vertizo.core.options import Options
from vertizo.core.text.suggestions import nearest
from vertizo.data.options import DataConfig, OwnTable
from vertizo.network.serving.options import (
    SCORING_FILES,
    Address,
    Name,
    OwnClient,
    ServerAddress,
    beside,
)

Kind = Literal["align", "train", "predict", "score"]
ALLOWED: tuple[Kind, ...] = ("align", "train", "predict")
"""Kinds of job that a policy allows unless it says otherwise."""
Cover = Literal["labels", "features"]
JOB_NAME = r"[a-z0-9][a-z0-9-]{0,39}"


def _named(pattern: str, of: str, use: str) -> AfterValidator:
    def check(value: str) -> str:
        if re.fullmatch(pattern, value) is None:
            raise ValueError(f"{value!r} is no name of a {of}; use {use}")
        return value

    return AfterValidator(check)


_SMALL = "1 to 40 small letters, digits and '-', such as tumours-2"
JobName = Annotated[str, _named(JOB_NAME, "job", _SMALL)]
TableName = Annotated[str, _named(r"[\w-]{1,64}", "table", "1 to 64 letters, digits, _ and -")]


class AgentOptions(Options):
    """What both kinds of agent have."""

    name: Name
    """The federation's name, the same at all parties."""
    certificates: Path
    """Folder of this party's certificate, its key and the authority's certificate."""
    folder: Path
    """Where the agent keeps its jobs, each in a folder of its own."""
    parallel: int = Field(default=2, ge=1, le=256)
    """Jobs that run side by side here; others wait for their turn."""


class LabelHolderOptions(AgentOptions):
    """Where the label holder's agent is reached, and how long it waits."""

    listen: Address = "0.0.0.0:7443"
    """Address that members' agents connect to."""
    ports: list[int] = Field(default=[7444, 7475], min_length=2, max_length=2)
    """First and last port for jobs; each running job listens at one of them."""
    deadline: float = Field(default=86400.0, gt=0)
    """Seconds that members have to approve a job."""
    silence: float = Field(default=3600.0, gt=0)
    """Seconds of silence of a member's agent that end a job that is approved or runs."""

    @model_validator(mode="after")
    def _enough_ports(self) -> LabelHolderOptions:
        first, last = self.ports
        if not 0 < first <= last < 65536:
            raise ValueError(
                f"agent.ports is [{first}, {last}]; it must be the first and the last of some "
                "ports, as in [7444, 7475]"
            )
        if first <= int(self.listen.rpartition(":")[2]) <= last:
            raise ValueError(
                f"agent.ports is [{first}, {last}], which has the port of agent.listen in it; "
                "name others"
            )
        return self


class MemberOptions(AgentOptions):
    """Where the label holder's agent is."""

    server: ServerAddress
    """The address of the label holder's agent. Jobs are at other ports of the same host."""
    server_name: str | None = None
    """The name in the label holder's certificate, if it is not the host of `server`."""


class Policy(Options):
    """Which jobs may run here."""

    tables: list[TableName] | None = None
    """Tables that jobs may use. Default: all of the section `tables`."""
    kinds: list[Kind] = Field(default=list(ALLOWED))
    """What jobs may do: align, train, predict, score. A job that scores runs until it is cancelled,
    and has this party look up whomever the label holder asks about: name it to allow it."""
    hashed: bool = False
    """Whether jobs may align by method hashed, which lets the label holder try out which
    identifiers this party has."""
    methods: list[str] | None = None
    """Methods that may train. Default: all."""
    epsilon: float | None = Field(default=None, gt=0)
    """The largest ε that a job may state. Default: no limit."""
    delta: float = Field(default=1e-3, gt=0, lt=1)
    """The largest δ that an ε may be at, where `epsilon` or the cover of features asks for one. It
    should be far below one over the records."""
    covers: list[Cover] = Field(default=["labels"])
    """What the guarantee of a job that trains must cover: labels against the members, features
    against the label holder. []: nothing, so that jobs without a guarantee may run."""


class LabelHolderPolicy(Policy):
    """Which jobs may be submitted, and with whom."""

    peers: list[Name] = Field(min_length=1)
    """Members whose agents may connect, by the names in their certificates."""


class MemberPolicy(Policy):
    """Which of the label holder's jobs this party takes part in."""

    peers: list[Name] | None = None
    """Other members that may take part in the same job. Default: any."""
    require: dict[str, Any] = Field(default_factory=dict)
    """Keys of a job's configuration, such as epochs, and the values they must have."""
    approve: Literal["by-hand", "automatic"] = "by-hand"
    """Who approves what this policy allows: a person by `vertizo approve`, or the agent."""
    tell: bool = True
    """Whether the label holder hears the line of a process that failed here, which may quote a
    file's name, a column or a value of the table; else only that it failed."""


class LabelHolderAgent(Options):
    """The file of the label holder's agent."""

    agent: LabelHolderOptions
    tables: dict[TableName, dict[str, Any]] = Field(min_length=1)
    """Name → path, id, label and other keys of a configuration's section `data`."""
    policy: LabelHolderPolicy

    @model_validator(mode="after")
    def _known(self) -> LabelHolderAgent:
        _check_named(self.policy, self.tables)
        for name, table in self.tables.items():
            for key in table:
                if key not in DataConfig.model_fields or key == "name":
                    hint = nearest(key, list(DataConfig.model_fields)) or "; it has keys of data"
                    raise ValueError(f"unknown key 'tables.{name}.{key}'{hint}")
            if line := mistake({"name": "table", **table}, DataConfig):
                raise ValueError(f"tables.{name}.{line}")
        return self


class MemberAgent(Options):
    """The file of a member's agent."""

    agent: MemberOptions
    tables: dict[TableName, OwnTable] = Field(min_length=1)
    """Name → path, id and other keys of the section `data` of a member. Only the columns that a
    table has here are ever used."""
    policy: MemberPolicy = MemberPolicy()
    client: OwnClient = Field(default_factory=dict)
    """`model`, `optimizer` and `device` of this party. Default: what the label holder proposes."""

    @model_validator(mode="after")
    def _known(self) -> MemberAgent:
        _check_named(self.policy, self.tables)
        return self


def _check_named(policy: Policy, tables: Mapping[str, Any]) -> None:
    for name in policy.tables or ():
        if name not in tables:
            raise ValueError(
                f"policy.tables names {name!r}, which the section tables lacks; "
                f"it has {', '.join(tables)}"
            )


def load_agent(path: Path) -> LabelHolderAgent | MemberAgent:
    """Load a party's file; relative paths in it are looked for beside it.

    Raises:
        ConfigError: one line that names the file, the key, its value and what would be right.
    """
    tree = read_yaml(path)
    agent, tables = tree.get("agent"), tree.get("tables")
    if not isinstance(agent, dict):
        raise ConfigError(f"{path} has no section agent; see docs/agent.md")
    if "server" in agent and "listen" in agent:
        raise ConfigError(
            f"{path}: agent has server, as a member's, and listen, as the label holder's; "
            "leave one of them out"
        )
    config_tree.make_absolute(tree, path.parent)
    beside(agent, ("certificates", "folder"), path)
    for name, table in tables.items() if isinstance(tables, dict) else ():
        if not isinstance(table, dict):
            raise ConfigError(
                f"{path}: tables.{name} is {table!r}; keys and values were expected there"
            )
        beside(table, ("path", "test_path"), path)
        for key, what in (("path", "the table"), ("id", "the column of keys")):
            if not isinstance(table.get(key), str):
                raise ConfigError(f"{path}: tables.{name}.{key} is missing; it names {what}")
    kind = MemberAgent if "server" in agent else LabelHolderAgent
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(f"{path}: {explain(error, kind)}") from None


OWN = ("path", "test_path", "id", "name", "root")
"""Keys of `data` that only the agent's file may have."""
PREDICTS = ("predict", "score")
"""Kinds of job that need an earlier job that trained."""
SECTIONS = {"score": "scoring"}
"""Kind → the section that its file has beside ``job``; for training it is a configuration."""
SERVED = ("absent", "patience", "rate", "sync")
"""Keys of `federation` that a job's file may have."""


class JobOptions(Options):
    """What a job does, with whom and on which table."""

    kind: Kind
    """align, train, predict or score."""
    name: JobName | None = None
    """Default: the kind and a number."""
    members: list[Name] = Field(min_length=1)
    """The members by the names in their certificates, in the order of clients."""
    table: TableName
    """The name of the table in every party's agent."""
    alignment: JobName | None = None
    """The job that aligned the table. Default: the table is used as it is."""
    model: JobName | None = None
    """For predict and score: the job that trained."""
    after: JobName | None = None
    """One more job that must have finished before this one begins. Those of `alignment` and `model`
    must in any case."""
    method: Literal["private", "hashed"] = "private"
    """For align: private needs the extra psi at all parties; hashed is not private."""
    head: Head | None = None
    """For predict and score: the server's model (private), or what `server.final_head` fitted on
    labels (raw). Default: the one that the job's figures are of."""

    @model_validator(mode="after")
    def _fits_its_kind(self) -> JobOptions:
        twice = next((m for m in self.members if self.members.count(m) > 1), None)
        if twice is not None:
            raise ValueError(f"job.members has {twice!r} twice")
        if self.kind in PREDICTS and self.model is None:
            raise ValueError(
                f"job.kind is {self.kind!r}, which needs job.model, the job that trained"
            )
        only = {"alignment": ("train", *PREDICTS), "model": PREDICTS, "head": PREDICTS}
        for key, kinds in {**only, "method": ("align",)}.items():
            if key in self.model_fields_set and self.kind not in kinds:
                fit = " and ".join(kinds)
                raise ValueError(f"job.{key} is set but job.kind is {self.kind!r}; it is for {fit}")
        return self


def load_job(path: Path, overrides: Sequence[str] = ()) -> tuple[JobOptions, dict[str, Any]]:
    """Load a job's file: its section ``job``, and the rest of the tree.

    Raises:
        ConfigError: one line that names the file, the key, its value and what would be right.
    """
    tree = config_tree.read(path, overrides, None, ExperimentConfig())
    section = tree.pop("job", None)
    if not isinstance(section, dict):
        raise ConfigError(f"{path} has no section job; it needs job.kind, members and table")
    try:
        job = JobOptions.model_validate(section)
    except ValidationError as error:
        raise ConfigError(f"{path}: {_below_job(error)}") from None
    own = SECTIONS.get(job.kind)
    if job.kind != "train" and (strange := [key for key in tree if key != own]):
        fit = "scoring" if strange[0] == "scoring" else "training"
        raise ConfigError(
            f"{path} has {strange[0]}, which is for {fit}, but job.kind is {job.kind!r}"
        )
    if own is not None and own not in tree:
        raise ConfigError(f"{path} has no section {own}, which job.kind {job.kind!r} needs")
    beside(tree.get("scoring"), SCORING_FILES, path)
    for section_name, keys, allowed in (("data", OWN, False), ("federation", SERVED, True)):
        given = tree.get(section_name, {})
        if not isinstance(given, dict):
            raise ConfigError(
                f"{path}: {section_name} is {given!r}; keys and values were expected there"
            )
        wrong = next((key for key in given if (key in keys) is not allowed), None)
        if wrong is not None:
            known = f"; a job has {', '.join(SERVED)}" if allowed else ""
            raise ConfigError(f"{path}: {section_name}.{wrong} is the agent's to say{known}")
    return job, tree


def _below_job(error: ValidationError) -> str:
    """The line of an error in the section ``job``, whose name goes in front of the key."""
    line = explain(error, JobOptions)
    first = error.errors()[0]
    if first["type"] == "extra_forbidden":
        return line.replace("unknown key '", "unknown key 'job.", 1)
    return line if first["type"] == "value_error" and "job." in line else f"job.{line}"
