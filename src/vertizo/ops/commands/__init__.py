"""The commands of a party as a service."""
