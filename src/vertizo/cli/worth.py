"""``vertizo worth``: is a partner worth a contract?"""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

from rich.console import Console

from vertizo.cli.console import command_line, live_bar, print_table, resumable, say
from vertizo.cli.options import AsJson, Settings, argument, option
from vertizo.core import strict_json
from vertizo.core.errors import ConfigError
from vertizo.core.version import VERSION

if TYPE_CHECKING:
    from vertizo.studies.comparison import Standing

SHOWN = 10
"""Columns in the table of those used most."""


def worth(
    config: Annotated[Path | None, argument("YAML configuration of the federation of all.")] = None,
    seeds: Annotated[int, option("Trainings of each coalition.", min=1)] = 1,
    settings: Settings = None,
    out: Annotated[
        Path | None,
        option(
            "Folder of all runs; finished ones are not repeated. Default: a folder under runs/.",
            "DIR",
        ),
    ] = None,
    shapley: Annotated[
        bool,
        option("Also train the other coalitions, of at most 5 feature holders, for their values."),
    ] = True,
    repeats: Annotated[
        int, option("Permutations of each party and column; 0 for none.", min=0)
    ] = 5,
    jobs: Annotated[int | None, option("Trainings at a time. Default: 1.", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Measure what each party adds: alone, without each, all together, all in one table."""
    from vertizo.config import choosing

    loaded = choosing.load(config, settings or [])
    first = loaded.first() if isinstance(loaded, choosing.Open) else loaded
    if "seed" not in first.model_fields_set:  # so that it is resumed where it was stopped
        loaded = choosing.load(config, [*(settings or []), "seed=0"])
    from vertizo.run.experiment import settled

    errors = Console(stderr=True)
    chosen = settled(loaded, lambda line: say([line], errors))
    if chosen.privacy.ledger is not None and (jobs or 1) > 1:
        raise ConfigError(
            f"--jobs is {jobs} but privacy.ledger {chosen.privacy.ledger} is for one run at a "
            "time; leave --jobs out"
        )
    from vertizo.core.registry import short
    from vertizo.run.folder import RunFolder
    from vertizo.studies import made_by
    from vertizo.studies.worth import study, words

    folder = out or Path("runs") / f"worth-{short(chosen.data.name)}"
    RunFolder(folder).check_is_for(study.NAME)
    made = study.Worth(chosen, folder, seeds, shapley, repeats)
    made.check()
    say((f"note: {note}" for note in [*made.data.notes, *made.beforehand]), errors)
    began = perf_counter()
    with resumable(folder), live_bar(errors, "starting", _trainings, "worth") as show:
        content = made.run(jobs or 1, show)
    by = made_by.this(perf_counter() - began)
    content = {"command": command_line(), "version": VERSION, "made_by": by, **content}
    place = study.write(folder, content)
    if as_json:
        print(strict_json.line(content))
        return
    title = f"{content['dataset']}, {content['method']}: {words.metric(content)}"
    gain = f"gain over {words.holder(content)} alone"
    print_table(
        ["who takes part", words.metric(content), "95 %", gain], words.table(content), title
    )
    headings, lines = words.parties(content)
    print_table(headings, lines, "What each party is worth")
    if columns := words.columns(content, SHOWN):
        print_table(["party", "column", "permuted"], columns, "Columns used most")
    said = [*words.verdicts(content), *words.notes(content)]
    say([*said, f"figures: {place}", f"as a picture: vertizo report {folder}"])


def _trainings(at: Standing) -> tuple[float, str]:
    return at.share, at.beside or f"{at.finished} of {at.total} trainings{at.latest}"
