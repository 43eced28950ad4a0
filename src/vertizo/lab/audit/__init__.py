"""Privacy audit: a lower bound on ε, measured on the real server by guessing one label.

The accountant bounds from above how much a run gives away. The audit plays a game that bounds it
from below: one record's label is one of two, the server answers as it would in training, and an
adversary who knows everything else guesses the label. `bounds.py` turns the numbers that it saw
into a lower bound on ε, `adversaries.py` holds the adversaries, `setting.py` the two worlds,
`game.py` plays, `cases.py` lists the games.

Adversaries may be added: a better one only raises the bound. What never changes: the two worlds
differ in one label alone; the server is the one that trains in runs; trials are independent; and
the event of the bound is chosen on trials that the bound is not taken on.
"""
