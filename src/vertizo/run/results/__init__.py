"""What a run leaves behind: its folder, checkpoints, summary and where it came from."""
