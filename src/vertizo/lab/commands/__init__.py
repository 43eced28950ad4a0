"""The commands of the laboratory, a file a command or family."""
