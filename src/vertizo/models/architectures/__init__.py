"""Networks by name, as plain modules: the papers', ResNet-18, transformers."""
