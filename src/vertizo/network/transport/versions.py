"""Which versions meet on the wire, and what to do where they do not understand each other.

A label holder says with the first bytes of each stream what it speaks, in gRPC's metadata, and a
member in its `Hello`: both forms stay as they are, so that any two versions can name each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from vertizo.core.version import VERSION

PROTOCOL = 3
"""What members and the label holder say to each other; all parties speak the same."""
METADATA = (("vertizo-protocol", str(PROTOCOL)), ("vertizo-version", VERSION))
"""What a label holder says of itself."""
ADVICE = "install the same version of vertizo at all parties"
KNOWN = re.compile(r"[\w.+-]{1,40}")


def named(version: str) -> str:
    """Somebody else's version, for people; what is no version is not repeated."""
    return f"vertizo {version}" if KNOWN.fullmatch(version) else "another vertizo"


def unlike(who: str, protocol: int | str, version: str) -> str:
    """One line on a party that speaks another protocol."""
    return (
        f"{who} runs {named(version)} and speaks protocol {protocol}; this is vertizo {VERSION}, "
        f"which speaks {PROTOCOL}: {ADVICE}"
    )


def problem(who: str, metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """Why a label holder that says this of itself cannot be spoken to; None if it can.

    One that says nothing is older than this way to say it; what it answers will tell.
    """
    said = {key: str(value) for key, value in metadata if key.startswith("vertizo-")}
    protocol = said.get("vertizo-protocol", str(PROTOCOL))
    if protocol == str(PROTOCOL):
        return None
    shown = protocol if KNOWN.fullmatch(protocol) else "?"
    return unlike(who, shown, said.get("vertizo-version", ""))
