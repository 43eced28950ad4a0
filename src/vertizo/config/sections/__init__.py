"""Sections of the configuration that have a file of their own."""
