"""Noise: on a grid and seeded, exact draws, and on embeddings."""
