"""Several runs at once: what they compute alike is computed together, one axis for the runs.

At small sizes a round is mostly calls from Python, and a call for sixteen runs costs little more
than one for a single run. Runs that differ in seed, rates, smoothing, clip or control and in
nothing else are advanced together here. Each has its ordinary parties, which hold its parameters,
optimisers, table and counters; evaluation, checkpoints and run folders are the ordinary code. What
is computed for all runs at once is a round: embeddings, losses, replies and gradients.

Every run draws from its own streams what it would draw alone, and the runs share no sum, so that
each ends where it would have ended alone, up to rounding.
"""
