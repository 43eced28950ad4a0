"""What a member's party may be like, before memory is taken for it."""

from __future__ import annotations

import os

from vertizo.core.errors import RefusedError

LARGEST_DIM = 2**16
"""Numbers of an embedding."""


def check_size(member: str, dim: int, others: int, records: int) -> None:
    """Refuse embeddings of a size that cannot be meant, or that this machine cannot hold.

    Args:
        member: its name.
        dim: numbers of its embeddings.
        others: of all other members' embeddings together.
        records: of all partitions.

    Raises:
        RefusedError: too small or too large.
    """
    if not 1 <= dim <= LARGEST_DIM:
        raise RefusedError(
            f"{member} has embeddings of {dim} numbers; 1 to {LARGEST_DIM:,} are accepted"
        )
    wanted = 4 * (others + dim) * records
    if 2 * wanted > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
        raise RefusedError(
            f"with the {dim:,} numbers of {member} for each record, embeddings would take "
            f"{wanted / 2**30:.1f} GiB, more than half of the label holder's memory"
        )
