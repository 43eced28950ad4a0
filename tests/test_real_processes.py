"""The gate's own real processes: a job under mutual TLS and a run, each killed once and resumed.

Everything is on loopback, and waits for events with a patience that no loaded machine wears out.
The full tier kills at every moment: `tests.network.test_processes`, `tests.cli.test_train`.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests import deployments as dep
from tests import warm
from tests.command_line import sets
from tests.processes import MEMBERS, SERVER, Job
from tests.waiting import PATIENT

from vertizo import Experiment
from vertizo.config import schema
from vertizo.run.results.folder import RunFolder
from vertizo.testing.federations import alike

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("processes")]


def test_a_job_under_mutual_tls_whose_label_holder_is_killed(tmp_path: Path) -> None:
    """Every query is charged to the ledger once, and all members end well."""
    with Job(tmp_path, federation={"trial": False}, epochs=16, batch_size=8, **dep.PRIVATE) as job:
        job.start()
        job.goes_on(MEMBERS[0])
        job.kill_and_start(SERVER)
        job.finish()
        queries = range(job.queries)
        assert job.charged() == [(c, n) for c in range(len(job.members)) for n in queries]


MODEL = """
import os, signal

def scaled(w, x):
    calls = int(os.environ.get("CALLS", 0)) + 1
    os.environ["CALLS"] = str(calls)
    if calls == int(os.environ.get("DIES_AT_CALL", 0)):
        os.kill(os.getpid(), signal.SIGKILL)
    return x[:, 0, 0, :2] * w
"""
"""A client's model that kills its process in the midst of a round."""


def test_a_killed_run_ends_with_the_numbers_of_one_that_lived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALLS", "0")
    (tmp_path / "model.py").write_text(MODEL)
    path = f"{tmp_path / 'model.py'}:scaled"
    settings = ["seed=1", "epochs=6", "data.limit=200", "data.test_limit=50"]
    settings += ["checkpoint_seconds=0", "evaluate_every=5"]
    settings += [f"client.model={{name: function, path: '{path}', num_parameters: 2}}"]
    lived = Experiment(schema.load(None, settings)).run(out=tmp_path / "lived")
    folder, log = tmp_path / "killed", tmp_path / "said"
    last = int(os.environ["CALLS"]) * 2 // 3
    dying = {**os.environ, "CALLS": "0", "DIES_AT_CALL": str(last)}
    killed = warm.Process(["train", "--out", str(folder), *sets(*settings)], log, dying)
    assert killed.wait(PATIENT) == -signal.SIGKILL, log.read_text()
    assert len(list(RunFolder(folder).metrics())) > 1
    resumed = warm.Process(["train", "--resume", str(folder)], log)
    assert resumed.wait(PATIENT) == 0, log.read_text()
    one, other = RunFolder(tmp_path / "lived"), RunFolder(folder)
    alike(one.load("best"), other.load("best"), "the resumed run's best model")
    for key in ("test_accuracy", "test_loss", "rounds", "bytes_up", "bytes_down"):
        assert lived.summary[key] == (other.summary() or {})[key], key
