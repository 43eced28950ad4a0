"""The commands of ``docs/federation.md``, as a reader would give them.

Blocks marked ``shell`` are run, ``text`` is what they print (… stands for anything), ``yaml`` is
part of the lab's file. Lines of a block that end in ``# PARTY`` run beside each other, each in that
party's terminal. Only the port is another one here, and this machine the only one that is heard.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from tests import warm
from tests.lazy import Lazy
from tests.processes import FIRST_IMPORT, held_port
from tests.refusals import refused
from tests.waiting import PATIENT, until

from vertizo.cli.parties import join, serve
from vertizo.cli.predict import predict
from vertizo.core.errors import ConfigError
from vertizo.data import tutorial

sklearn_datasets = Lazy("sklearn.datasets")
sklearn_metrics = Lazy("sklearn.metrics")

pytestmark = pytest.mark.full

ROOT = Path(__file__).parent.parent
FILES = Path(tutorial.__file__).parent
PAGE = (ROOT / "docs" / "federation.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^## ([^\n]+)$|^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TERMINAL = re.compile(r"(.*?) +# (\w+)")
NUMBER = r"[\d.,]+"


def blocks(kind: str) -> list[tuple[str, str]]:
    """Headings and contents of the page's blocks of one kind, in order."""
    found, heading = [], ""
    for match in BLOCK.finditer(PAGE):
        if match[1]:
            heading = match[1]
        elif match[2] == kind:
            found.append((heading, match[3]))
    return found


class Reader:
    """Somebody with a terminal for each party."""

    def __init__(self, folder: Path) -> None:
        self.place = folder
        self.logs = folder / "logs"
        (tools := folder / "tools").mkdir()
        self.logs.mkdir()
        (tools / "sitecustomize.py").write_text(FIRST_IMPORT)
        self.environment = {
            **os.environ,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHONPATH": f"{tools}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            "XDG_STATE_HOME": str(folder / "state"),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "200",
        }
        self.open: dict[str, warm.Process | subprocess.Popen[bytes]] = {}
        self._started = 0

    def run(self, block: str) -> None:
        """A block: what has terminals of its own is started, all else is over at the return."""
        for line in block.splitlines():
            parallel = TERMINAL.fullmatch(line)
            if parallel is not None:
                self.start(parallel[2], parallel[1])
            elif line.startswith("cd "):
                self.place /= line.removeprefix("cd ")
            else:
                self.start("own", line)
                self.finish()

    def start(self, terminal: str, line: str) -> None:
        assert terminal not in self.open, "a terminal has one command at a time"
        self._started += 1
        log = self.logs / f"{self._started:02}-{terminal}"
        if line.startswith("vertizo "):
            words = shlex.split(line)[1:]
            self.open[terminal] = warm.Process(words, log, self.environment, self.place)
            return
        command, nothing = ["/bin/sh", "-c", f"exec {line}"], subprocess.DEVNULL
        where = {"cwd": self.place, "env": self.environment, "stdin": nothing}
        with log.open("wb") as out:
            self.open[terminal] = subprocess.Popen(command, **where, stdout=out, stderr=out)

    def finish(self) -> None:
        """Wait until all commands are over; they must have gone well."""
        while self.open:
            terminal, process = self.open.popitem()
            try:
                code = process.wait(PATIENT)
            except subprocess.TimeoutExpired:
                process.kill()
                code = None
            assert code == 0, f"{terminal} ended with {code}\n{self.words}"

    def kill(self, terminal: str) -> None:
        process = self.open.pop(terminal)
        process.kill()
        process.wait(PATIENT)

    @property
    def words(self) -> str:
        """All that was printed so far."""
        return "\n".join(log.read_text() for log in sorted(self.logs.iterdir()))


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    try:
        yield reader
    finally:
        for terminal in list(reader.open):
            reader.kill(terminal)


def on_port(folder: Path, port: int) -> None:
    for name in ("hospital", "lab", "clinic"):
        path = folder / f"{name}.yaml"
        text = path.read_text()
        assert ":7443" in text
        path.write_text(text.replace("0.0.0.0", "127.0.0.1").replace(":7443", f":{port}"))


def expected(line: str, *, exactly: bool) -> str:
    """A pattern for a line of output as it is printed on the page."""
    parts = [re.escape(part.strip()) for part in line.split("…")]
    pattern = re.sub(r"(\\\s)+|\s+", r"\\s+", r".*".join(parts))
    return pattern if exactly else re.sub(r"\d(?:[\d,]|\\\.)*", lambda _: NUMBER, pattern)


def diagnoses() -> dict[str, str]:
    """What each patient has; the names are those of `vertizo.data.tutorial`."""
    whole = sklearn_datasets.load_breast_cancer()
    kinds = ("malignant", "benign")
    return {f"P{7919 * n % 100_003:06d}": kinds[t] for n, t in enumerate(whole.target)}


def test_the_tutorial_does_what_it_says(reader: Reader) -> None:
    pytest.importorskip("nacl")
    known = (FILES / "lab.yaml").read_text()
    assert [block in known for _, block in blocks("yaml")] == [True]
    assert [heading[:2] for heading, _ in blocks("shell")] == [f"{n}." for n in range(1, 8)]
    with held_port() as port:
        for number, (heading, block) in enumerate(blocks("shell")):
            if "Kill" in heading:
                # The label holder first: without it, nobody's part can be over.
                figures = reader.place / "runs" / "hospital" / "metrics.jsonl"
                assert until(figures.is_file, PATIENT), reader.words
                reader.kill("hospital")
                reader.kill("clinic")
            else:
                reader.finish()
            reader.run(block)
            if number == 0:
                on_port(reader.place, port.getsockname()[1])
        reader.finish()
    words = reader.words
    for heading, block in blocks("text"):
        for line in block.splitlines():
            pattern = expected(line, exactly="Train" not in heading or "ε" in line)
            assert re.search(pattern, words), f"{heading}: {line}\n{words}"

    predictions = pl.read_csv(reader.place / "predictions.csv")
    assert predictions.height == 60
    truth = diagnoses()
    sick = [truth[key] == "malignant" for key in predictions["patient"]]
    # Order and not decisions: with fresh noise, one job in ten moves the boundary by ten patients,
    # while the AUC of 35 jobs was never below 0.93. Rows in another order have one of 0.5 ± 0.09.
    assert sklearn_metrics.roc_auc_score(sick, predictions["probability_malignant"]) >= 0.85
    said = predictions["probability_malignant"] > predictions["probability_benign"]
    assert (said == (predictions["prediction"] == "malignant")).all()


def test_what_is_not_this_partys_is_refused(tmp_path: Path) -> None:
    for command, party, words in (
        (serve, "lab", "a feature holder's is for `vertizo join`"),
        (join, "hospital", "which is for `vertizo serve`"),
    ):
        refused(party, ConfigError, command, FILES / f"{party}.yaml", match=words)
    words = r"--id is for a run folder; .* has data\.id"
    refused("--id", ConfigError, predict, FILES / "lab.yaml", id_="patient", match=words)
    for file in ("job", "secret.key"):  # a folder of one party does not predict alone
        (folder := tmp_path / file.replace(".", "-")).mkdir()
        (folder / file).touch()
        refused(file, ConfigError, predict, folder, match="none of which can predict alone")
