"""How a category is written: one way, whatever kind of file it comes from.

CSV files, workbooks, Parquet files and databases write the same value differently: 10 and 10.0,
TRUE and true. A model that learnt one spelling must know the others.
"""

from __future__ import annotations

import re
import unicodedata

_WHOLE = re.compile(r"(0|-?[1-9][0-9]*)\.0+|-0(?:\.0+)?")


def spelt(text: str) -> str:
    """Whole numbers without a fraction, truth in lower case, no spaces around, accents composed.

    Numbers that a zero precedes, as 007, are names and stay as they are.

    >>> [spelt(text) for text in ("10.0", "-0.0", "TRUE", " a B ", "007", "1.50")]
    ['10', '0', 'true', 'a B', '007', '1.50']
    """
    text = unicodedata.normalize("NFC", text.strip())
    if whole := _WHOLE.fullmatch(text):
        return whole[1] or "0"
    return text.lower() if text.lower() in ("true", "false") else text
