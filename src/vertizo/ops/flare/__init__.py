"""Runs as jobs of NVIDIA FLARE."""

from vertizo.ops.flare.job import recipe

__all__ = ["recipe"]
