"""Named data sets: a loader for each kind, and the catalogue of their names.

`catalog.py` lists them and looks names up. A loader takes the folder of data files and the ``data``
section, and returns a `vertizo.data.pooled.Pooled`.

A data set is added by a loader and a line in the catalogue; `vertizo.testing.datasets` says what it
must be. What never changes: a name gives the same records every time, without a draw from a global
generator; damaged files are a DataError; nothing in a file can run code; pixels are scaled by
public constants, not by statistics of the records.
"""
