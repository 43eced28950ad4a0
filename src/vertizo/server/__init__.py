"""What the label holder has: the joined model, the embedding table, its own updates."""
