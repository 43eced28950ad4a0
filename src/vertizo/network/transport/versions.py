"""Protocol versions on the wire, and the lines that explain a mismatch.

A label holder states its version with the first bytes of each stream, in gRPC's metadata, and a
member in its `Hello`: both forms stay as they are, so that any two versions can name each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from vertizo.core.version import VERSION

PROTOCOL = 3
"""Version of the protocol between members and the label holder; all parties must have the same."""
METADATA = (("vertizo-protocol", str(PROTOCOL)), ("vertizo-version", VERSION))
"""gRPC metadata in which a label holder states its versions."""
ADVICE = "install the same version of vertizo at all parties"
KNOWN = re.compile(r"[\w.+-]{1,40}")


def named(version: str) -> str:
    """Name another party's version for people; text that is no version is not repeated."""
    return f"vertizo {version}" if KNOWN.fullmatch(version) else "another vertizo"


def unlike(who: str, protocol: int | str, version: str) -> str:
    """Write one line about a party that speaks another protocol."""
    return (
        f"{who} runs {named(version)} and speaks protocol {protocol}; this is vertizo {VERSION}, "
        f"which speaks {PROTOCOL}: {ADVICE}"
    )


def problem(who: str, metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """Say why a label holder with this metadata is incompatible; None if it is compatible.

    A label holder without such metadata is too old to send any; its answers will show more.
    """
    said = {key: str(value) for key, value in metadata if key.startswith("vertizo-")}
    protocol = said.get("vertizo-protocol", str(PROTOCOL))
    if protocol == str(PROTOCOL):
        return None
    shown = protocol if KNOWN.fullmatch(protocol) else "?"
    return unlike(who, shown, said.get("vertizo-version", ""))
