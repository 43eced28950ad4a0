"""``vertizo privacy plan``: the noise that an ε needs, and a forecast of learning under it."""

from __future__ import annotations

from typing import Annotated, Literal

from vertizo.cli.console import grid, room, say, show
from vertizo.cli.log import errors
from vertizo.cli.options import AsJson, option
from vertizo.core.text import strict_json

Server = Literal["none", "private-sgd", "private-zeroth-order", "poisson-dp-sgd"]
Cover = Literal["labels", "features"]


def plan(
    records: Annotated[int, option("D, the number of training records.")],
    clients: Annotated[int, option("M, the number of clients.")],
    epsilon: Annotated[float, option("The ε to reach.")],
    delta: Annotated[float, option("The δ at which ε is stated.")],
    epochs: Annotated[int | None, option("E, queries of each client about each record.")] = None,
    batch: Annotated[int | None, option("B, records in a query.")] = None,
    classes: Annotated[int, option("k, the number of classes.", min=2)] = 2,
    width: Annotated[
        int | None,
        option("d_h, numbers of an embedding. Default: 1 for the comparison, else 64.", min=1),
    ] = None,
    positives: Annotated[
        float | None,
        option("Share of the rarer of two classes, where it is public, for the forecast."),
    ] = None,
    cover: Annotated[
        Cover, option("What must be covered, for the comparison: labels or features.", "WHAT")
    ] = "labels",
    clip: Annotated[float, option("C, the clip of replies.")] = 1.0,
    releases: Annotated[
        int, option("Numbers in a reply, each with its own clip and noise.", min=1)
    ] = 1,
    server: Annotated[
        Server,
        option(
            "Training of the server model: none, private-sgd, private-zeroth-order or "
            "poisson-dp-sgd.",
            "HOW",
        ),
    ] = "poisson-dp-sgd",
    server_share: Annotated[float, option("Share of the budget (of μ²) for the server.")] = 0.5,
    server_clip: Annotated[float, option("C, the clip of the server's updates.")] = 1.0,
    records_per_person: Annotated[
        int, option("k, records of one person at most: ε is stated for such a person as well.")
    ] = 1,
    steps: Annotated[
        int | None, option("Server steps on secret samples. Default: one for each round.", min=1)
    ] = None,
    sampling: Annotated[float | None, option("q, rate of secret samples. Default: B/D.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare mechanisms for an ε; with --epochs and --batch, the noise of replies."""
    given = locals()
    from vertizo.lab import planning

    found = planning.planned(
        {key: given[key] for key in planning.Asked.model_fields},
        called=lambda key: f"--{key.replace('_', '-')}",
        tell=lambda line: say(line, errors()),
    )
    if as_json:
        print(strict_json.line(found.content))
        return
    for title, headings, rows in found.tables:
        table = grid(headings, rows, title, room())
        if len(found.tables) > 1:
            table.title_justify, table.show_header = "left", any(headings)
        show(table)
    first, *others = found.verdict
    say([*found.notes, *others] if epochs else [first, *others, *found.notes])
