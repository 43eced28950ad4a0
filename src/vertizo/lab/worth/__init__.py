"""Worth of a party: compares federations with and without it.

`study.py` lists the federations, trains them, computes Shapley values and makes ``worth.json``;
`importance.py` permutes columns, `cost.py` accounts for the privacy of all trainings together, and
`words.py` turns the figures into lines for people.

Figures may be added, with new names in ``worth.json``. What never changes: every row is scored on
the same test records and the same bootstrap resamples, so that differences are paired; the cost of
all trainings is computed before the first one; and a training that was made is not repeated.
"""
