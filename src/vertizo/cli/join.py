"""``vertizo join``: a feature holder's process, until the job is over."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console

from vertizo.cli.bar import live_bar
from vertizo.cli.figures import size_text
from vertizo.core.errors import ConfigError, Interrupted
from vertizo.core.memory import keep_freed_memory
from vertizo.network.certificates import Credentials
from vertizo.network.client_folder import ClientFolder
from vertizo.network.grpc_channel import GrpcChannel
from vertizo.network.joining import Joined, Member, Progress
from vertizo.network.options import JoinConfig, JoinOptions, is_label_holder, load_join


def connect(options: JoinOptions, console: Console) -> GrpcChannel:
    """A channel to the label holder; trouble is said on the console."""

    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    return GrpcChannel(
        options.server,
        Credentials.load(options.certificates),
        patience=options.patience,
        server_name=options.server_name,
        on_trouble=say,
    )


def _load(path: Path, settings: list[str]) -> JoinConfig:
    """The configuration; the label holder's is recognised as such."""
    try:
        return load_join(path, settings)
    except ConfigError:
        if not is_label_holder(path):
            raise
    raise ConfigError(
        f"{path} has federation.members, as the label holder's has, which is for `vertizo serve`"
    )


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM is Ctrl-C: what it does not end goes on from the folder."""

    def handle(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def join(path: Path, settings: list[str]) -> None:
    """Take part in one job to its end, new or where the folder says it was.

    Raises:
        UserError: one line that says what is wrong.
        Interrupted: stopped by Ctrl-C; the folder has everything to go on.
    """
    config = _load(path, settings)
    known = ClientFolder(config.federation.folder).finished()
    if known is not None:
        _show(Joined(**known), config.federation.folder)
        return
    errors = Console(stderr=True)
    keep_freed_memory()
    with (
        closing(connect(config.federation, errors)) as channel,
        live_bar(errors, config.federation.name) as show,
    ):

        def progress(here: Progress) -> None:
            if show is None:
                return
            up, down = size_text(here.sent), size_text(here.received)
            words = f"{here.answered:,} of {here.total:,} queries · {up} up · {down} down"
            show(here.answered / here.total, words)

        try:
            with terminable(), Member(config, channel, progress=progress) as member:
                for note in member.made.notes:
                    errors.print(f"note: {note}", soft_wrap=True, highlight=False, markup=False)
                done = member.run()
        except KeyboardInterrupt:
            raise Interrupted("stopped; the same command goes on with the job") from None
    _show(done, config.federation.folder)


def _show(done: Joined, folder: Path) -> None:
    print(f"done: {done.queries:,} queries, {size_text(done.sent)} sent, run folder: {folder}")
    print(f"privacy of what this party sent: {done.own_words}")
    print(f"privacy, as the label holder says: {done.words}")
