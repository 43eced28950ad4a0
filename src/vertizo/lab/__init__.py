"""The laboratory: makes many runs and says what they show. A wing; the core imports none of it.

`comparison.py` compares methods, with `engines.py`, `processes.py` and `ray.py` to run them;
`tuning/` searches hyperparameters, `worth/` measures parties, `reproduction/` makes papers' tables
again, `attacks/` and `audit/` test guarantees, `report/` and `dossier.py` write about runs,
`planning.py` and `notebook.py` serve plans and notebooks, `commands/` and `wing.py` the command
line.

It uses the core as a script would: `Experiment`, run folders, transcripts. Studies, attacks and
sections may be added. What never changes: nothing computed here enters a run; figures of finished
studies stay readable, and are not made again; and the names in ``--json`` stay.
"""
