"""The file that a label holder submits: a section ``job``, and for training a configuration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from vertizo.config import tree as config_tree
from vertizo.config.error_lines import explain
from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError
from vertizo.core.names import Head
from vertizo.core.options import Options
from vertizo.network.serving.options import SCORING_FILES, Name, beside
from vertizo.ops.agent.options import JobName, Kind, TableName

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
