"""Runs as jobs of NVIDIA FLARE."""

from vertizo.network.flare.job import recipe

__all__ = ["recipe"]
