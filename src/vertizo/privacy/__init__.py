"""What the server's replies pass through, and what can then be said of them."""
