"""The same round made four ways: by the house, in plain PyTorch, in JAX, and its products alone."""
