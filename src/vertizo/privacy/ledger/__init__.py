"""What records were charged by all runs on them, in memory and on disk."""
