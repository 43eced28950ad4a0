"""Privacy audit: what clients can tell about one label, measured on the real server.

The accountant says how much a run can give away at most. The audit plays a game that shows how much
it gives away at least: one record's label is one of two, the server answers as it would in
training, and somebody who knows everything else says which label it was. `bounds` turns how often
they are right into a lower bound on ε, `adversaries` are those who play, `game` is played.
"""
