"""``vertizo --help``, ``--version`` and ``list``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import vertizo as package
from vertizo.config import schema
from vertizo.data.datasets.catalog import CATALOG

HEAVY = {"torch", "pydantic", "sklearn", "scipy", "numpy", "polars", "pandas", "yaml", "rich"}
HELP = """\
import sys
from vertizo.cli.main import main
sys.argv = ["vertizo", "--help"]
try:
    main()
except SystemExit:
    pass
"""


class TestRoot:
    def test_help(self, vertizo: Callable[..., Any]) -> None:
        result = vertizo("--help")
        assert result.code == 0
        assert result.err == ""
        for word in ("Vertical federated learning", "train", "list", "--version"):
            assert word in result.out

    def test_no_arguments_show_the_help(self, vertizo: Callable[..., Any]) -> None:
        result = vertizo()
        assert "train" in result.out + result.err

    def test_help_of_train_names_every_option(self, vertizo: Callable[..., Any]) -> None:
        result = vertizo("train", "--help")
        assert result.code == 0
        for word in ("--set", "--out", "--resume", "--controls", "--json", "YAML"):
            assert word in result.out

    def test_version(self, vertizo: Callable[..., Any]) -> None:
        result = vertizo("--version")
        assert (result.code, result.out, result.err) == (0, f"vertizo {package.__version__}\n", "")

    @pytest.mark.processes
    def test_as_a_module(self) -> None:
        command = [sys.executable, "-m", "vertizo", "--version"]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
        assert answer.stdout == f"vertizo {package.__version__}\n"
        assert answer.stderr == ""

    @pytest.mark.processes
    def test_help_imports_nothing_heavy(self) -> None:
        text = f"{HELP}print({HEAVY!r} & set(sys.modules))\n"
        answer = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
        assert answer.stdout.splitlines()[-1] == "set()"

    def test_a_list_of_commands_shows_whole_lines(self, vertizo: Callable[..., Any]) -> None:
        words = " ".join(vertizo("--help").out.split())
        assert "on the same data, models and batches; print one table." in words
        words = " ".join(vertizo("privacy", "--help").out.split())
        assert "what clients were seen to learn, beside what bounds them." in words

    @pytest.mark.parametrize("text", ["import vertizo", HELP], ids=["import", "help"])
    @pytest.mark.processes
    def test_it_takes_a_part_of_a_second(self, text: str) -> None:
        """CPU time, the least of three; on a machine of its own a third of this."""
        code = f"import time\n{text}\nprint(time.process_time())"
        command = [sys.executable, "-c", code]
        times = [
            float(subprocess.run(command, capture_output=True, text=True).stdout.split()[-1])
            for _ in range(3)
        ]
        assert min(times) <= (0.1 if text == "import vertizo" else 0.4)


NAMES = {
    "methods": {"dpzv", "cascaded", "vafl"},
    "datasets": set(CATALOG),
    "models": {"mlp", "cnn", "module", "function"},
    "codecs": {"none"},
}


class TestList:
    @pytest.mark.parametrize("kind", NAMES)
    def test_every_name_with_words_on_it(self, kind: str, vertizo: Callable[..., Any]) -> None:
        result = vertizo("list", kind)
        assert (result.code, result.err) == (0, "")
        first = {line.split()[0]: line.split()[1:] for line in result.out.splitlines() if line}
        assert set(first) >= NAMES[kind]
        for name in NAMES[kind]:
            assert len(first[name]) > 2

    def test_all_that_the_configuration_knows_is_listed(self, vertizo: Callable[..., Any]) -> None:
        for kind, key in (("methods", "method"), ("models", "client.model")):
            with pytest.raises(schema.ConfigError) as caught:
                schema.load(None, [f"{key}.name=nothing"])
            known = str(caught.value).partition("known are ")[2].split(", ")
            out = vertizo("list", kind).out
            assert len(known) >= 3
            for name in known:
                assert name.strip("'") in out

    def test_where_a_model_can_be_used(self, vertizo: Callable[..., Any]) -> None:
        lines = vertizo("list", "models").out.replace("\n", " ")
        assert "client and server" in lines
        assert "(client)" in lines
