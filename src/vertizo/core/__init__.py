"""Leaves that everything may import: errors, randomness, checks, options, kernels."""
