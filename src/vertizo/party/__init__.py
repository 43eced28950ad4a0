"""The two kinds of party: bytes in, bytes out, and no idea of how they travel.

A party puts together a half of a method, a model, its data, a codec and, at the server, the
privacy plan. It checks everything that comes from outside and changes nothing until all checks have
passed; whatever it refuses it refuses with a `RefusedError` or a `WireError`. It owns no clock, no
socket and no thread: a driver (the simulator, or a network link) calls it.
"""
