"""The configuration: its schema, loading, and the defaults that a method supplies."""
