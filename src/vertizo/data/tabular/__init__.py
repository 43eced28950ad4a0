"""Tables: reading of files, checks of columns, and preprocessing.

`frames.py` reads CSV, Excel and Parquet files, with `csv_lines.py`, `excel.py` and `dates.py`;
`columns.py` makes numbers and codes of columns, and warns of those that are not what they seem;
`preprocessing.py` makes a party's features of its own raw columns.

More formats and warnings may be added. What never changes: a value means the same whatever file it
comes from; statistics are fitted on training rows alone; a saved preprocessing is restored to the
last bit; and errors name the file, the line and the column.
"""
