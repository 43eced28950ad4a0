"""JSON schemas of an agent's file and of a job's."""

from __future__ import annotations

from typing import Any

from vertizo.cli.schema import generated
from vertizo.ops.agent.options import JobOptions, LabelHolderAgent, MemberAgent


def agent() -> dict[str, Any]:
    """The schema of an agent's file."""
    return generated(LabelHolderAgent | MemberAgent, "An agent's configuration")


def job() -> dict[str, Any]:
    """The schema of a job's file: of its section ``job``; other sections depend on the agent."""
    found = generated(JobOptions, "A job that is submitted")
    meta = {key: found.pop(key) for key in ("$schema", "title")}
    definitions = {"$defs": found.pop("$defs")} if "$defs" in found else {}
    section = {"type": "object", "required": ["job"], "properties": {"job": found}}
    return {**meta, **definitions, **section}
