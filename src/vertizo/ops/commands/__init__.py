"""The commands of the wing: agents and their jobs, and online scores."""
