"""Jobs as agents know them: states, what is said of them, and the file that keeps them."""
