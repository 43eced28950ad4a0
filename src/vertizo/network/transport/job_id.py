"""The job that a connection belongs to, so that no party ever talks to another job's process.

Ports are used again: what listens at an address may be another job than a moment ago. So a member
names its job with the first bytes of each stream, in gRPC's metadata, and the label holder's
process accepts no stream of another job.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import quote, unquote

PREFIX = "vertizo-"
NOT_THIS_ONE = "another job, or another attempt of this one, is served there"
OF_AGENTS = (
    "a job of agents is served there; take part in it by `vertizo agent`, of the same version of "
    "vertizo at all parties"
)
OTHER_RUN = (
    "the label holder serves another job than the one that this party's federation.folder is of; "
    "name a new federation.folder to take part in it"
)


class JobId(NamedTuple):
    """The names that identify a job; an empty one is unknown or was not given."""

    federation: str = ""
    job: str = ""
    """The name that agents gave the job; empty where people start the processes."""
    attempt: int = 0
    """The agents' number of the attempt; processes of one attempt belong together."""
    run: str = ""
    """The name that the label holder's run folder has had since the job began."""

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Encode the names as gRPC metadata: ASCII, percent-encoded, empty ones left out."""
        return tuple(
            (PREFIX + key, quote(str(value))) for key, value in self._asdict().items() if value
        )

    @classmethod
    def of(cls, metadata: Iterable[tuple[str, str | bytes]]) -> JobId:
        """Decode a stream's metadata; keys of others are ignored."""
        said = {
            key.removeprefix(PREFIX): unquote(str(value))
            for key, value in metadata
            if key.startswith(PREFIX)
        }
        attempt = said.get("attempt", "")
        return cls(
            said.get("federation", ""),
            said.get("job", ""),
            int(attempt) if attempt.isascii() and attempt.isdigit() else 0,
            said.get("run", ""),
        )

    def refusal(self, theirs: JobId) -> tuple[bool, str] | None:
        """Say why a member of the job ``theirs`` is refused, and whether to retry; else None.

        A retry helps where the member reached another job of agents: its own job's process may
        still start at this port, or the member may be told of another port. The reason says nothing
        of the job served here: whoever asks may not be in it. Between processes that people start,
        `vertizo.network.serving.frames.Hello` compares the federation's name.
        """
        if self.job and not theirs.job:
            return False, OF_AGENTS
        if theirs.job and self[:3] != theirs[:3]:
            return True, NOT_THIS_ONE
        if self.run and theirs.run and self.run != theirs.run:
            return False, OTHER_RUN
        return None
