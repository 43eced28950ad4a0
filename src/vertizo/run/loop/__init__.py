"""The run loop: rounds, evaluations and the end of a job, simulated or over a network.

`job_state.py` is the state machine that both share. `federation.py` makes all parties in one
process, `simulator.py` carries their messages on a virtual clock, `training.py` drives both with
checkpoints. `evaluation.py` makes the figures, `ledger_session.py` opens the ledger of a run,
`callbacks.py` and `tracking.py` tell others of it.

Trackers, figures and the simulator's links may change. What never changes: `job_state.py` reads no
clock, file or socket, so that the same messages lead to the same state; the simulator's transcript
depends on seed and configuration alone; callbacks and trackers change no number of a run.
"""
