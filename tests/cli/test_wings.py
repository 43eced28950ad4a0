"""What a wing adds, what a broken one says, and former paths of imports."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pytest
from tests.command_line import Vertizo

from vertizo.core.errors import ConfigError
from vertizo.core.plugins import wings as module
from vertizo.core.plugins.former_imports import FORMER
from vertizo.core.plugins.imports import object_at
from vertizo.core.plugins.wings import Wing, watched, wings

OURS = {"lab": "vertizo.lab.wing:WING", "ops": "vertizo.ops.wing:WING"}


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Lets packages offer wings, in the place of those that are installed."""

    def offer(**points: Any) -> None:
        found = [
            SimpleNamespace(name=name, value=f"somebody:{name}", load=lambda wing=wing: wing)
            for name, wing in points.items()
        ]
        monkeypatch.setattr(module, "entry_points", lambda *, group: found)
        wings.cache_clear()

    yield offer
    wings.cache_clear()


def hello() -> None:
    """Say hello."""
    print("hello")


def test_ours_are_entry_points_whose_objects_are_there() -> None:
    found = {each.name: each.value for each in metadata.entry_points(group="vertizo.wings")}
    assert OURS.items() <= found.items()
    for wing in wings():
        paths = [path for _, path in wing.commands.values()]
        for path in [*paths, *wing.lists.values(), *wing.schemas.values(), *wing.monitors.values()]:
            assert callable(object_at(path)), path


def test_somebody_elses_commands_are_as_ours(offered: Any, vertizo: Vertizo) -> None:
    said = "Say hello.", f"{__name__}:hello"
    offered(theirs=Wing(commands={"hello": said}))
    assert vertizo("hello").out == "hello\n"
    assert "hello" in vertizo("--help").out
    offered(theirs=Wing(commands={"hello": said, "acme greet": said}))
    assert vertizo("acme", "greet").out == "hello\n"
    assert "acme" in vertizo("--help").out
    assert "greet  Say hello." in vertizo("acme", "--help").out
    near = "vertizo: no command 'gret'; did you mean 'greet'"
    assert vertizo("acme", "gret").line.startswith(near)
    assert vertizo("helo").line == "vertizo: no command 'helo'; did you mean 'hello'?"
    assert vertizo("compare").code == 2  # whose wing is not there


def test_what_is_no_wing_is_one_line(offered: Any, vertizo: Vertizo) -> None:
    offered(theirs=3)
    said = "vertizo: the wing 'theirs' is somebody:theirs, which is no Wing"
    assert vertizo("compare").line == said
    assert vertizo("train", "--help").code == 0  # the core's commands need none


def test_what_nobody_watches_is_refused_and_without_an_address_nothing_is(offered: Any) -> None:
    offered()
    with watched("health", None, lambda: True):
        pass
    with pytest.raises(ConfigError, match="an address for 'health', which no installed wing"):
        watched("health", "127.0.0.1:0", lambda: True)
    offered(theirs=Wing(monitors={"health": "contextlib:nullcontext"}))
    assert isinstance(watched("health", "here"), nullcontext)


@pytest.mark.full
def test_the_core_starts_without_its_wings() -> None:
    code = (
        "import sys, vertizo.cli.main as m\n"
        "import vertizo.network.serving.joining, vertizo.run.experiment\n"
        "sys.argv = ['vertizo', 'train', '--help']\n"
        "try: m.main()\n"
        "except SystemExit: print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = done.stdout.splitlines()[-1].split()
    assert not [name for name in modules if name.startswith(("vertizo.lab", "vertizo.ops"))]


@pytest.mark.full
def test_former_paths_give_the_same_modules_with_a_warning() -> None:
    for former, name in FORMER.items():
        code = (
            "import sys, warnings, importlib\n"
            "with warnings.catch_warnings(record=True) as heard:\n"
            "    warnings.simplefilter('always')\n"
            f"    module = importlib.import_module({former!r})\n"
            f"assert module is sys.modules[{name!r}]\n"
            f"assert module.__spec__.name == {name!r}\n"
            "print(heard[-1].message)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stdout == f"{former} is {name} now\n", done.stderr
    code = (
        "from vertizo.network import flare\n"
        "from vertizo.studies.tuning.search import tune\n"
        "from vertizo.lab.tuning import search\n"
        "assert tune is search.tune and flare.__name__ == 'vertizo.ops.flare'"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
