"""Which job a connection belongs to, so that no party ever talks to another job's process.

Ports are used again, by this label holder's jobs and by anybody's: what listens at an address may
be another job than a moment ago. So a member names its job with the first bytes of each stream, in
gRPC's metadata, and the label holder's process takes in no stream of another job.
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
    """A job by its names; those that are empty are not known, or not given."""

    federation: str = ""
    job: str = ""
    """The agents' name of it; empty where people start the processes."""
    attempt: int = 0
    """The agents' number of the processes that belong together."""
    run: str = ""
    """The name that the label holder's run folder has had since the job began."""

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """As it travels: ASCII, percent-encoded."""
        return tuple(
            (PREFIX + key, quote(str(value))) for key, value in self._asdict().items() if value
        )

    @classmethod
    def of(cls, metadata: Iterable[tuple[str, str | bytes]]) -> JobId:
        """What a stream's metadata say; unknown keys are others' business."""
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
        """Why a member that names such a job is not let in here, and whether that may pass.

        It passes where the member knocks at the port of another job of agents: its own job's
        process, or word of another port, is still to come. Nothing is said of the job here: who
        asks may not be in it. Between processes that people start, the federation's name is
        compared in `vertizo.network.serving.frames.Hello`.
        """
        if self.job and not theirs.job:
            return False, OF_AGENTS
        if theirs.job and self[:3] != theirs[:3]:
            return True, NOT_THIS_ONE
        if self.run and theirs.run and self.run != theirs.run:
            return False, OTHER_RUN
        return None
