"""Shared by all tests."""

from __future__ import annotations

import gc
import itertools
import math
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from tests import warm
from tests.once import Once

from vertizo.config import schema
from vertizo.lab import processes
from vertizo.run.experiment import Experiment

os.environ["OMP_NUM_THREADS"] = "1"  # of all that tests start
# A shell's background ignores Ctrl-C; all that tests start would, and be interrupted in vain.
signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)

# However loaded the machine is: no deadline for an example, nor for drawing it.
_PATIENT: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [hypothesis.HealthCheck.too_slow],
}
hypothesis.settings.register_profile("gate", derandomize=True, max_examples=30, **_PATIENT)
hypothesis.settings.register_profile("full", **_PATIENT)

_NUMBERS = itertools.count()
TIERS = ("full", "fresh", "processes")
COLLECTED = pytest.StashKey[frozenset[str]]()
"""Modules that were imported when all tests had been collected."""
STARTS = {"os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
"""Audit events of a new process, beside ``subprocess.Popen``."""


LAST = pytest.StashKey[float]()
"""When the last test may begin."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--budget``."""
    words = "seconds after which no further test begins: what is left is skipped, and counted"
    parser.addoption("--budget", type=float, default=math.inf, help=words)


def pytest_configure(config: pytest.Config) -> None:
    """Hypothesis tries the same few examples in every run of the gate, elsewhere others."""
    gate = "not full" in config.option.markexpr
    hypothesis.settings.load_profile("gate" if gate else "full")
    config.stash[LAST] = time.monotonic() + config.option.budget


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep what collecting imported, and let the garbage collector look at it no more."""
    session.config.stash[COLLECTED] = frozenset(sys.modules)
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a package that is not installed, or comes after the budget is spent."""
    if time.monotonic() > item.config.stash[LAST]:
        pytest.skip(f"left out: the budget of {item.config.option.budget:g} s is spent")
    for marker in item.iter_markers("needs"):
        for package in marker.args:
            if find_spec(package) is None:
                pytest.skip(f"{package} is not installed")


class _Processes:
    """Lets no test start a process that has no marker for it."""

    def __init__(self) -> None:
        self.allowed = True
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.allowed:
            return
        # Runs ask git for the commit, which takes no time: Python is what starts for seconds.
        python = event == "subprocess.Popen" and "python" in Path(os.fsdecode(arguments[0])).name
        # Triton's, on a card
        assembler = event == "os.posix_spawn" and "ptxas" in str(arguments[0])
        if python or (event in STARTS and not assembler):
            raise RuntimeError("a test of the gate starts a process: mark it full")


_PROCESSES = _Processes()


@pytest.fixture(autouse=True)
def _own_processes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Processes in marked tests alone."""
    _PROCESSES.allowed = any(request.node.get_closest_marker(tier) for tier in TIERS)
    yield
    _PROCESSES.allowed = True


@pytest.fixture(autouse=True)
def _own_chance() -> None:
    """The same draws in every run, whichever tests a worker had before: seeds nobody else set."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state folder for each test: what ledgers leave there is no other test's, nor the user's.

    Nor does a test follow what the user's environment says of options and proxies.
    """
    place = tmp_path_factory.getbasetemp() / "state" / str(next(_NUMBERS))
    monkeypatch.setenv("XDG_STATE_HOME", str(place))
    for name in [name for name in os.environ if name.startswith("VERTIZO_")]:
        if name != "VERTIZO_DATA":
            monkeypatch.delenv(name)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "localhost,127.0.0.1")


@pytest.fixture(scope="session", autouse=True)
def _warm_processes() -> None:
    """Runs of studies in processes that have PyTorch; those of `vertizo` as a process are cold."""
    processes.CONTEXT = warm.Forks()


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Once]:
    """What makes a folder once for all workers."""
    place = tmp_path_factory.getbasetemp()
    made = Once((place.parent if "PYTEST_XDIST_WORKER" in os.environ else place) / "once")
    yield made
    made.check()


@pytest.fixture(scope="session")
def trained_run(once: Once) -> Callable[[str], Path]:
    """The folder of a small run of a method on breast cancer, which nobody may change."""

    def of(method: str) -> Path:
        settings = ["data.name=breast-cancer", "seed=0", "epochs=1", "batch_size=50"]
        config = schema.load(None, [*settings, f"method.name={method}"])
        return once(f"trained-{method}", Experiment(config).run)

    return of


@pytest.fixture(scope="session")
def mnist_root() -> Path:
    """The folder that VERTIZO_DATA names, if MNIST's files are in it."""
    root = Path(os.environ.get("VERTIZO_DATA", "nowhere"))
    if not (root / "mnist" / "train-images-idx3-ubyte.gz").is_file():
        pytest.skip("VERTIZO_DATA names no folder with MNIST's files")
    return root


class _NoPandas:
    """Finds no pandas, as where it is not installed."""

    @staticmethod
    def find_spec(name: str, *_: Any) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name=name)


@pytest.fixture
def without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests install pandas, and Vertizo does not: pages must do without."""
    monkeypatch.delitem(sys.modules, "pandas", raising=False)
    monkeypatch.setattr(sys, "meta_path", [_NoPandas, *sys.meta_path])
