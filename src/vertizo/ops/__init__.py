"""The wing ops: a party as a service, with agents, online scores, monitoring and NVIDIA FLARE.

`agent/` runs a party's jobs, `scoring/` answers requests for scores, `flare/` runs jobs over NVIDIA
FLARE; `monitoring.py` and `figures.py` show a party's health; `commands/` has the commands, which
`wing.py` registers by `vertizo.core.plugins.wings`.

Anything here may use the core, which works without it. What never changes: parties, messages, the
ledger and certificates are the core's and are not weakened; and what a job may do at a party is
decided by that party's own files, never by what arrives from another.
"""
