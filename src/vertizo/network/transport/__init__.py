"""Transport: carries bytes between parties over gRPC under mutual TLS, and proves who they are.

`base.py` is the contract of a way to carry bytes; `grpc.py` is the label holder's side of one,
`grpc_channel.py` and `grpc_stream.py` the member's. `certificates.py`, `rotation.py`, `signing.py`
and `authority.py` hold identities; `http_server.py` serves HTTP callers.

Limits, pauses and lines about failures may change. What never changes: only a party with a
certificate of the trusted authority is let in, under the name in that certificate; an ask is
repeated byte for byte until it is answered; this room never looks into the bytes that it carries;
and the metadata of `versions.py` keep their form, so that any two versions can name each other.
"""
