"""Runs: from a configuration and data to a trained federation, its folder and its predictions.

`experiment.py` is the way in: it loads data, builds the parties and trains them. `build/` makes
parties, `loop/` trains them, `results/` writes what a run leaves, `trained/` uses finished models,
`estimators/` is for scikit-learn. `auto.py`, `references.py` and `instead.py` choose the method
auto, fit models without a federation and say what may do better; `live.py` shows progress.

Defaults, figures and displays may change, with their tests in `tests/run`. What never changes: the
same configuration and data give the same numbers on one machine, watched or resumed, unless noise
comes from the operating system; nothing leaves the server but through its party's privacy plan; and
a run folder can be used after any crash.
"""
