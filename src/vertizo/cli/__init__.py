"""The command line: a file for each command or family of commands, imported when it is run.

`main.py` is the program and lists the commands, `options.py` has options that several share,
`console.py` tables and bars, `log.py` the lines of long-lived commands. Commands only read
arguments, call `vertizo.run` or `vertizo.network`, and show what they return.

A command is added by its function, and a line in ``COMMANDS``; the first line of the function's
docstring is its help. What never changes: a user's mistake is one line and exit code 2, a stop is
130; ``--json`` prints nothing but JSON on standard output; help and refused configurations import
no PyTorch.
"""
