"""What both parties check of what they are sent."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from vertizo.core.errors import ConflictError, ShapeError, UnknownRecordError
from vertizo.protocol.messages import Purpose, largest

Partition = Mapping[Purpose, Tensor]
"""Features or labels by purpose: ``table`` holds the training records."""


def ids_in_range(ids: Tensor, records: int, most: int, found: int | None = None) -> None:
    """Raise RefusedError unless there are 1 to ``most`` record IDs, all below ``records``.

    ``found`` is the largest of them, where it is known.
    """
    count = ids.numel()
    if not 0 < count <= most:
        raise ShapeError(f"a batch of {count} records; 1 to {most} are accepted")
    found = largest(ids) if found is None else found
    if found >= records:
        raise UnknownRecordError(f"record ID {found}; this federation has 0 to {records - 1}")


def out_of_step(words: str, *, server_is_behind: bool) -> ConflictError:
    """The error of a number that is not the next one, with what can be done about it."""
    who = "the label holder" if server_is_behind else "this member"
    return ConflictError(
        f"{words}: {who} goes on from an older state than the other has seen; put the newest copy "
        "of its folder back, or begin a new job in new folders"
    )
