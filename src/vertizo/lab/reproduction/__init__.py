"""Reproduction: makes the papers' tables and figures again, and shows them beside the published.

`studies/` has a YAML file for each table or figure and `study.py` its keys; `kinds.py` and
`grid.py` run a study by its kind, `runs.py` makes its runs and tasks, `figures.py` reads numbers
off runs, `outcome.py` holds the results, `plots.py` and `page.py` draw and document them.

A new study is a file in `studies/`; what no file can say is a script of ``experiments/``, listed in
`SCRIPTS` of `study.py`. What never changes: published numbers stand apart from measured ones, and
are those of the paper; a result is kept with its command and commit; what is smaller than in the
paper is said beside it; and the figures of finished studies stay readable.
"""
