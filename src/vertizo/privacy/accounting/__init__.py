"""Privacy accounting: from what leaves the server about one record to its ε, and back to noise.

`events.py` describes releases by public constants. `gaussian.py`, `grid.py` (noise on a grid) and
`guarantee.py` (with steps on secret samples) turn them into ε; `label_advantage.py` and
`persons.py` derive further bounds; `budget.py` and `forecast.py` plan before there is data.

Accountants may become tighter. Nothing here may read data, labels or a ledger's file, and rounding
of privacy losses must count as spent: ε is a bound, except by the formula called published.
"""
