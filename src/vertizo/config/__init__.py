"""The configuration of an experiment: its schema, loading and checks, and a method's defaults.

`schema.py` has the whole; `client.py`, `server.py`, `architectures.py`, `optimizer.py`, `links.py`
and `early_stopping.py` have its sections. `tree.py` and `error_lines.py` read files and word
errors; `method_defaults.py` fills unset keys; `ineffective_keys.py` refuses keys without effect;
`auto.py` and `choosing.py` are for ``method: auto``.

Keys may be added, with the docstring below each that becomes docs/configuration.md. What never
changes: a configuration is frozen, complete and validated once, and written out again it reruns the
experiment; an unknown key is an error; a given key is kept, or refused with what would be right;
and `ExperimentConfig.digest` keeps its value for configurations that have one.
"""
