"""Runs as jobs of NVIDIA FLARE."""
