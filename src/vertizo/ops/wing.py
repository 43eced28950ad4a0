"""The wing's entry point: its commands, monitors and schemas, each by import path."""

from vertizo.core.plugins.wings import Wing

HERE = "vertizo.ops.commands"
WING = Wing(
    commands={
        "score": (
            "Score records online with a finished job's model, until it is stopped.",
            f"{HERE}.score:score",
        ),
        "api-key": (
            "Let somebody ask for scores: print a new key, and add its digest to the file of "
            "callers.",
            f"{HERE}.score:api_key",
        ),
        "agent": (
            "Run a party's jobs with the other parties' agents, until it is stopped.",
            f"{HERE}.agent:agent",
        ),
        "submit": (
            "Submit a job, as the label holder, to this party's agent.",
            f"{HERE}.jobs:submit",
        ),
        "jobs": (
            "List the jobs of this party's agent, or tell all about one.",
            f"{HERE}.jobs:jobs",
        ),
        "cancel": (
            "Take a job back, as the label holder; it ends at all parties.",
            f"{HERE}.jobs:cancel",
        ),
        "approve": ("Approve a job that waits for a person, as a member.", f"{HERE}.jobs:approve"),
        "refuse": (
            "Refuse a job, as a member, or leave one that runs; it ends at all parties.",
            f"{HERE}.jobs:refuse",
        ),
    },
    monitors={
        "figures": "vertizo.ops.monitoring:figures_at",
        "health": "vertizo.ops.monitoring:health_at",
        "served": "vertizo.ops.monitoring:served_at",
        "joined": "vertizo.ops.monitoring:joined_at",
    },
    schemas={
        "agent": f"{HERE}.schemas:agent",
        "job": f"{HERE}.schemas:job",
    },
)
