"""The laboratory's wing: its commands, lists and schemas on the command line."""

from vertizo.core.plugins.wings import Wing

HERE = "vertizo.lab.commands"
WING = Wing(
    commands={
        "compare": (
            "Run several methods on the same data and print one table.",
            f"{HERE}.studies:compare",
        ),
        "tune": (
            "Search hyperparameters on validation records and report what all trials cost in "
            "privacy.",
            f"{HERE}.studies:tune",
        ),
        "worth": (
            "Measure what each party adds: alone, without each, all together, all in one table.",
            f"{HERE}.studies:worth",
        ),
        "reproduce": (
            "Reproduce a table or figure of a paper and print it beside the published one.",
            f"{HERE}.studies:reproduce",
        ),
        "report": (
            "Write one HTML page about runs: curves, tables, clients, privacy, attacks.",
            f"{HERE}.report:report",
        ),
        "attack": (
            "Attack runs and print what an adversary learns, beside a control.",
            f"{HERE}.attack:attack",
        ),
        "privacy plan": (
            "Compare mechanisms for an ε; with --epochs and --batch, the noise of replies.",
            f"{HERE}.privacy:plan",
        ),
        "privacy dossier": (
            "Write what a party signs about a run: what was sent, what is covered and what is not.",
            f"{HERE}.privacy:dossier",
        ),
        "privacy verify": (
            "Check who signed a dossier, and that nothing in it was changed.",
            f"{HERE}.privacy:verify",
        ),
        "privacy intrinsic": (
            'Measure the "intrinsic" privacy figures of VFL-CZOFO, which guarantee nothing.',
            f"{HERE}.privacy:intrinsic",
        ),
        "privacy audit": (
            "Measure what clients can learn about a label, beside the accountant's bound.",
            f"{HERE}.privacy:audit",
        ),
    },
    lists={"attacks": f"{HERE}.attack:listed"},
    schemas={"study": f"{HERE}.studies:study_schema"},
)
