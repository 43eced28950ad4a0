"""Hyperparameter search: trials compared on validation records, and their privacy cost together.

`space.py` parses what is searched, `plan.py` fixes what trials may release, `trial.py` makes one,
`study.py` keeps all of them in Optuna's journal, `search.py` drives the search, `results.py` sums
it up; `composition.py` and `privacy.py` account for all trials together.

Objectives, pruners and default spaces may change. What never changes: no trial sees a test record;
what a trial may release is fixed before the first one, and a trial that would release something
else is refused; every planned trial counts whole; and a stopped search goes on where it was.
"""
