"""The makers of a result: commits, versions, processors and seconds of the runs behind it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vertizo.run.results.folder import RunFolder
from vertizo.run.results.provenance import commit, processor, versions


def this(seconds: float) -> dict[str, Any]:
    """Describe work that this process did in so many seconds."""
    return {
        "commits": [commit()],
        "processors": [processor()],
        "versions": versions(),
        "seconds": round(seconds, 1),
    }


def runs(folders: Iterable[Path]) -> dict[str, Any]:
    """Describe finished runs: each commit and processor once, and the versions of the last run.

    ``seconds`` is the sum over all runs, even of those that ran side by side. Folders without a
    finished run are left out.
    """
    return together(_run(RunFolder(path)) for path in folders)


def together(parts: Iterable[dict[str, Any] | None]) -> dict[str, Any]:
    """Merge several makers into one; empty if there is none."""
    found = [each for each in parts if each]
    if not found:
        return {}
    return {
        "commits": sorted({name for each in found for name in each["commits"]}),
        "processors": sorted({name for each in found for name in each["processors"]}),
        "versions": found[-1]["versions"],
        "seconds": round(sum(each["seconds"] for each in found), 1),
    }


def _run(folder: RunFolder) -> dict[str, Any] | None:
    summary, begun = folder.summary(), folder.provenance() or {}
    if summary is None:
        return None
    return {
        "commits": [begun.get("commit", "")],
        "processors": [begun.get("processor", "")],
        "versions": begun.get("versions", {}),
        "seconds": summary["seconds"],
    }
