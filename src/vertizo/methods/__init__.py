"""The methods of vertical federated learning: both halves of each, to be read beside its paper.

`base.py` has the interface `Method`, `choice.py` the names. `first_order.py`,
`forward_difference.py` and `directional_queries.py` hold steps that several methods share;
`reported.py` makes errors of methods from outside one line.

Methods may be added, each with its tests and a recorded transcript. Where one departs from its
paper, its module says so. What never changes: a method names no ε and adds no noise, which is the
plan's; `Method.told` gives one row for each record, so that the plan can clip it; what a method
sends depends on named streams, never on a clock or a global random state.
"""
