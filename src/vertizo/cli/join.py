"""``vertizo join``: a feature holder's process, until the job is over."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from vertizo.cli.console import live_bar, say
from vertizo.cli.options import PartyConfig, Settings
from vertizo.cli.parties import STOPPED, connect, terminable
from vertizo.core.errors import ConfigError, Interrupted

if TYPE_CHECKING:
    from vertizo.network.joining import Joined, Progress
    from vertizo.network.options import JoinConfig


def join(config: PartyConfig, settings: Settings = None) -> None:
    """Join a job as a feature holder, or continue it."""
    try:
        chosen = _load(config, settings or [])
        _show(_joined(chosen), chosen.federation.folder)
    except KeyboardInterrupt:
        raise Interrupted(STOPPED) from None


def _load(path: Path, settings: list[str]) -> JoinConfig:
    """The configuration; the label holder's is recognised as such."""
    from vertizo.network.options import is_label_holder, load_join

    try:
        return load_join(path, settings)
    except ConfigError:
        if not is_label_holder(path):
            raise
    raise ConfigError(
        f"{path} has federation.members, as the label holder's has, which is for `vertizo serve`"
    )


def _joined(config: JoinConfig) -> Joined:
    """Take part in one job to its end, new or where the folder says it was."""
    from vertizo.core.memory import keep_freed_memory
    from vertizo.network.client_folder import ClientFolder
    from vertizo.network.joining import Joined, Member
    from vertizo.run.summary_figures import size_text

    known = ClientFolder(config.federation.folder).finished()
    if known is not None:
        return Joined(**known)
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

        with terminable(), Member(config, channel, progress=progress) as member:
            say((f"note: {note}" for note in member.made.notes), errors)
            return member.run()


def _show(done: Joined, folder: Path) -> None:
    from vertizo.run.summary_figures import size_text

    print(f"done: {done.queries:,} queries, {size_text(done.sent)} sent, run folder: {folder}")
    print(f"privacy of what this party sent: {done.own_words}")
    print(f"privacy, as the label holder says: {done.words}")
