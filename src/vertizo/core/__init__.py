"""Foundations that every room imports: errors, randomness, options, state, kernels.

`errors.py` has the one exception tree, `randomness.py` the random streams, `options.py` and
`plugins/registry.py` what configurations are made of, `state.py` what checkpoints hold,
`digests.py` the digests of files. `arrays/` works on arrays on the processor and on cards;
`kernels/` has compiled loops and products.

Kernels may become faster and errors may be added. What never changes: nothing here imports another
room; a stream's key, a name and a number alone decide a seed, so that runs can be repeated and
resumed; a kernel does what its plain twin specifies; an unknown key of an options class is an
error; and a file that differs from its listed digest is refused.
"""
