"""Zeroth-order training: random directions, gradient estimators, penalties and tangents.

`directions.py` draws directions in the processor's memory, `card_directions.py` on a card;
`estimators.py` evaluates models along them; `penalties.py` adds regularisers; `tangents.py` finds
the directions along which outputs vary most.

Evaluation may become faster or take less memory. What never changes: a direction follows from its
law and its seed alone, the same numbers whether it is held or drawn in blocks; its φ makes the
estimate unbiased; client and server draw the same from a seed they share; and privacy noise is
never drawn here.
"""
