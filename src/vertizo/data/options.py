"""Which records, and who holds what of them: the ``data`` section of a configuration."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, PositiveInt

from vertizo.data.vertical import SplitName
from vertizo.options import Options


class DataConfig(Options):
    """Which records, and who holds what of them."""

    name: str = "digits"
    """`vertizo list datasets` shows what there is."""
    root: Path | None = None
    """Folder of data files; unset: the environment variable VERTIZO_DATA, else a cache."""
    parties: PositiveInt | None = None
    """Number of clients; unset: as many as the split says, 4 for images."""
    split: SplitName | None = None
    """How features are cut; unset: rows of pixels for images, named columns for tables."""
    columns: dict[str, list[str]] | None = None
    """For tables: party name → column names."""
    validation: float = Field(default=0.1, ge=0, lt=1)
    """Share of the training records that select the best model and are not trained on."""
    limit: int | None = Field(default=None, ge=2)
    """Use at most so many training records."""
