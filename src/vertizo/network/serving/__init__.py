"""Serving: a job between processes, from the first hello to the end, and predictions after it.

The label holder: `serving.py` answers members (`service.py` is its base), `archive.py` keeps the
job on disk, `job.py` makes its party. A member: `joining.py` is its loop, `client_folder.py` its
folder. Both: `frames.py` (what they say), `terms.py` (what a member accepts), `store.py` (journal
and checkpoint), `options.py` (configurations). Predictions: `predicting.py`, `trained_model.py`.

A field of a frame changes together with ``PROTOCOL`` (`network/transport/versions.py`). What never
changes: a query is in the journal before it is acted on, and charged before its reply leaves; a
process that is killed at any moment computes the same state again, and sends stored replies as they
were; terms load no code and no file at a member; members are told of the end before a raw head is
fitted.
"""
