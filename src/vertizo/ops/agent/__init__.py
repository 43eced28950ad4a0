"""One long-lived process a party: it offers, approves, runs and takes up jobs of real parties.

=================  ==============================================================================
`options`          the file of an agent, its tables and its policy
`job_file`         the file that a label holder submits
`states`           the states of a job, and which may follow which
`store`            the jobs of one party on disk; the local commands read and write it as well
`messages`         what agents say to each other
`policy`           whether a job may run here
`preparing`        from a submitted file to a job: its configuration, and what it promises
`processes`        the configuration and the command line of a party's part of a job
`children`         those processes, one a job, ended or started again; `launch` is how they begin
`agent`            what both agents share: the loop over jobs and processes
`label_holder`     the label holder's agent, which members' agents ask
`member`           a member's agent
=================  ==============================================================================
"""
