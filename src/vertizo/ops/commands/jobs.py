"""``vertizo submit``, ``jobs`` and others: they read and write the jobs in an agent's folder."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vertizo.cli.console import say
from vertizo.cli.options import AsJson, Settings, argument, option
from vertizo.core.errors import ConfigError, RunError
from vertizo.core.text import strict_json

if TYPE_CHECKING:
    from vertizo.ops.agent.jobs.states import State
    from vertizo.ops.agent.jobs.store import Job, Store
    from vertizo.ops.agent.options import LabelHolderAgent, MemberAgent

AgentFile = Annotated[
    Path, option("YAML file of this party's agent.", "FILE", "--agent", envvar="VERTIZO_AGENT")
]
JobName = Annotated[str, argument("Name of the job.", "JOB")]
DEFAULT = Path("agent.yaml")
AGENT_SECONDS = 15.0
"""Seconds that a submission waits for an agent that is being started."""


def submit(
    job: Annotated[Path, argument("YAML file of the job.", "FILE")],
    agent: AgentFile = DEFAULT,
    settings: Settings = None,
) -> None:
    """Submit a job, as the label holder, to this party's agent."""
    config, store = _opened(agent, "label holder")
    _await_agent(store, agent)
    from vertizo.ops.agent.preparing import submit as submitted

    offer = submitted(job, config, store, settings or [])
    stated = "" if offer.epsilon is None else f", ε = {offer.epsilon:g} at δ = {offer.delta:g}"
    covered = f", covers {' and '.join(offer.covers)}{stated}" if offer.covers else ""
    earlier = _earlier(store, _known(store, offer.job))
    what = f"{offer.kind} on {offer.table} with {', '.join(offer.members)}"
    print(f"{offer.job}: {what}{covered}{', ' if earlier else ''}{earlier}")


def _await_agent(store: Store, agent: Path) -> None:
    """Wait until an agent runs, which takes seconds to start; RunError if none comes."""
    deadline, said = time.monotonic() + AGENT_SECONDS, False
    while not store.is_in_use:
        if time.monotonic() >= deadline:
            raise RunError(
                f"no agent runs on {store.folder}; start it with `vertizo agent {agent}`"
            )
        if not said:
            said = True
            waits = f"waiting for {AGENT_SECONDS:g} s at most"
            say(f"no agent runs on {store.folder} yet; {waits}", Console(stderr=True))
        time.sleep(0.1)


def jobs(
    job: Annotated[str | None, argument("Name of a job, to see all about it.", "[JOB]")] = None,
    agent: AgentFile = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List the jobs of this party's agent, or tell all about one."""
    config, store = _opened(agent)
    holds = not _is_member(config)
    found = store.jobs() if job is None else [_known(store, job)]
    if as_json:
        print(strict_json.line([_described(store, each, holds) for each in found]))
        return
    if job is not None:
        _show(store, found[0], holds)
    elif found:
        _list(store, found, holds)
    else:
        print("no jobs")
    if not store.is_in_use:
        say(f"no agent runs on {store.folder}", Console(stderr=True))


def cancel(job: JobName, agent: AgentFile = DEFAULT) -> None:
    """Take a job back, as the label holder; it ends at all parties."""
    _, store = _opened(agent, "label holder")
    _move(store, job, "cancelled", "cancelled here")


def approve(job: JobName, agent: AgentFile = DEFAULT) -> None:
    """Approve a job that waits for a person, as a member."""
    _, store = _opened(agent, "member")
    _move(store, job, "approved", "by a person")


def refuse(
    job: JobName,
    why: Annotated[str, option("A line that the label holder hears.", "TEXT")] = "by a person",
    agent: AgentFile = DEFAULT,
) -> None:
    """Refuse a job, as a member, or leave one that runs; it ends at all parties."""
    _, store = _opened(agent, "member")
    _move(store, job, "refused", why)


def _opened(path: Path, wanted: str = "") -> tuple[Any, Store]:
    """Load a party's file and open its jobs; ConfigError if the command is the other side's."""
    from vertizo.ops.agent.jobs.store import Store
    from vertizo.ops.agent.options import load_agent

    config: LabelHolderAgent | MemberAgent = load_agent(path)
    is_member = _is_member(config)
    if wanted and is_member is not (wanted == "member"):
        other = "`vertizo approve` and `vertizo refuse`" if is_member else "`vertizo cancel`"
        raise ConfigError(
            f"{path} is of a {'member' if is_member else 'label holder'}, and this command is for "
            f"a {wanted}; there is {other}"
        )
    return config, Store(config.agent.folder)


def _is_member(config: LabelHolderAgent | MemberAgent) -> bool:
    return hasattr(config.agent, "server")


def _known(store: Store, name: str) -> Job:
    from vertizo.core.text.suggestions import nearest

    job = store.job(name)
    if job is None:
        names = [each.name for each in store.jobs()]
        raise ConfigError(f"there is no job {name!r} here{nearest(name, names)}")
    return job


def _move(store: Store, name: str, state: State, line: str) -> None:
    job = _known(store, name)
    if not store.move(name, state, line):
        job = _known(store, name)
        raise RunError(f"{name} is {job.state}, so that it cannot be {state}")
    late = "" if store.is_in_use else "; no agent runs, which will hear of it once it is started"
    print(f"{name} is {state}{late}")


def _described(store: Store, job: Job, holds: bool) -> dict[str, Any]:
    return {
        "job": job.name,
        "kind": job.offer.kind,
        "state": job.state,
        "line": _line(job),
        "after": [name for name in (job.offer.alignment, job.offer.model, job.after) if name],
        "since": _time(job.since),
        "submitted": _time(job.created),
        "method": job.offer.method if job.offer.kind == "align" else None,
        "table": job.offer.table,
        "members": store.whereabouts(job) if holds else list(job.offer.members),
        "covers": list(job.offer.covers),
        "epsilon": job.offer.epsilon,
        "delta": job.offer.delta,
        "folder": str(store.folder_of(job.name)),
    }


def _line(job: Job) -> str:
    """The reason of a job's state, or of this party's outcome while others do not know it."""
    if job.state == "running" and job.outcome:
        return f"{job.outcome} here{': ' if job.reason else ''}{job.reason}"
    return job.line


def _earlier(store: Store, job: Job) -> str:
    """The jobs that a job waits for, in words; empty if it waits for none."""
    names = [] if job.is_over else [name for name, _ in store.unfinished(job)]
    return f"after {', '.join(names)}" if names else ""


def _time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _list(store: Store, found: list[Job], holds: bool) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("job", "kind", "table", "state", "since", "what"):
        table.add_column(heading, overflow="fold", no_wrap=heading != "what")
    for job in found:
        words = _line(job)
        if not job.is_over and holds:
            there = "; ".join(f"{name} {said}" for name, said in store.whereabouts(job).items())
            words = f"{words}; {there}" if words else there
        words = "; ".join(filter(None, (_earlier(store, job), words)))
        row = (job.name, job.offer.kind, job.offer.table, job.state, _time(job.since), words)
        table.add_row(*map(Text, row))
    Console().print(table)


def _show(store: Store, job: Job, holds: bool) -> None:
    from vertizo.ops.agent.jobs.states import MEANING

    words = _described(store, job, holds)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    words["state"] = f"{job.state}: {MEANING[job.state]}"
    for key, value in words.items():
        if isinstance(value, dict):
            value = "; ".join(f"{name} {said}" for name, said in value.items())
        elif isinstance(value, list):
            value = ", ".join(value)
        if value not in ("", None):
            table.add_row(key, Text(str(value)))
    Console().print(table)
    say(f"{_time(when)}  {words}" for when, words in store.events(job.name))
