"""What goes over a wire in bulk: bytes as they are counted, and how uploads are cut."""

from __future__ import annotations

from dataclasses import dataclass

UPLOAD_ROWS = 4096
"""Most rows of one upload frame."""
UPLOAD_BYTES = 2**24
"""Most bytes of embeddings in one; wide embeddings come in fewer rows."""


@dataclass
class Traffic:
    """Bytes on the wire, lost and repeated frames included."""

    up: int = 0
    down: int = 0
    table: int = 0
    """Uploads of all training embeddings into the table."""
    evaluation: int = 0
    """Uploads for validation and test; not part of training."""
    lost: int = 0
    """Messages that did not arrive."""


def rows_at_once(dim: int) -> int:
    """Rows of embeddings of ``dim`` numbers that one upload frame takes, at least one."""
    return max(1, min(UPLOAD_ROWS, UPLOAD_BYTES // (4 * dim)))
