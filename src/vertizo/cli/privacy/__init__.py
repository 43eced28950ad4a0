"""The commands of ``vertizo privacy``."""
