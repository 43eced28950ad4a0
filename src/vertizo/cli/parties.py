"""``vertizo certs``, ``serve`` and ``join``: a job of real parties, its connections and end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vertizo.cli import log
from vertizo.cli.console import live_bar, say
from vertizo.cli.options import AsJson, PartyConfig, Settings, argument, option
from vertizo.core.errors import ConfigError, Interrupted, RunError
from vertizo.core.plugins.wings import watched
from vertizo.core.text import strict_json

if TYPE_CHECKING:
    from vertizo.network.serving.joining import Joined, Progress
    from vertizo.network.serving.options import JoinConfig, JoinOptions, ServeConfig, ServeOptions
    from vertizo.network.transport.base import Service
    from vertizo.network.transport.certificates import Credentials
    from vertizo.network.transport.grpc import GrpcServer
    from vertizo.network.transport.grpc_channel import GrpcChannel
    from vertizo.network.transport.rotation import Rotation

STOPPED = "stopped; the same command continues the job"
TICK = 0.2
"""Seconds between two looks at the job."""


def certs(
    folder: Annotated[Path, argument("Where to create a folder for each party.")],
    server: Annotated[str | None, option("The label holder.", "NAME")] = None,
    member: Annotated[list[str] | None, option("A feature holder; repeatable.", "NAME")] = None,
    host: Annotated[
        list[str] | None, option("Host name or address of the label holder. Can be repeated.")
    ] = None,
    days: Annotated[int, option("Days until the certificates expire.", min=1)] = 90,
) -> None:
    """Create a test authority and a certificate for each party, for testing."""
    from vertizo.network.transport import authority

    table = Table(box=None, pad_edge=False, show_header=True, header_style="bold")
    for heading in ("party", "is", "holds until", "folder"):
        table.add_column(heading, overflow="fold")
    for one in authority.issue(folder, server, member or [], host or [], days):
        role = f"server at {', '.join(one.hosts)}" if one.hosts else "member"
        row = (one.name, role, f"{one.expires:%Y-%m-%d}", str(one.folder))
        table.add_row(*map(Text, row))
    Console().print(table)
    say(
        "\nGive each party its own folder over a channel you trust; no other party may see its "
        f"key.pem.\nThis is a test authority. Anyone with {folder / authority.FOLDER / 'key.pem'} "
        "can make certificates in any party's name: keep it safe to add parties later, or delete "
        "it.\nOrganisations use their own authorities, with the same file names."
    )


def serve(
    config: PartyConfig,
    settings: Settings = None,
    as_json: AsJson = False,
    log_format: log.LogFormat = "text",
) -> None:
    """Serve a job as the label holder, or continue it."""
    try:
        from vertizo.network.serving.options import load_serve

        with _told_apart(config, serves=True):
            chosen = load_serve(config, settings or [])
        summary = _served(chosen)
    except KeyboardInterrupt:
        raise Interrupted(STOPPED) from None
    if as_json:
        print(strict_json.line(summary))
    else:
        _show_served(summary, chosen.federation.folder)


def _served(config: ServeConfig) -> dict[str, Any]:
    """Serve one job, new or resumed from its folder, to its end; return the summary."""
    served = config.federation
    credentials = identity(served)
    import torch

    from vertizo.core.memory import LARGE, keep_freed_memory
    from vertizo.network.serving.serving import FederationService
    from vertizo.run.results.folder import RunFolder

    errors = log.errors()
    torch.set_num_threads(config.threads)
    keep_freed_memory(LARGE)
    service = FederationService(config, lambda line: say(line, errors))
    serves = f"serves {served.name}"
    is_open = threading.Event()
    health = watched("health", served.health, lambda: is_open.is_set() and service.failure is None)
    # Whoever asks while the job is read back is heard once it is.
    with stop_requests() as stopped, health, service:
        with (
            listening(errors, serves, served, credentials, service, service.run) as net,
            watched("served", served.metrics, service, net, served.name, credentials.name),
            live_bar(errors, served.name, FederationService.progress) as show,
        ):
            is_open.set()
            before, noted = "", False
            while not service.finished.wait(TICK):
                service.tick()
                if not noted and service.state is not None:
                    noted = True
                    say((f"note: {n}" for n in service.state.job.party.side.notes), errors)
                if show is not None:
                    show(service)
                elif before != (before := service.stage()):
                    say(before, errors)
                if stopped.is_set():
                    raise Interrupted(STOPPED)
        service.conclude()
    summary = RunFolder(served.folder).summary()
    if summary is None:
        raise RunError(f"{served.folder} has no summary, though the job is over")
    return summary


def _show_served(summary: dict[str, Any], folder: Path) -> None:
    from vertizo.run.results.summary_figures import scores_of, size_text, statements

    table = Table(title=f"{summary['method']} on {summary['dataset']}", title_style="bold")
    table.add_column("")
    table.add_column("job", justify="right")
    for whose, scores in (("", summary), ("raw head: ", summary.get("raw_head", {}))):
        for name, text in scores_of("test", summary, scores):
            table.add_row(name if name.startswith(" ") else f"{whose}{name}", text)
    if summary.get("test_loss") is None:
        table.add_row("test figures", "none: a member was silent")
    table.add_row("model", summary["model"])
    table.add_row("members", ", ".join(summary["parties"]))
    table.add_row("rounds", f"{summary['rounds']:,}")
    table.add_row("bytes up", size_text(summary["bytes_up"] + summary["bytes_table"]))
    table.add_row("bytes down", size_text(summary["bytes_down"]))
    table.add_row("staleness", "mean {mean:.0f}, max {max}".format(**summary["staleness"]))
    out = log.results()
    out.print(table)
    said = (f"{name}: {words}" for name, words in statements(summary))
    say([*said, f"run folder: {folder}"], out)


def join(
    config: PartyConfig, settings: Settings = None, log_format: log.LogFormat = "text"
) -> None:
    """Join a job as a feature holder, or continue it."""
    try:
        from vertizo.network.serving.options import load_join

        with _told_apart(config, serves=False):
            chosen = load_join(config, settings or [])
        done = _joined(chosen)
    except KeyboardInterrupt:
        raise Interrupted(STOPPED) from None
    from vertizo.run.results.summary_figures import size_text

    sent, folder = size_text(done.sent), chosen.federation.folder
    lines = (
        f"done: {done.queries:,} queries, {sent} sent, run folder: {folder}",
        f"privacy of what this party sent: {done.own_words}",
        f"privacy, as the label holder says: {done.words}",
    )
    say(lines, log.results())


def _joined(config: JoinConfig) -> Joined:
    """Take part in one job, new or resumed from the folder, to its end."""
    from vertizo.core.memory import keep_freed_memory
    from vertizo.data.own_tables import party_table
    from vertizo.network.serving.client_folder import ClientFolder
    from vertizo.network.serving.joining import Joined, Member

    known = ClientFolder(config.federation.folder).finished()
    if known is not None:
        return Joined(**known)
    errors, options = log.errors(), config.federation
    if config.data.path is not None:
        party_table.check(config.data)  # now, not once the label holder answers
    keep_freed_memory()
    with (
        closing(connect(options, errors)) as channel,
        live_bar(errors, options.name, _queries) as show,
        terminable(),
        watched("health", options.health, lambda: channel.is_connected),
    ):
        latest: Progress | None = None

        def note(here: Progress) -> None:
            nonlocal latest
            latest = here
            if show is not None:
                show(here)

        member = Member(config, channel, progress=note)
        about = options.name, channel.credentials.name
        with watched("joined", options.metrics, member, channel, *about, lambda: latest), member:
            say((f"note: {note}" for note in member.made.notes), errors)
            return member.run()


def _queries(here: Progress) -> tuple[float, str]:
    from vertizo.run.results.summary_figures import size_text

    up, down = size_text(here.sent), size_text(here.received)
    words = f"{here.answered:,} of {here.total:,} queries · {up} up · {down} down"
    return here.answered / here.total, words


@contextmanager
def _told_apart(path: Path, *, serves: bool) -> Iterator[None]:
    """Replace a ConfigError by one that says so, if the configuration is the other party's."""
    from vertizo.network.serving.options import is_label_holder

    try:
        yield
    except ConfigError:
        if is_label_holder(path) is serves:
            raise
        raise ConfigError(
            f"{path} has no federation.members, as a label holder's has; "
            "a feature holder's is for `vertizo join`"
            if serves
            else f"{path} has federation.members, as the label holder's has, which is for "
            "`vertizo serve`"
        ) from None


@contextmanager
def listening(
    console: Console,
    does: str,
    served: ServeOptions,
    credentials: Credentials,
    service: Service,
    run: str = "",
) -> Iterator[GrpcServer]:
    """Let members reach a service of the label holder; print the address it listens at.

    ``run`` is the name of the run that it serves, if there is one.
    """
    from vertizo.network.transport.grpc import GrpcServer

    server = GrpcServer(
        service,
        listen=served.listen,
        credentials=credentials,
        rate=served.rate,
        latest=rotation(served, credentials, console),
        job=served.job_id(run),
    )
    with server as net:
        host = served.listen.rpartition(":")[0]
        say(f"{credentials.name} {does} at {host}:{net.port}", console)
        yield net


def identity(options: ServeOptions | JoinOptions) -> Credentials:
    """Load this party's certificate and key; from here on the log names party and job."""
    from vertizo.network.transport.certificates import Credentials

    log.about(options.name)
    credentials = Credentials.load(options.certificates)
    log.about(options.name, credentials.name)
    return credentials


def rotation(options: ServeOptions | JoinOptions, first: Credentials, console: Console) -> Rotation:
    """The rotation of a party's credentials: it uses new ones once they are in its folder."""
    from vertizo.network.serving.options import ServeOptions
    from vertizo.network.transport.rotation import Rotation

    serving = isinstance(options, ServeOptions)
    return Rotation(
        options.certificates, first, serving=serving, tell=lambda line: say(line, console)
    )


def connect(options: JoinOptions, console: Console) -> GrpcChannel:
    """Open a channel to the label holder, which reports trouble on the console."""
    from vertizo.network.serving.client_folder import ClientFolder
    from vertizo.network.transport.grpc_channel import GrpcChannel

    credentials = identity(options)
    folder = ClientFolder(options.folder)
    return GrpcChannel(
        options.server,
        credentials,
        patience=options.patience,
        server_name=options.server_name,
        on_trouble=lambda line: say(line, console),
        latest=rotation(options, credentials, console),
        job=lambda: options.job_id(folder.run_name()),
    )


def stop_requests() -> AbstractContextManager[threading.Event]:
    """Yield an event that Ctrl-C or SIGTERM sets; a second one stops at once."""
    from vertizo.run.loop.training import stop_requests as requests

    return requests(signal.SIGINT, signal.SIGTERM)


@contextmanager
def terminable() -> Iterator[None]:
    """Treat SIGTERM inside as Ctrl-C."""

    def handle(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
