"""Vertical data: from a named data set or a table to each party's features, labels and splits.

`datasets/` loads named data sets, `tables.py` and `tabular/` tables of one's own; both give a
`Pooled`, which `vertical.py` cuts into a `VerticalData`. `options.py` has the ``data`` section,
`record_split.py` chooses records, `party_table.py` reads one party's table over a network,
`alignment.py` has the keys that align tables, `prepared.py` prepares new records.

Loaders, splits and checks of tables may be added. What never changes: statistics are fitted on a
party's own training records; records are chosen by a named stream, or told by the label holder;
a key is the same canonical text in every kind of file; a ledger knows a record by its identifier,
or by all of its columns, used or not; and data that do not fit are refused in one line.
"""
