"""Alignment: finds the records that every party has, without showing the others (PSI).

The label holder runs an `AligningService` (`service.py`), every feature holder calls `align_with`
(`member.py`). `messages.py` has what they say, `blinding.py` the elliptic curve.

Method "private": both blind their keys on a curve. A feature holder sends its points, and
multiplies those of the label holder by its own secret; the label holder multiplies those of the
feature holder and compares. So it learns which of its keys the other has; the feature holder sees
only points that it cannot read. Method "hashed" compares salted hashes instead and hides nothing
from the label holder. When all members have sent theirs, each learns by one bit for each of its
points whether that record is common to all parties. At the end all compare a fingerprint.

What never changes: no key is ever sent; points go in an order that tells nothing of the keys; and
the outcome is told for one set of each party, so that nobody learns more by asking again.
"""
