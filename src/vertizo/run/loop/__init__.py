"""A federation at work: the state machine of a job, the simulator, evaluations, trackers."""
