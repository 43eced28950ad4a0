"""What each party is worth: federations with and without it, side by side."""
