"""Searching hyperparameters: trials on validation records, and what all of them cost together."""
