"""Hyperparameter search: trials compared on validation records, and their privacy cost together.

`space.py` parses what is searched, `trial.py` makes a trial, `study.py` keeps all of them in
Optuna's journal, `search.py` drives the search, `results.py` sums it up; `privacy.py` fixes what
trials may release, and with `composition.py` accounts for all of them together.

Objectives, pruners and default spaces may change. What never changes: no trial sees a test record;
what a trial may release is fixed before the first one, and a trial that would release something
else is refused; every planned trial counts whole; and a stopped search goes on where it was.
"""
