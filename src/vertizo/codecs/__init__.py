"""Arrays as bytes."""
