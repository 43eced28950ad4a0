"""Linear layers with ReLU as one flat vector, in memory and block by block."""
