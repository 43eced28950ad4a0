"""The file of ``vertizo agent``: who a party is, what tables it has, and what it lets run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from vertizo.config import tree as config_tree
from vertizo.config.error_lines import explain, mistake, read_yaml
from vertizo.core.errors import ConfigError
from vertizo.core.options import Options
from vertizo.core.suggestions import nearest
from vertizo.data.options import DataConfig
from vertizo.data.own_table import OwnTable
from vertizo.network.serving.options import Address, Name, OwnClient, ServerAddress, beside

Kind = Literal["align", "train", "predict", "score"]
ALLOWED: tuple[Kind, ...] = ("align", "train", "predict")
"""Kinds of job that a policy allows unless it says otherwise."""
Cover = Literal["labels", "features"]
JOB_NAME = r"[a-z0-9][a-z0-9-]{0,39}"


def _job_name(value: str) -> str:
    if re.fullmatch(JOB_NAME, value) is None:
        raise ValueError(
            f"{value!r} is no name of a job; use 1 to 40 small letters, digits and '-', such as "
            "tumours-2"
        )
    return value


def _table_name(value: str) -> str:
    if re.fullmatch(r"[\w-]{1,64}", value) is None:
        raise ValueError(f"{value!r} is no name of a table; use 1 to 64 letters, digits, _ and -")
    return value


JobName = Annotated[str, AfterValidator(_job_name)]
TableName = Annotated[str, AfterValidator(_table_name)]


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
