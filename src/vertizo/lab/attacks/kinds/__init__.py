"""The attacks, a file each."""
