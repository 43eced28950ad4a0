"""Evaluations of a run as lines of JSON: ``--track json-lines=FILE``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vertizo.run.loop.callbacks import Callback, Tracked


class JsonLines(Callback):
    """A line for each evaluation."""

    def __init__(self, place: str, tracked: Tracked) -> None:
        self._path = Path(place)

    def on_start(self, run: Tracked, round_: int | None) -> None:
        """A run that goes on from a checkpoint tells what came after it again."""
        kept = []
        if round_ is not None and self._path.exists():
            kept = [line for line in self._lines() if json.loads(line)["round"] <= round_]
        self._path.write_text("".join(kept), encoding="utf-8")

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def _lines(self) -> list[str]:
        return self._path.read_text(encoding="utf-8").splitlines(keepends=True)
