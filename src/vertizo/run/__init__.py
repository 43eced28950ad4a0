"""Runs: building the parties, the loop, the simulator, the run folder, prediction."""
