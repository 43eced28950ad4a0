"""A party as a service: agents that run its jobs, scoring, monitoring, NVIDIA FLARE.

A wing: the core works without it, and registers its commands by `vertizo.core.wings`. What is here
may use whatever the core has, and may not weaken it: parties, messages, the ledger and certificates
are the core's, and what a job may do at a party is decided by that party's own files.
"""
