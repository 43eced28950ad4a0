"""Traffic: bytes on the wire as they are counted, and the sizes of upload frames."""

from __future__ import annotations

from dataclasses import dataclass

UPLOAD_ROWS = 4096
"""Most rows of one upload frame."""
UPLOAD_BYTES = 2**24
"""Most bytes of embeddings in one upload frame; wide embeddings come in fewer rows."""


@dataclass
class Traffic:
    """Bytes on the wire, lost and repeated frames included."""

    up: int = 0
    down: int = 0
    table: int = 0
    """Uploads of all training embeddings into the table."""
    evaluation: int = 0
    """Uploads for evaluations and a raw head; not part of training."""
    lost: int = 0
    """Messages that did not arrive."""


def rows_at_once(dim: int) -> int:
    """Rows of embeddings of ``dim`` numbers that one upload frame takes, at least one."""
    return max(1, min(UPLOAD_ROWS, UPLOAD_BYTES // (4 * dim)))
