"""The same parties as separate processes, over a real network."""
