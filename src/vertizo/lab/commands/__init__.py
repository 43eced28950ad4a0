"""The laboratory's commands of ``vertizo``, a file for each command or family of commands.

`studies.py` has `compare`, `tune`, `worth` and `reproduce`; `attack.py` and `report.py` one each;
`privacy.py` those of ``vertizo privacy``. A command is a function whose parameters become its
arguments and whose first docstring line is its help; `lab/wing.py` lists it.

Figures are computed elsewhere in `lab/`: here arguments are checked and results printed. What never
changes: wrong arguments are refused before PyTorch is imported; ``--json`` prints one line with the
same names as before; and what a stopped command had finished is kept.
"""
