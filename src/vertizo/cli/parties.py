"""What the commands of real parties share: a way to each other, and an end by signals."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from rich.console import Console

from vertizo.cli.console import say

if TYPE_CHECKING:
    from vertizo.network.certificates import Credentials
    from vertizo.network.grpc_channel import GrpcChannel
    from vertizo.network.options import JoinOptions, ServeOptions
    from vertizo.network.transport import Service

STOPPED = "stopped; the same command goes on with the job"
TICK = 0.2
"""Seconds between two looks at the job."""


@contextmanager
def listening(
    console: Console, does: str, served: ServeOptions, credentials: Credentials, service: Service
) -> Iterator[None]:
    """Let the members reach a service of the label holder; say where it listens."""
    from vertizo.network.grpc import GrpcServer

    server = GrpcServer(service, listen=served.listen, credentials=credentials, rate=served.rate)
    with server as net:
        host = served.listen.rpartition(":")[0]
        say(f"{credentials.name} {does} at {host}:{net.port}", console)
        yield


def connect(options: JoinOptions, console: Console) -> GrpcChannel:
    """A channel to the label holder; it reports trouble on the console."""
    from vertizo.network.certificates import Credentials
    from vertizo.network.grpc_channel import GrpcChannel

    return GrpcChannel(
        options.server,
        Credentials.load(options.certificates),
        patience=options.patience,
        server_name=options.server_name,
        on_trouble=lambda line: say(line, console),
    )


def stop_requests() -> AbstractContextManager[threading.Event]:
    """Set by Ctrl-C or SIGTERM; a second one stops at once."""
    from vertizo.run.loop import stop_requests as requests

    return requests(signal.SIGINT, signal.SIGTERM)


@contextmanager
def terminable() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C."""

    def handle(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
