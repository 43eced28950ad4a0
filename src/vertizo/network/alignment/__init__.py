"""The records that every party has, found without showing the others.

The label holder runs an `AligningService`, every feature holder calls `align_with`.

Method "private": both blind their keys on a curve. A feature holder sends its points, and
multiplies those of the label holder by its own secret; the label holder multiplies those of the
feature holder and compares. So it learns which of its keys the other has; the feature holder only
ever sees points that it cannot read. Method "hashed" compares salted hashes instead and hides
nothing from the label holder.

When all members have come so far, each is told by one bit for each point of its own whether that
record is common to all parties. No key is ever sent. At the end all compare a fingerprint.
"""
