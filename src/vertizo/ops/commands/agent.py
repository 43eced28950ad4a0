"""``vertizo agent``: the one long-lived process of a party."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from vertizo.cli import log
from vertizo.cli.console import say
from vertizo.cli.options import argument
from vertizo.cli.parties import stop_requests


def agent(
    config: Annotated[Path, argument("YAML file of this party's agent.", "CONFIG")],
    log_format: log.LogFormat = "text",
) -> None:
    """Run a party's jobs with the other parties' agents, until it is stopped."""
    from vertizo.ops.agent.jobs.store import Store
    from vertizo.ops.agent.options import MemberAgent, load_agent

    chosen = load_agent(config)
    notice = partial(say, console=log.errors())
    log.about(chosen.agent.name)
    from vertizo.network.transport.certificates import Credentials

    credentials = Credentials.load(chosen.agent.certificates)
    log.about(chosen.agent.name, credentials.name)
    credentials.check_use(serving=not isinstance(chosen, MemberAgent))
    store = Store(chosen.agent.folder)
    store.create()
    with store.alone(), stop_requests() as stopped:
        if isinstance(chosen, MemberAgent):
            from vertizo.ops.agent.member import Member

            Member(chosen, credentials.name, store, notice).serve(stopped)
        else:
            from vertizo.ops.agent.label_holder import LabelHolder

            LabelHolder(chosen, store, notice).serve(stopped)
    notice("stopped; the same command takes its jobs up again")
