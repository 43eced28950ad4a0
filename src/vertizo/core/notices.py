"""What parties tell people while a job goes on: lines of text, some of which need attention."""

from __future__ import annotations


class Alarm(str):
    """A line that somebody should look at, though the job goes on: a refusal, a silent member."""

    __slots__ = ()
