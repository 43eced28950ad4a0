"""Codecs: arrays into bytes and back, a file for each.

`base.py` says what a codec must do, `catalog.py` names them; `packing.py` packs bits; `feedback.py`
remembers what coding loses.

A codec is added by a file and a line in `catalog.py`. What never changes: a codec has no state, and
both sides make the same one from its options; its size follows from the shape alone; other bytes
are a MalformedError; its flags are true, since `mixes_records` decides what a guarantee covers.
"""
