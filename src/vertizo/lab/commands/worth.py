"""``vertizo worth``: measures what each party adds to the federation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console

from vertizo.cli.console import command_line, live_bar, print_table, resumable, say
from vertizo.cli.options import AsJson, Settings, argument, option
from vertizo.core.text import strict_json

if TYPE_CHECKING:
    from vertizo.lab.comparison import Standing


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

    loaded = choosing.seeded(config, settings or [])
    from vertizo.run.experiment import settled

    errors = Console(stderr=True)
    chosen = settled(loaded, lambda line: say([line], errors))
    from vertizo.lab import notebook
    from vertizo.lab.engines import check_jobs
    from vertizo.lab.worth import study
    from vertizo.run.results.folder import RunFolder

    check_jobs(chosen, jobs)
    folder = out or Path("runs") / f"worth-{chosen.data.title}"
    RunFolder(folder).check_is_for(study.NAME)
    made = study.Worth(chosen, folder, seeds, shapley, repeats)
    made.check()
    say((f"note: {note}" for note in [*made.data.notes, *made.beforehand]), errors)
    with resumable(folder), live_bar(errors, "starting", _trainings, "worth") as show:
        content = notebook.measured(made, jobs or 1, command_line(), show)
    if as_json:
        print(strict_json.line(content))
        return
    found = notebook.of_worth(content)
    for title, headings, lines in found.tables:
        print_table(headings, lines, title or found.title)
    costs = [words for _, words in found.privacy]
    files = [f"figures: {folder / study.NAME}", f"as a picture: vertizo report {folder}"]
    say([*found.verdict, *found.notes, *costs, *files])


def _trainings(at: Standing) -> tuple[float, str]:
    return at.share, at.beside or f"{at.finished} of {at.total} trainings{at.latest}"
