"""A result's file, and its makers: commits, versions, processors and seconds of the runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vertizo.core.text import strict_json
from vertizo.run.results import checkpoint
from vertizo.run.results.folder import RunFolder
from vertizo.run.results.provenance import commit, processor, versions


def keep(file: Path, content: Mapping[str, Any]) -> None:
    """Write a result to a file, with its digest; RunError if it cannot be written."""
    with checkpoint.writing(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.keep(file, f"{strict_json.text(content, indent=2)}\n".encode())


def this(seconds: float) -> dict[str, Any]:
    """Describe work that this process did in so many seconds."""
    return {
        "commits": [commit()],
        "processors": [processor()],
        "versions": versions(),
        "seconds": round(seconds, 1),
    }


def runs(folders: Iterable[Path]) -> dict[str, Any]:
    """Describe finished runs; folders without one are left out."""
    return together(_run(RunFolder(path)) for path in folders)


def together(parts: Iterable[dict[str, Any] | None]) -> dict[str, Any]:
    """Merge several makers: each commit and processor once, the last one's versions, all seconds.

    The seconds of runs that ran side by side are added up as well. Empty if there is no maker.
    """
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
