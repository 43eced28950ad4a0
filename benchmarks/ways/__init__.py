"""The same round made four ways: by Vertizo, in plain PyTorch, in JAX, and its products alone."""
