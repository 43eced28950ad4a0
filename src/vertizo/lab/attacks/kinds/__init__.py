"""The attacks, a file for each paper's idea; its first lines name the paper and the adversary.

A file holds the attack as functions of an adversary, and a class derived from `Attack` that trains
a federation and scores the guesses. A new attack needs a file here, a line in `../choice.py` and
tests in `tests/lab/attacks`. What never changes: the names of attacks and of their figures, which
stand in finished reports; and the truth is used for scoring and controls only.
"""
