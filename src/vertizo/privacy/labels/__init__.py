"""Private labels: made once of the raw ones, kept in a file, and used by every run.

`private_labels.py` makes them (randomised response, or a teacher) and states what holds;
`label_file.py` keeps them. Makers may be added.

What never changes: the labels of a file are not made again, which would cost ε again; their records
are registered before the file is written; what clients see depends on raw labels through the
private ones alone. Features are not protected here.
"""
