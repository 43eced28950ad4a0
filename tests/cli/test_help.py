"""``--help`` of every command, ``--version``, ``list``, completion, and what they import."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import Vertizo

import vertizo as package
from vertizo.cli import list as listing
from vertizo.cli.main import LazyGroup, program
from vertizo.config import schema
from vertizo.data.datasets.catalog import CATALOG
from vertizo.methods.choice import METHODS
from vertizo.privacy.options import MECHANISMS
from vertizo.run.loop.tracking import TRACKERS

HEAVY = {"torch", "pydantic", "sklearn", "scipy", "numpy", "polars", "pandas", "yaml", "grpc"}
RUN = """\
import sys
from vertizo.cli.main import main
sys.argv = ["vertizo", *sys.argv[1:]]
try:
    main()
except SystemExit:
    pass
print(*sys.modules)
"""


def commands(words: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any, str]]:
    """Every command and group below one, with its words and its line in the list."""
    for name, line in command.entries.items():
        inner = command.get_command(None, name)
        yield (*words, name), inner, line
        if isinstance(inner, LazyGroup):
            yield from commands((*words, name), inner)


def imported(*arguments: str) -> set[str]:
    """Names of the modules that a command has imported at its end, in a process of its own."""
    command = [sys.executable, "-c", RUN, *arguments]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(answer.stdout.splitlines()[-1].split())


def test_every_command_has_help(vertizo: Vertizo) -> None:
    found = list(commands((), program()))
    assert {words[0] for words, _, _ in found} >= {"train", "compare", "privacy", "serve", "list"}
    for words, command, line in found:
        out = vertizo(*words, "--help").quietly()
        text = " ".join(out.split())
        assert text.startswith(f"Usage: vertizo {' '.join(words)}"), words
        assert command.help.partition("\n\n")[0] == line, f"{words}: two first lines"
        assert line in text, words
        assert "  --help" in out, words
        for parameter in command.params:
            assert parameter.help, f"{words}: nothing about {parameter.name}"
            assert parameter.param_type_name == "argument" or parameter.opts[0] in text, words


def test_the_list_of_commands_has_whole_lines(vertizo: Vertizo) -> None:
    for words in ((), ("privacy",), ("privacy", "ledger")):
        said = vertizo(*words, "--help")
        text = " ".join(said.out.split())
        for inner, _, line in commands((), program()):
            if inner[:-1] == words:
                assert f"{inner[-1]} {line}" in text
    assert vertizo().out == vertizo("--help").out


@pytest.mark.full
def test_version(vertizo: Vertizo) -> None:
    result = vertizo("--version")
    assert (result.code, result.out, result.err) == (0, f"vertizo {package.__version__}\n", "")
    command = [sys.executable, "-m", "vertizo", "--version"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (answer.stdout, answer.stderr) == (f"vertizo {package.__version__}\n", "")


@pytest.mark.full
def test_help_imports_nothing_heavy() -> None:
    modules = imported("--help")
    assert not modules & {*HEAVY, "rich"}
    own = {name for name in modules if name.startswith("vertizo.cli.")}
    assert own == {"vertizo.cli.main", "vertizo.cli.log"}
    code = f"""import sys
from vertizo.cli.main import program
for words in {[words for words, _, _ in commands((), program())]!r}:
    group = program()
    for word in words:
        group = group.get_command(None, word)
print(*sys.modules)"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "vertizo.cli.train" in answer.stdout
    assert not set(answer.stdout.split()) & HEAVY, "a command's file imports it for its help"


@pytest.mark.full
def test_a_wrong_key_is_refused_before_anything_is_built() -> None:
    for words in ("train", "compare --methods dpzv", "tune", "privacy audit"):
        modules = imported(*words.split(), "--set", "method.nam=x")
        above = ("run", "network", "attacks", "studies")
        rooms = {name.split(".")[1] for name in modules if name.startswith("vertizo.")}
        assert not rooms.intersection(above), words


@pytest.mark.full
def test_it_takes_a_part_of_a_second() -> None:
    """CPU time, the least of three; on a machine of its own a third of this."""
    for text, most in (("import vertizo", 0.1), (RUN, 0.4)):
        code = f"import time\n{text}\nprint(time.process_time())"
        command = [sys.executable, "-c", code, "--help"]
        said = [subprocess.run(command, capture_output=True, text=True).stdout for _ in range(3)]
        assert min(float(each.split()[-1]) for each in said) <= most, text


def completed(vertizo: Vertizo, monkeypatch: pytest.MonkeyPatch, line: str) -> list[str]:
    """What a shell offers behind a line; Typer's script asks in this way."""
    words = line.split(" ")
    with monkeypatch.context() as patch:
        patch.setenv("_VERTIZO_COMPLETE", "complete_bash")
        patch.setenv("COMP_WORDS", line)
        patch.setenv("COMP_CWORD", str(len(words) - 1))
        return vertizo().out.split()


def test_completion(vertizo: Vertizo, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("runs/one", "runs/two", "old", "deep/a/b/c"):
        (here / folder).mkdir(parents=True)
        (here / folder / "config.yaml").touch()
    for line, offered in (
        ("vertizo tr", ["train"]),
        ("vertizo privacy ex", ["explain"]),
        ("vertizo privacy ledger a", ["accept"]),
        ("vertizo train --resu", ["--resume"]),
        ("vertizo train --resume ", ["old", "runs/one", "runs/two"]),
        ("vertizo report runs/", ["runs/one", "runs/two"]),
        ("vertizo compare --methods dp", ["dpzv"]),
        ("vertizo compare --methods vafl,dp", ["vafl,dpzv"]),
        ("vertizo attack memb", ["membership"]),
        ("vertizo attack tab", ["table"]),
        ("vertizo list me", ["methods", "mechanisms"]),
        ("vertizo reproduce cascaded-table", ["cascaded-table1", "cascaded-table2"]),
    ):
        assert completed(vertizo, monkeypatch, line) == offered, line


def test_completion_can_be_shown_and_installed(
    vertizo: Vertizo, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shell is named, as a test runs in none."""
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    monkeypatch.setenv("HOME", str(here))
    for shell in ("bash", "zsh", "fish"):
        assert "_VERTIZO_COMPLETE=complete_" in vertizo("--show-completion", shell).quietly()
        assert vertizo("--install-completion", shell).code == 0
    assert "vertizo" in (here / ".bashrc").read_text()


def test_list_names_and_explains_all(vertizo: Vertizo) -> None:
    for kind, names in (
        ("methods", {"dpzv", "cascaded", "vafl"}),
        ("datasets", set(CATALOG)),
        ("models", {"mlp", "cnn", "module", "function"}),
        ("codecs", {"none"}),
        ("mechanisms", set(MECHANISMS)),
        ("trackers", set(TRACKERS)),
    ):
        listed = vertizo("list", kind).quietly().splitlines()
        first = {line.split()[0]: line.split()[1:] for line in listed if line}
        assert set(first) >= names
        for name in names:
            assert len(first[name]) > 2, name
    lines = vertizo("list", "models").out.replace("\n", " ")
    assert "client and server" in lines
    assert "(client)" in lines


def test_all_that_the_configuration_knows_is_listed(vertizo: Vertizo) -> None:
    for kind, key in (("methods", "method"), ("models", "client.model")):
        with pytest.raises(schema.ConfigError) as caught:
            schema.load(None, [f"{key}.name=nothing"])
        known = str(caught.value).partition("known are ")[2].split(", ")
        out = vertizo("list", kind).out
        assert len(known) >= 3
        for name in known:
            assert name.strip("'") in out


def test_every_method_is_told_in_plain_words(vertizo: Vertizo) -> None:
    """What goes up, what comes back, when to take it; after what an embedding is."""
    assert set(listing.METHODS) == set(METHODS)
    out = vertizo("list", "methods").out
    assert out.index("embedding") < out.index("dpzv") < out.index("label-statistic")
    for riddle in ("zeroth-order clients", "First-order", "``", "Σ"):
        assert riddle not in out
    assert all("For " in words or "like one model" in words for words in listing.METHODS.values())
