"""Labels that are made private once, and their file."""
