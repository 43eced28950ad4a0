"""Tables: reading, checks, and preprocessing."""
