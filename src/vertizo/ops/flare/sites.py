"""The sites of a FLARE job: the label holder at FLARE's server, and a member at each client.

FLARE makes these objects from the job's configuration, by import path and constructor arguments.
So whoever submits a job chooses the arguments: no argument here names code.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar, cast

from nvflare.collab import collab

from vertizo.core.errors import ConfigError, RunError
from vertizo.network.transport.base import Channel
from vertizo.ops.flare.cells import ENDED, LOOK, CellChannel, CellService, require_flare

YEARS = 1e8
"""Seconds that a member's work may take: so many that FLARE does not end it."""
FLARES = ["federation.certificates=flare"]
"""Overrides of a configuration: connections are FLARE's, so that its own are not used."""
log = logging.getLogger(__name__)
Method = TypeVar("Method", bound=Callable[..., object])
main = cast(Callable[[Method], Method], collab.main)
publish = cast(Callable[[Method], Method], collab.publish)


class LabelHolder:
    """The label holder at FLARE's server: starts the members' work, and answers their asks.

    ``config`` is the path of the label holder's configuration, on the server's machine.
    """

    def __init__(self, config: str) -> None:
        self.config = config

    def open(self, config: Path) -> AbstractContextManager[Any]:
        """Open the service of a configuration, as ``vertizo serve`` does; it has a ``tick``."""
        import torch

        from vertizo.core.memory import LARGE, keep_freed_memory
        from vertizo.network.serving.options import load_serve
        from vertizo.network.serving.serving import FederationService

        options = load_serve(config, FLARES)
        torch.set_num_threads(options.threads)
        keep_freed_memory(LARGE)
        return FederationService(options, notice=log.warning)

    @main
    def run(self) -> list[str]:
        """Run until all members are done; return their names. RunError if one failed."""
        require_flare()
        job, engine = collab.fl_ctx.get_job_id(), collab.fl_ctx.get_engine()
        cells = {client.name: f"{client.get_fqcn()}.{job}" for client in engine.get_clients()}
        config = own_file(self.config, collab.workspace.get_root_dir())
        with self.open(config) as service:
            if set(cells) != set(service.members):
                raise RunError(
                    f"the job is for {', '.join(sorted(cells))} and the run for"
                    f" {', '.join(sorted(service.members))}; a member has the name of its FLARE"
                    " client"
                )
            asks = CellService(engine.get_cell(), service, {c: name for name, c in cells.items()})
            with asks.open():
                done = self._wait(service, asks, len(cells))
            service.conclude()
            return done

    def _wait(self, service: Any, asks: CellService, members: int) -> list[str]:
        """Start every member's work and wait for its end; return the members' names."""
        context = collab.context
        works = collab.clients(blocking=False, timeout=YEARS).work()
        done: list[str] = []
        while len(done) < members:
            if len(works) > len(done):
                name, _ = next(works)
                asks.gone(name)
                done.append(name)
                continue
            if context.is_aborted():
                raise RunError(ENDED)
            for name, error in dict(works.failures).items():
                asks.gone(name)
                raise RunError(f"{name} failed: {error.cause}")
            service.tick()
            time.sleep(LOOK)
        service.tick()  # so that it knows that all were told
        return sorted(done)


class Member:
    """A member at a client of FLARE: works in its own loop.

    It gives up after ``patience`` seconds without any sign of the server.
    """

    def __init__(self, patience: float) -> None:
        self.patience = patience

    def take_part(self, config: Path, channel: Channel) -> None:
        """Take part in a job to its end, as ``vertizo join`` does with this configuration."""
        from vertizo.network.serving import joining
        from vertizo.network.serving.options import load_join

        options = load_join(config, [*FLARES, "federation.server=flare:1"])
        with joining.Member(options, channel) as member:
            joined = member.run()
        log.info("%s; %d queries answered", joined.words, joined.queries)

    @publish
    def work(self) -> None:
        """Take part with the configuration that the job names for this site."""
        require_flare()
        context = collab.context
        config = own_file(collab.get_app_prop("config"), collab.workspace.get_root_dir())
        channel = CellChannel(
            collab.fl_ctx.get_engine().get_cell(),
            collab.server.backend.target_fqcn,
            patience=self.patience,
            aborted=lambda: bool(context.is_aborted()),
        )
        try:
            self.take_part(config, channel)
        finally:
            channel.close()


def own_file(path: str, workspace: str) -> Path:
    """Check the path of a configuration, which the site itself must have written.

    A configuration can name code to run, and no job may bring that.

    Raises:
        ConfigError: the path is not absolute, or leads into FLARE's workspace at this site, where
            FLARE puts files that jobs bring.
    """
    file, theirs = Path(path), Path(workspace).resolve()
    if not file.is_absolute() or file.resolve().is_relative_to(theirs):
        raise ConfigError(
            f"the job names the configuration {path}; it must be an absolute path outside FLARE's"
            f" workspace {theirs}"
        )
    return file
