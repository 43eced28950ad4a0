"""Scores of records online: the label holder answers callers, members look records up by keys.

==============  ===============================================================================
`service`       what the label holder knows of members: which keys are wanted, found, kept
`member`        a member's side: it finds rows by keys, embeds them and sends embeddings
`lookup`        rows of a table by keys, as a model takes them
`scorer`        what a request means, however it comes: who may ask, how much, what is logged, how
                long answers to wrong keys wait
`callers`       the file of those who may ask
`http`, `rpc`   the two ways to ask
==============  ===============================================================================

Ways to ask may be added: what is answered is decided in `scorer` alone. What never changes: nobody
is answered without a key; a request is in the log before it is answered, and nothing is answered
while the log cannot be written; and members send embeddings, never columns.
"""

LOOKED_UP = "the label holder has the first records that it asked for"
"""The line that a member writes once, by which its agent sees that it has made progress."""
