"""The command line: thin commands over `vertizo.run.experiment` and its neighbours.

Heavy imports wait until a command runs, so that ``--help`` answers at once.
"""

from __future__ import annotations

import io
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from vertizo.cli import ledger, network, research
from vertizo.cli import privacy as privacy_commands
from vertizo.cli.engine_options import Engine, EngineName, RayAddress
from vertizo.core.errors import Interrupted, UserError
from vertizo.core.version import VERSION

app = typer.Typer(
    name="vertizo",
    help="Vertical federated learning that never sends a gradient.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,  # its modules cost more time than all else of --help
)


app.add_typer(privacy_commands.app)


class Kind(StrEnum):
    """What `vertizo list` can show."""

    METHODS = "methods"
    DATASETS = "datasets"
    MODELS = "models"
    CODECS = "codecs"
    ATTACKS = "attacks"


def _check_readable(config: Path | None) -> None:
    """Refuse what is no YAML file at once, before PyTorch is imported, which takes seconds."""
    if config is not None:
        from vertizo.config.error_lines import read_yaml

        read_yaml(config)


def _check(config: Path | None, settings: list[str], resume: Path | None) -> None:
    """Refuse a wrong configuration before PyTorch is imported."""
    if resume is None:
        from vertizo.config.schema import load

        load(config, settings)


@app.command()
def train(
    config: Annotated[
        Path | None,
        typer.Argument(help="YAML configuration; without one, DPZV on scikit-learn's digits."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. method.name=vafl."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Run folder; without it, a new one under runs/."),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Continue the run in this folder."),
    ] = None,
    controls: Annotated[
        bool,
        typer.Option("--controls", help="Also run frozen clients and random updates."),
    ] = False,
    track: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND=PLACE",
            help="Also write evaluations to tensorboard=DIR, mlflow=DIR or mlflow=URI; repeat.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as the last line, for programs.")
    ] = False,
) -> None:
    """Train one federation in one process and leave a run folder."""
    _check(config, settings or [], resume)
    from vertizo.cli.train import train as run

    try:
        run(
            config,
            settings or [],
            out,
            resume,
            controls=controls,
            as_json=as_json,
            track=track or [],
        )
    except KeyboardInterrupt:
        raise Interrupted("stopped") from None


class By(StrEnum):
    """The accuracy that `vertizo compare` holds its targets against."""

    VALIDATION = "validation"
    TRAIN = "train"


@app.command()
def compare(
    config: Annotated[
        Path | None,
        typer.Argument(
            help="YAML configuration that all methods share; may have a section for each."
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,…",
            help="Methods, or entries of the section 'methods'; without it, all of that section.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each method.")] = 1,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key for all methods."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of all runs; what is finished in it is kept."),
    ] = None,
    targets: Annotated[
        str, typer.Option(metavar="A,B,…", help="Accuracies that bytes are counted to, in %.")
    ] = "60,80,90,95",
    by: Annotated[
        By, typer.Option(help="The accuracy that must reach them; train is the running one.")
    ] = By.VALIDATION,
    controls: Annotated[
        bool,
        typer.Option(help="Also run frozen clients and random updates for every method."),
    ] = True,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Runs at a time; without it, 1, or as many as the cluster takes."),
    ] = None,
    engine: Engine = EngineName.LOCAL,
    ray_address: RayAddress = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """Run methods side by side on the same data, models and batches; print one table."""
    _check_readable(config)
    from vertizo.cli.compare import compare as run

    try:
        run(
            config,
            settings or [],
            methods,
            seeds,
            out,
            targets=targets,
            by=by.value,
            controls=controls,
            jobs=jobs,
            engine=engine.value,
            ray_address=ray_address,
            as_json=as_json,
        )
    except KeyboardInterrupt:
        raise Interrupted("stopped") from None


@app.command()
def attack(
    name: Annotated[
        str, typer.Argument(help="An attack (`vertizo list attacks`), or table for all of them.")
    ],
    config: Annotated[
        Path | None,
        typer.Argument(help="YAML configuration; without one, the attack's own setting."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override a key; attack.KEY is the attack's own."
        ),
    ] = None,
    methods: Annotated[
        str | None, typer.Option(metavar="A,B,…", help="For the table; without it, all.")
    ] = None,
    attacks: Annotated[
        str | None, typer.Option(metavar="A,B,…", help="For the table; without it, all.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Trials of each attack.")] = 3,
    noise: Annotated[
        bool, typer.Option(help="For the table: also with noise on the replies.")
    ] = True,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for attacks.json.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """Attack runs and print what an adversary learns, beside what none would."""
    from vertizo.cli.attack import attack as run

    try:
        run(
            name,
            config,
            settings or [],
            methods=methods,
            attacks=attacks,
            seeds=seeds,
            noise=noise,
            out=out,
            as_json=as_json,
        )
    except KeyboardInterrupt:
        raise Interrupted("stopped") from None


network.register(app)
research.register(app)


@app.command("list")
def list_(kind: Annotated[Kind, typer.Argument(help="What to list.")]) -> None:
    """Show what can be chosen, with a line on each."""
    from vertizo.cli.listing import show

    show(kind.value)


class FileKind(StrEnum):
    """The files that `vertizo schema` describes."""

    TRAIN = "train"
    SERVE = "serve"
    JOIN = "join"
    STUDY = "study"


@app.command()
def schema(
    kind: Annotated[FileKind, typer.Argument(help="What the file is for.")] = FileKind.TRAIN,
) -> None:
    """Print the JSON schema of a configuration, for editors."""
    import json

    from vertizo.cli.schema import schema as made

    print(json.dumps(made(kind.value), indent=2, ensure_ascii=False))


def _show_whole_lines(*groups: typer.Typer) -> None:
    """Let a list of commands show all of what each does, where it would be cut at the width."""
    for group in groups:
        for command in group.registered_commands:
            words = getattr(command.callback, "__doc__", None) or ""
            command.short_help = " ".join(words.partition("\n\n")[0].split())


_show_whole_lines(app, privacy_commands.app, ledger.app)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"vertizo {VERSION}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Vertical federated learning that never sends a gradient."""


def main() -> None:
    """Entry point: a person's mistake is one line and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may know no Greek
    try:
        sys.exit(app(sys.argv[1:] or ["--help"], standalone_mode=False))
    except (Interrupted, KeyboardInterrupt) as error:
        _end(str(error) or "stopped", 130)
    except UserError as error:
        _end(str(error), 2)
    except BrokenPipeError:
        sys.exit(141)
    except Exception as error:
        # Typer carries its own copy of click, whose errors have no public name.
        if not hasattr(error, "format_message"):
            if type(error).__name__ == "Abort":
                _end("stopped", 130)
            raise
        message = " ".join(error.format_message().split()).replace("Value error, ", "")
        _end(f"{message.rstrip('.')}; see --help", 2)


def _end(line: str, code: int) -> NoReturn:
    print(f"vertizo: {line}", file=sys.stderr)
    sys.exit(code)
