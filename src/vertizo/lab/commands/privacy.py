"""``vertizo privacy plan``, ``dossier``, ``verify``, ``intrinsic`` and ``audit``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rich.console import Console

from vertizo.cli.console import grid, live_bar, room, say, show
from vertizo.cli.log import errors
from vertizo.cli.options import AsJson, Details, Settings, argument, complete_runs, option
from vertizo.core.text import strict_json

if TYPE_CHECKING:
    from vertizo.lab.audit.cases import Case
    from vertizo.lab.audit.game import Audit


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


def dossier(
    run: Annotated[
        Path,
        argument("Folder of a run, or of a job at one party.", "RUN", complete=complete_runs),
    ],
    out: Annotated[Path | None, option("The page. Default: dossier.html in RUN.", "FILE")] = None,
    certificates: Annotated[
        Path | None,
        option("This party's folder of certificate and key, to sign with.", "FOLDER"),
    ] = None,
    operator: Annotated[str | None, option("Who answers for this party.", "NAME")] = None,
    as_json: AsJson = False,
) -> None:
    """Write what a party signs about a run: what was sent, what is covered and what is not."""
    from vertizo.lab import dossier as dossiers
    from vertizo.network.transport.certificates import Credentials

    by = None if certificates is None else Credentials.load(certificates)
    made = dossiers.of_folder(run, operator)
    if as_json:
        print(strict_json.line(asdict(made)))
        return
    files = dossiers.write(made, out or run / "dossier.html", by)
    say(map(str, files))
    if by is None:
        say(["not signed; --certificates FOLDER signs it with this party's key"])


def verify(
    dossier: Annotated[Path, argument("The page; signature and certificate lie beside it.")],
    authority: Annotated[
        Path, option("Certificate of the authority that you trust, in PEM.", "FILE")
    ],
) -> None:
    """Check who signed a dossier, and that nothing in it was changed."""
    from vertizo.lab import dossier as dossiers

    signed, made = dossiers.verify(dossier, authority)
    say([f"{dossier} was signed by {signed.name!r} and is as it was; it says it is of {made}"])
    say([f"the name is vouched for by {signed.authority}"])


def intrinsic(
    run: Annotated[Path, argument("Run folder of VFL-CZOFO.", "RUN", complete=complete_runs)],
    repeats: Annotated[int, option("Estimates on each frozen model.", min=2)] = 100,
    as_json: AsJson = False,
) -> None:
    """Measure the "intrinsic" privacy figures of VFL-CZOFO, which guarantee nothing."""
    from vertizo.lab.intrinsic import intrinsic as measured
    from vertizo.run.results.folder import RunFolder

    found = measured(RunFolder(run), repeats=repeats)
    print(strict_json.line(asdict(found)) if as_json else found.words())


def audit(
    config: Annotated[
        Path | None,
        argument("YAML configuration. Default: a small federation with several kinds of noise."),
    ] = None,
    settings: Settings = None,
    trials: Annotated[int, option("Trials for each of the two labels.", min=20)] = 1000,
    honest_trials: Annotated[
        int | None,
        option(
            "Trials with clients that follow the protocol (slow). Default: 200, or 0 with CONFIG.",
            min=0,
        ),
    ] = None,
    confidence: Annotated[float, option("Confidence of lower bounds.", min=0.5, max=0.9999)] = 0.95,
    probes: Annotated[int, option("Queries on other records, to measure the server.", min=1)] = 12,
    record: Annotated[int, option("Record whose label is guessed.", min=0)] = 0,
    details: Details = False,
    as_json: AsJson = False,
) -> None:
    """Measure what clients can learn about a label, beside the accountant's bound."""
    if honest_trials is None:
        honest_trials = 200 if config is None else 0
    is_small = config is None and not settings
    if not is_small:
        from vertizo.config import schema

        chosen = schema.load(config, settings or [])  # refused before PyTorch is imported
    from vertizo.lab.audit.cases import configured_cases, small_cases

    amounts = (trials, honest_trials, probes, record)
    cases = small_cases(*amounts) if is_small else configured_cases(chosen, *amounts)
    found = [_played(case, confidence) for case in cases]
    if as_json:
        print(strict_json.line([one.as_dict() for one in found]))
        return
    headings, *rows = (_lines if details else _brief)(found)
    say(_verdict(found))
    show(grid(headings, rows, _title(found, is_small), room(), words=2))
    say(_notes(found, details=details))


def _played(case: Case, confidence: float) -> Audit:
    from vertizo.lab.audit.game import audit as play

    def words(played: int) -> tuple[float, str]:
        share = played / (2 * case.trials)
        return share, f"{case.title} · {played:,} of {2 * case.trials:,} trials"

    with live_bar(Console(stderr=True), case.title, words, "audit") as bar:
        return play(
            case.setting,
            case.adversary(case.setting),
            trials=case.trials,
            confidence=confidence,
            title=case.title,
            progress=bar,
        )


def _title(found: Sequence[Audit], is_small: bool) -> str:
    """Write the table's title: what all audits have in common."""
    from vertizo.lab.audit import small

    where = f"{small.RECORDS} records, batches of {small.BATCH}, {small.CLIENTS} clients, "
    where = f"{where}{small.EPOCHS} epochs, " if is_small else ""
    return f"ε at δ = {found[0].bound.delta:g}: {where}one label flipped"


def _brief(found: Sequence[Audit]) -> list[list[str]]:
    """Tabulate for each server the clients that learnt most, in the main columns of `_lines`."""
    most: dict[str, Audit] = {}
    for one in found:
        known = most.setdefault(one.title, one)
        most[one.title] = max(known, one, key=lambda audit: audit.bound.epsilon)
    return [[*line[:2], *line[3:6]] for line in _lines([*most.values()])]


def _lines(found: Sequence[Audit]) -> list[list[str]]:
    """Tabulate all audits: a heading, then a line for each."""
    return [
        ["server", "clients", "trials", "claimed", "measured ≥", "exact ≤", "replies ≤"],
        *(
            [
                one.title,
                one.adversary,
                f"{one.bound.trials:,}",
                _figure(one.epsilon_claimed),
                f"{one.bound.epsilon:.3g}",
                _figure(one.epsilon_exact, "no bound"),
                _figure(one.epsilon_replies, "no bound"),
            ]
            for one in found
        ),
    ]


def _verdict(found: Sequence[Audit]) -> Iterator[str]:
    """Yield a sentence for each figure that refutes a claim, or one that says that none does."""
    confidence = found[0].bound.confidence
    refuted = [one for one in found if one.refutes_accountant or one.refutes_claim]
    if not refuted:
        yield "nothing is refuted: no figure is above what is claimed, which proves no privacy"
    for one in refuted:
        if one.refutes_accountant:
            yield (
                f"{one.title}, {one.adversary}: more was measured than the accountant allows. The "
                "server or its accounting is wrong, unless this is one of the "
                f"{100 * (1 - confidence):g} % of audits that err."
            )
        else:
            yield f"{one.title}, {one.adversary}: more was measured than is claimed."


def _notes(found: Sequence[Audit], *, details: bool) -> Iterator[str]:
    """Yield sentences that explain the figures."""
    confidence = found[0].bound.confidence
    if details:
        yield "trials: of either label."
    elif len(found) > len(_brief(found)) - 1:
        yield (
            "Of several kinds of clients those that learnt most are shown, which errs more often "
            f"than one figure; --details shows all {len(found)} rows."
        )
    yield (
        f"measured ≥: each figure by itself holds with {100 * confidence:g} % confidence. The "
        "clients collude, know everything but this label, and know the server model's first "
        "parameters."
    )
    yield (
        "A figure near 0 shows nothing: a bound from so many trials misses what is small, and what "
        "other clients might do."
    )


def _figure(epsilon: float | None, otherwise: str = "-") -> str:
    return otherwise if epsilon is None else f"{epsilon:.4g}"
