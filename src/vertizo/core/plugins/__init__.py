"""What is imported by its name: plug-ins, wings, heavy packages, former paths."""
