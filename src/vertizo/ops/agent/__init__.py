"""Agents: one long-lived process for each party, which offers, approves and runs its jobs.

=================  ==============================================================================
`options`          the file of an agent, its tables and its policy; the file of a job
`jobs.states`      the states of a job, and which may follow which
`jobs.store`       the jobs of one party on disk; the local commands read and write it as well
`jobs.messages`    what agents say to each other
`policy`           whether a job may run here
`preparing`        from a submitted file to a job: its configuration, and what it promises
`processes`        the configuration and the command line of a party's part of a job
`children`         those processes, one a job, ended or started again; `launch` is how they begin
`agent`            what both agents share: the loop over jobs and processes
`label_holder`     the label holder's agent, which members' agents ask
`member`           a member's agent
=================  ==============================================================================

States and messages change at all parties together (``PROTOCOL`` in `jobs.messages`, ``VERSION`` in
`jobs.store`). What never changes: nothing that an agent needs is only in its memory, so that it may
be killed at any moment; a job runs only if each party's own policy allows it; members hear no line
that may depend on labels; and no folder of a job ever has two processes.
"""
