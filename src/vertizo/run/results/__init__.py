"""Results: the folder of a run, its checkpoints, its summary and its provenance.

`folder.py` reads and writes the folder (its first lines list the files), `checkpoint.py` writes
states and files whole or not at all, `provenance.py` records versions and digests,
`summary_figures.py` shows a summary as text or HTML.

Figures and how they are shown may change. What never changes: a file is there whole or not at all,
after a crash too (the metrics line by line); digests reveal damage; nothing is pickled, so that
reading a checkpoint executes nothing; and only its owner may read it, since it holds keys of noise.
"""
