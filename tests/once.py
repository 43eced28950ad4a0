"""Folders that take long to make: made once, whichever worker comes first, and read by all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from filelock import FileLock


class Once:
    """Makes each folder once below a place that all workers share.

    Nobody may change what is in it: a test that must do so copies it. `check` finds who did not.
    """

    def __init__(self, place: Path) -> None:
        self._place = place
        self._found: dict[Path, dict[str, tuple[int, int]]] = {}

    def __call__(self, name: str, make: Callable[[Path], object]) -> Path:
        """The folder of that name; ``make`` fills it, or makes it, where it is not there yet."""
        folder, done = self._place / name, self._place / f"{name}.done"
        self._place.mkdir(exist_ok=True)
        with FileLock(self._place / f"{name}.lock"):
            if not done.exists():
                make(folder)
                done.touch()
        self._found.setdefault(folder, contents(folder))
        return folder

    def check(self) -> None:
        """AssertionError where a test changed a folder."""
        for folder, before in self._found.items():
            assert contents(folder) == before, f"a test changed {folder.name}, which others read"


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file but locks."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(file): (file.stat().st_size, file.stat().st_mtime_ns) for file in files}
