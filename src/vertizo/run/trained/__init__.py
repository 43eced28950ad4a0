"""Finished runs: predicting with their models, exporting these, explaining what is protected.

`prediction.py` loads a run's models, predicts, and makes the table and file that are given out,
`export.py` writes models for other programs, `explanation.py` puts the privacy statement into plain
words.

Formats and words may change. What never changes: predictions come from the parties that were
scored, and need the run folder alone; no score that is not finite is given out; and no ε is said
to cover a prediction of a raw head.
"""
