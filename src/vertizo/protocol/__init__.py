"""The protocol: what parties say to each other, and the bytes that say it.

`messages.py` has the messages, `wire.py` their frames, `codecs/` the coding of arrays.

Codecs may be added. A message or a frame changes together with ``VERSION`` in `wire.py`. What never
changes: decoding checks every type, bound and length, and nothing in a frame can name code to run;
a frame has the same bytes in a simulation and over a network.
"""
