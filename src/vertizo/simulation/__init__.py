"""All parties in one process, on a virtual clock."""
