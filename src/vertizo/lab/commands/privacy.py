"""``vertizo privacy dossier``, ``verify``, ``intrinsic`` and ``audit``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console

from vertizo.cli.console import grid, live_bar, room, say, show
from vertizo.cli.options import AsJson, Details, Settings, argument, complete_runs, option
from vertizo.core.text import strict_json

if TYPE_CHECKING:
    from vertizo.lab.audit.cases import Case
    from vertizo.lab.audit.game import Audit


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
