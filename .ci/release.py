#!/usr/bin/env python3
"""Whether the files that name the version agree: python3 .ci/release.py [VERSION to publish]."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATTERNS = {
    "src/vertizo/core/version.py": r'^VERSION = "(.+)"$',
    "CITATION.cff": r"^version: (.+)$",
    "CHANGELOG.md": r"^## \[(\d.*?)\]",
}
"""File → the line of its version; of several the first."""
DATED = {"CITATION.cff": r"^date-released: (.+)$", "CHANGELOG.md": r"^## \[\d.*?\] - (\d{4}-.+)$"}


def found(patterns: dict[str, str], root: Path = ROOT) -> dict[str, str | None]:
    """What each file says; None where it says nothing."""
    texts = {name: (root / name).read_text(encoding="utf-8") for name in patterns}
    each = {name: re.search(patterns[name], text, re.M) for name, text in texts.items()}
    return {name: match and match[1].strip("\"' ") for name, match in each.items()}


def faults(wanted: str | None = None, root: Path = ROOT) -> Iterator[str]:
    """A line for each disagreement; for a version to publish also for what is not ready."""
    versions = found(PATTERNS, root)
    version = wanted or versions["src/vertizo/core/version.py"]
    for name, here in versions.items():
        if here != version:
            yield f"{name} has version {here}, and not {version}"
    if wanted is not None and not re.fullmatch(r"\d+\.\d+\.\d+", wanted):
        yield f"{wanted} is no version such as 1.2.0"
    dates = found(DATED, root)
    if wanted is None and dates["CITATION.cff"] is None:
        return
    for name, date in dates.items():
        if date is None or not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
            yield f"{name} has no date of release for {version}"
    if len({*dates.values()}) > 1:
        yield f"dates of release differ: {dates}"
    if wanted is None:
        return
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    open_ = re.search(r"^## \[Unreleased\]\n(.*?)^## ", text, re.M | re.S)
    if open_ is not None and open_[1].strip():
        yield f"CHANGELOG.md has unreleased changes; put them under {version}"


if __name__ == "__main__":
    lines = list(faults(*sys.argv[1:]))
    print("\n".join(lines) or "the version is the same everywhere")
    sys.exit(2 if lines else 0)
