"""The program ``vertizo`` and its commands, each imported when it is run or asked for help.

A command's file imports at its top what its help needs, and everything else in the function's
body, after the configuration was checked. So help and refusals need no PyTorch.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup
from typer.main import get_command

from vertizo.cli import log
from vertizo.core.errors import ConfigError, Interrupted, UserError
from vertizo.core.memory import advice, ran_out
from vertizo.core.plugins.imports import object_at
from vertizo.core.plugins.wings import wings
from vertizo.core.text.suggestions import nearest, question
from vertizo.core.version import VERSION

COMMANDS = {
    "init": "Write a configuration to begin with: of a small made-up table, or of your own.",
    "train": "Train one federation in this process and write a run folder.",
    "predict": "Predict new records, from a run folder or together with all parties over the "
    "network.",
    "export": "Write a run's trained models, a file for each party.",
    "list": "List what you can choose, with one line about each.",
    "schema": "Print the JSON schema of a kind of file, for editors.",
    "privacy": "Plan, explain and measure what is protected.",
    "privacy explain": "Explain in plain words what a run protects and what it does not.",
    "privacy ledger": "Manage the ledger that all runs on a set of records are charged to.",
    "privacy ledger create": "Create a ledger with a fixed budget for runs, or set a file apart "
    "for private labels.",
    "privacy ledger show": "Print how much of the budget is spent and left.",
    "privacy ledger accept": "Confirm that a moved ledger is the newest copy and the only one in "
    "use.",
    "certs": "Create a test authority and a certificate for each party, for testing.",
    "align": "Find the records that all parties have and write this party's rows of them.",
    "serve": "Serve a job as the label holder, or continue it.",
    "join": "Join a job as a feature holder, or continue it.",
}
"""Commands of the core → their lines of help; wings (`vertizo.core.plugins.wings`) add theirs."""
FILES = {**dict.fromkeys(("certs", "serve", "join"), "parties"), "export": "predict"}
"""First word of a core command → its file, if that has another name."""


def _is_group(words: tuple[str, ...]) -> bool:
    """Whether ``words`` name a group of commands; for the core's no wing is loaded."""
    known = COMMANDS if " ".join(words) in COMMANDS else chain(*(w.commands for w in wings()))
    return any(each.startswith(" ".join((*words, ""))) for each in known)


def _home(words: tuple[str, ...]) -> str | None:
    """The function of a command, as ``module:name``; None for an unknown command."""
    if (joined := " ".join(words)) in COMMANDS:
        first, *others = words
        return f"vertizo.cli.{FILES.get(first, first)}:{'_'.join(others) or first}"
    return next((w.commands[joined][1] for w in wings() if joined in w.commands), None)


class LazyGroup(TyperGroup):
    """A group that imports a command's file on demand; lists and suggestions need no import."""

    words: tuple[str, ...] = ()

    @property
    def entries(self) -> dict[str, str]:
        """Commands and groups directly below this one → their lines of help."""
        added = {words: line for w in wings() for words, (line, _) in w.commands.items()}
        found: dict[str, str] = {}
        for joined, line in (COMMANDS | added).items():
            words, depth = tuple(joined.split()), len(self.words)
            if words[:depth] == self.words and len(words) > depth:
                is_here = len(words) == depth + 1  # or else a group of that name is
                found[words[depth]] = line if is_here else found.get(words[depth], "")
        return found

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the commands, in the order of `COMMANDS`."""
        return list(self.entries)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Make the click command of a name; None for an unknown name."""
        words = (*self.words, cmd_name)
        if _is_group(words):
            line = COMMANDS.get(" ".join(words), "")
            group = LazyGroup(name=cmd_name, help=line, rich_markup_mode=None)
            group.words = words
            return group
        if (home := _home(words)) is None:
            return None
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(cmd_name)(object_at(home))
        return get_command(app)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find a command as click does; ConfigError with a suggestion for a misspelt name."""
        words = (*self.words, args[0])
        if _home(words) is None and not _is_group(words) and not ctx.resilient_parsing:
            known = [*COMMANDS, *(words for wing in wings() for words in wing.commands)]
            inside = (words for words in known if words.split()[-1] == args[0])
            deeper = question([f"vertizo {words}" for words in inside])
            hint = (deeper or nearest(args[0], list(self.entries))).lstrip("; ")
            raise ConfigError(f"no command {args[0]!r}; {hint or 'see --help'}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands for ``--help``, each with its whole line."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self.entries.items()))

    def invoke(self, ctx: Any) -> Any:
        """Run the command; Ctrl-C ends it with one line, which the command may word itself."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # otherwise click ends without a line
            raise Interrupted("stopped") from None
        except BrokenPipeError:  # otherwise click ends with 1
            _leave_output()
            sys.exit(141)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"vertizo {VERSION}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Vertical federated learning by zeroth-order messages, with privacy guarantees that hold."""


def program() -> LazyGroup:
    """Make the whole command line, as a click group."""
    app = typer.Typer(cls=LazyGroup, rich_markup_mode=None)  # rich help costs most of --help's time
    app.callback()(_root)
    group = get_command(app)
    assert isinstance(group, LazyGroup)
    return group


def main() -> None:
    """Run the command line; a user's mistake is one line and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may know no Greek
    log.reset()
    try:
        arguments = sys.argv[1:] or ["--help"]
        _check_none_is_empty(arguments)
        code = program().main(arguments, prog_name="vertizo", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where a full disk is still told in one line
        sys.exit(code)
    except (Interrupted, KeyboardInterrupt) as error:
        _end(str(error) or "stopped", 130)
    except UserError as error:
        _end(str(error), 2)
    except BrokenPipeError:
        _leave_output()
        sys.exit(141)
    except OSError as error:  # as `Path.exists` raises for a folder that may not be entered
        if error.filename is None and error.errno != errno.ENOSPC:
            raise
        _leave_output()
        place = "standard output" if error.filename is None else error.filename
        _end(f"{place} cannot be used: {error.strerror}", 2)
    except Exception as error:
        if ran_out(error):
            _end(advice(), 2)
        # Typer carries its own copy of click, whose errors have no public name.
        if not hasattr(error, "format_message"):
            raise
        message = " ".join(error.format_message().split()).replace("Value error, ", "")
        if (found := getattr(error.__cause__, "errors", None)) is not None:
            from vertizo.config.error_lines import right_for

            option, wrong = message.partition("'")[2].partition("'")[0], found()[0]
            if wrong["type"] != "value_error":  # which is of Typer's own, and says all
                message = f"{option} is {wrong['input']!r}; it must be {right_for(wrong)}"
        _end(f"{message.rstrip('.')}; see --help", 2)


def _check_none_is_empty(arguments: Sequence[str]) -> None:
    """Raise ConfigError for an empty value: as a path it would mean the current folder."""
    for before, word in pairwise(["vertizo", *arguments]):
        option, *given = word.split("=", 1)
        if not word or (option.startswith("--") and given == [""]):
            named = option or before
            raise ConfigError(f"what follows {named} is empty; is a variable of the shell not set?")


def _leave_output() -> None:
    """Drop output that is not yet printed, so that ending does not try again."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end(line: str, code: int) -> NoReturn:
    log.end(line, failed=code != 130)
    sys.exit(code)
