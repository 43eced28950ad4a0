"""Estimators for scikit-learn, which train a federation in one process.

`vertical.py` has the two estimators, `base.py` what they share, `settings.py` and `inputs.py` read
parameters and records, `privacy.py` is the parameter ``privacy``, `saved.py` writes an estimator.

Parameters may be added: each is a key of the configuration (``KEYS`` in `settings.py`) or builds
one. What never changes: an estimator keeps scikit-learn's contract (parameters stay as given, what
`fit` sets ends in an underscore, errors of inputs are ValueErrors), its run is the one that the
command line makes of the same configuration, and loading one executes nothing that was saved.
"""
