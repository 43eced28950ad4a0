"""What texts say: outputs and pages."""

from __future__ import annotations


def says(text: str, *words: str, case: object = "") -> None:
    """All these words are in the text; a failure names the case, and those that are missing."""
    missing = [word for word in words if word not in text]
    assert not missing, f"{case}: {missing} not in {text!r}"
