"""Suggestions for an unknown name: the known names that are most like it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path

CLOSE = 0.65
"""Likeness, from 0 to 1, from which a name is offered for another."""
CLOSE_SIGNS = 0.5
"""`CLOSE` for names in characters that are words, such as Chinese: one of two may differ."""
SIGNS = re.compile(r"[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]{2,}")
SPREAD = 0.2
"""Largest difference in likeness from the best name at which another is offered beside it."""
OFFERED = 3


def similar(name: str, known: Sequence[str]) -> list[str]:
    """Known names that may have been meant, the most alike first, at most `OFFERED`.

    Case, width and what stands between words do not count, in any script, and a word of a name
    counts nearly as the whole of it.

    >>> similar("payment", ["age", "Payment_Delay", "payments-late", "income"])
    ['Payment_Delay', 'payments-late']
    >>> similar("ｉｎｃｏｍｅ", ["age", "income"])
    ['income']
    >>> similar("zzz", ["age", "income"])
    []
    """
    found = {each: likeness(name, each) for each in known}
    least = CLOSE_SIGNS if SIGNS.fullmatch("".join(_words(name))) else CLOSE
    close = sorted((each for each in found if found[each] >= least), key=lambda e: -found[e])
    spread = 0 if close and found[close[0]] == 1 else SPREAD
    return [each for each in close if found[each] >= found[close[0]] - spread][:OFFERED]


def likeness(one: str, other: str) -> float:
    """Likeness of two names, from 0 to 1; 1 means that they have the same words."""
    ours, theirs = _words(one), _words(other)
    whole = SequenceMatcher(None, "".join(ours), "".join(theirs)).ratio()
    if whole == 1:
        return 1.0
    fewer, more = sorted((ours, theirs), key=len)
    if not fewer or len("".join(fewer)) < 3:
        return whole
    # Each word of the shorter name beside the most similar one of the longer.
    parts = [max(SequenceMatcher(None, word, each).ratio() for each in more) for word in fewer]
    near = sum(parts) / len(parts)
    return max(whole, 0.9 * near if near >= 0.8 else 0.0)


def _words(name: str) -> list[str]:
    """The words of a name in any case, in small letters; NFKC makes full-width ones like others."""
    apart = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", unicodedata.normalize("NFKC", name))
    return re.findall(r"[^\W_]+", apart.casefold())


def nearest(name: str, known: Sequence[str]) -> str:
    """The end of an error line about an unknown name; empty where no known name is like it.

    >>> nearest("incme", ["age", "income"])
    "; did you mean 'income'?"
    """
    found = similar(name, known)
    alike = any(_form(each) == _form(name) for each in found)
    return question(found) + (" It looks the same, but is coded otherwise." if alike else "")


def _form(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def nearest_file(path: Path) -> str:
    """The end of an error line about a missing file: files of the same folder with a like name."""
    try:
        there = sorted(each.name for each in path.parent.iterdir() if each.is_file())
    except OSError:
        return ""
    # Endings are alike where nothing else is; of one name, the file of that ending is meant.
    there.sort(key=lambda each: Path(each).suffix == path.suffix)
    stems = {Path(each).stem: each for each in there}
    return question([stems[each] for each in similar(path.stem, list(stems))])


def question(names: Sequence[str]) -> str:
    """The end of an error line that offers these names; empty for none."""
    if not names:
        return ""
    *first, last = map(repr, names)
    return f"; did you mean {' or '.join([', '.join(first), last] if first else [last])}?"
