"""The two kinds of party, client and label holder: bytes in, bytes out, however they travel.

`client.py` and `server.py` are the parties; `server_model.py` has the round that all methods share,
`checks.py` the checks of what arrives, `table.py` the server's embeddings, `private_updates.py` its
training under noise, `final_head.py` the head that it fits on raw labels.

A party is made of its side of a method, a model, its data, a codec and, at the server, the privacy
plan: each may be exchanged. What never changes: a party changes nothing until all checks have
passed, and refuses with a `RefusedError` or a `WireError`; a repeated query gets the same reply and
is charged once; and no party owns a clock, a socket or a thread: a driver (the simulator, or a
network link) calls it.
"""
