"""What this package adds to Vertizo; its pyproject.toml says by which names."""
