"""Ledgers: what each record was charged, in memory for one run or on disk for all runs.

`base.py` has the interface, the ledger in memory, the view of a run of some clients and the log's
rows; `durable.py` the ledger on disk, over its log (`file.py`) and the witness of how far that came
(`witness.py`); `register.py` knows which records have which ledger.

The file's format may change, with its ``VERSION``. What never changes: charges depend on record IDs
and public constants alone; a charge and its reply are on disk, in one transaction, before the reply
leaves; the log only grows; the witness is written after it, elsewhere.
"""
