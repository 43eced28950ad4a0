"""Building: parties from a configuration and data, with models, optimisers and privacy.

`client.py` and `server.py` make the parties, from `models.py`, `optimizers.py`, `privacy.py` and
`labels.py`. `data_defaults.py` supplies defaults that depend on the data, `schedule.py` the lengths
of a run, `placement.py` devices. `coverage.py` and `label_free.py` state what is guaranteed.

A key of the configuration is read here, and what does not fit is a `ConfigError` that names it,
before training. What never changes: no default depends on a value of a feature or a label, only on
public facts; every random draw has a named stream; runs whose configurations differ share no
noise; and a guarantee is stated only where all parts declare what it rests on.
"""
