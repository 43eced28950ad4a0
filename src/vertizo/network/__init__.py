"""The network: the parties of `vertizo.party` as separate processes, for real federations.

`transport/` carries bytes under mutual TLS and vouches for who asks; `serving/` runs jobs and
predictions over it; `alignment/` finds the records that all parties have.

A way to carry bytes may be added (`transport/base.py` is its contract). What never changes: members
ask and the label holder answers, so that members need no open port; every ask may be repeated byte
for byte after a cut or a restart, and nothing is done twice; what arrives is checked before it
changes anything; and for the same messages parties compute the same bytes as in a simulation.
"""
