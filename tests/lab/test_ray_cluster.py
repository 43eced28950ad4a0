"""``--engine ray`` over a cluster of two nodes, each with its own loopback address.

A node is what ``ray start`` starts, in a process group of its own. Models end their process, or
all of their node, where the node's environment says so: a kill at the same moment each time.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.command_line import sets
from tests.lab.conftest import TINY
from tests.same import timeless
from tests.waiting import until

from vertizo.core.version import VERSION
from vertizo.lab import comparison
from vertizo.run.experiment import Experiment
from vertizo.run.results.folder import RunFolder

pytestmark = [
    pytest.mark.needs("ray"),
    pytest.mark.full,
    pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is an address on Linux alone"),
]

HEAD, OTHER = "127.0.0.2", "127.0.0.3"
NET = """
import os, signal, time
from torch import nn

class Net(nn.Linear):
    def __init__(self):
        super().__init__(16, 2)
        for kill, mark in [pair.split("=") for pair in os.environ.get("KILLS", "").split()]:
            if os.path.exists(mark):
                os.remove(mark)
                if kill == "machine":
                    os.killpg(os.getpgid(os.getppid()), signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)

    def forward(self, x):
        return super().forward(x.flatten(1))
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HEAD, 0))
        return int(probe.getsockname()[1])


KNOWN = """
import sys
import ray
ray.init(sys.argv[1], logging_level="CRITICAL", log_to_driver=False)
there = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
sys.exit(sys.argv[2] not in there)
"""


class Nodes:
    """The nodes of a cluster by their addresses; each has one core."""

    def __init__(self, folder: Path) -> None:
        self.address = f"{HEAD}:{free_port()}"
        self.folder = folder
        self.token = secrets.token_hex(32)
        own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token, "HOME": str(folder)}
        self.environment = {**os.environ, **own}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, host: str, **environment: str) -> None:
        """As somebody would from the command line, and wait until it is there."""
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
        command += ["--node-ip-address", host, "--num-cpus", "1"]
        if host == HEAD:
            command += ["--head", "--port", self.address.rpartition(":")[2]]
            command += ["--include-dashboard", "false", "--temp-dir", str(self.folder)]
            command += ["--ray-client-server-port", str(free_port())]
        else:
            command += ["--address", self.address]
        env = {**self.environment, "RAY_USAGE_STATS_ENABLED": "0", **environment}
        log, nothing = self.folder / f"{host}.log", subprocess.DEVNULL
        with log.open("wb") as out:
            node = self.running[host] = subprocess.Popen(
                command, stdin=nothing, stdout=out, stderr=out, env=env, start_new_session=True
            )
        said = "Ray runtime started"
        came = until(lambda: said in log.read_text() or node.poll() is not None, 120, 0.1)
        assert came, log.read_text()
        assert node.poll() is None, log.read_text()
        # Ray says so before the cluster does.
        assert until(lambda: self.knows(host, **environment), 120), f"{host} is not known"

    def knows(self, host: str, **environment: str) -> bool:
        """Whether the cluster takes a node to be there; the head's Python is the asking one's."""
        ask = [sys.executable, "-c", KNOWN, self.address, host]
        env = self.environment | environment
        return not subprocess.run(ask, env=env, capture_output=True).returncode

    def kill(self, host: str) -> None:
        node = self.running.pop(host)
        os.killpg(node.pid, signal.SIGKILL)
        node.wait()

    def compare(
        self, out: Path, *arguments: str, methods: str = "vafl,dpzv", token: str | None = None
    ) -> tuple[int, str, str]:
        """The command, with the token alone: exit code, output, errors."""
        command = [sys.executable, "-m", "vertizo", "compare", "--methods", methods]
        command += [*sets(*TINY), *arguments]
        command += ["--out", str(out), "--no-controls", "--json", "--engine", "ray"]
        command += ["--ray-address", self.address]
        env = {**os.environ, "RAY_AUTH_TOKEN": token or self.token, "HOME": str(self.folder)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    """A cluster without nodes so far. Its sockets' paths must be short."""
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        made = Nodes(Path(folder))
        try:
            yield made
        finally:
            for host in [*made.running]:
                made.kill(host)


def test_runs_of_two_nodes_go_on_when_a_process_or_a_node_is_killed(
    nodes: Nodes, tmp_path: Path
) -> None:
    """Each loss is one line, and all figures are those of runs on this machine."""
    (tmp_path / "net.py").write_text(NET)
    model = ("--set", f"client.model={{name: module, path: '{tmp_path}/net.py:Net'}}")
    marks = {kill: tmp_path / kill for kill in ("process", "machine")}
    nodes.start(HEAD)
    nodes.start(OTHER, KILLS=" ".join(f"{kill}={mark}" for kill, mark in marks.items()))
    found = {}
    for kill, why in (("process", "its process was killed"), ("machine", "its machine was lost")):
        marks[kill].touch()
        out = tmp_path / f"after-{kill}"
        code, found[kill], errors = nodes.compare(out, *model)
        assert code == 0, errors
        assert not marks[kill].exists()
        lost = [f"note: {out}/{m}/seed0: {why}; it is begun anew\n" for m in ("vafl", "dpzv")]
        assert errors in lost
    configs = comparison.configurations(None, [*TINY, model[1]], ["vafl", "dpzv"])
    for run in comparison.plan(configs, 1, tmp_path / "after-machine", controls=()):
        alone = Experiment(run.config).run().summary
        for text in found.values():
            assert json.loads(text)[run.label]["test_accuracy"] == [alone["test_accuracy"]]
        assert timeless(RunFolder(run.folder).summary() or {}) == timeless(alone)


OTHER_PYTHON = """
import collections, sys
fields = collections.namedtuple("version_info", "major minor micro releaselevel serial")
sys.version_info = fields(*sys.version_info[:2], 99, *sys.version_info[3:])
"""


def test_another_version_of_python_is_named(nodes: Nodes, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(OTHER_PYTHON)
    nodes.start(HEAD, PYTHONPATH=str(tmp_path))
    code, out, errors = nodes.compare(tmp_path / "out")
    assert (code, out) == (2, "")
    words = f"vertizo: --ray-address {nodes.address} has another version of Python or Ray: "
    assert errors.startswith(words)
    assert f"Python: {sys.version_info[0]}.{sys.version_info[1]}.99 This process" in errors
    assert errors.count("\n") == 1


OTHER_VERSION = """
import vertizo.core.version
vertizo.core.version.VERSION = "0.0.9"
"""


@pytest.mark.long
def test_what_is_wrong_with_a_cluster_is_one_line(nodes: Nodes, tmp_path: Path) -> None:
    """Another version or none at a node, another token; at last the head is killed."""
    texts = {"other": OTHER_VERSION, "none": "import sys; sys.modules['vertizo'] = None"}
    for name, text in texts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "sitecustomize.py").write_text(text)
    nodes.start(HEAD)
    wrong = nodes.compare(tmp_path / "a", token="0" * 64)
    assert wrong[:2] == (2, "")
    assert wrong[2].startswith(f"vertizo: --ray-address {nodes.address} refuses this machine's tok")
    assert wrong[2].count("\n") == 1
    for name, line in (
        ("other", f"the machine {OTHER} of the cluster has vertizo 0.0.9 and this one {VERSION};"),
        ("none", "the cluster's machines need vertizo and all that it needs: "),
    ):
        nodes.start(OTHER, PYTHONPATH=str(tmp_path / name))
        code, out, errors = nodes.compare(tmp_path / f"b-{name}")
        assert (code, out) == (2, ""), errors
        assert line in errors
        assert errors.count("\n") == 1
        nodes.kill(OTHER)
        # Until then a run is sent there, is lost, and begins anew at the head, which is no error.
        assert until(lambda: not nodes.knows(OTHER), 120)


@pytest.mark.long
def test_without_a_head_the_command_ends_in_one_line(nodes: Nodes, tmp_path: Path) -> None:
    """The same command goes on with a new cluster."""
    (tmp_path / "net.py").write_text(NET)
    model = ("--set", f"client.model={{name: module, path: '{tmp_path}/net.py:Net'}}")
    mark = tmp_path / "machine"
    mark.touch()
    nodes.start(HEAD, KILLS=f"machine={mark}")
    code, out, errors = nodes.compare(tmp_path / "out", *model)
    assert (code, out) == (2, ""), errors
    *notes, last = errors.splitlines()
    assert all(note.endswith("its machine was lost; it is begun anew") for note in notes)
    assert last.startswith(f"vertizo: the head of the Ray cluster, {nodes.address}, has not answe")
    nodes.kill(HEAD)
    nodes.start(HEAD)
    assert nodes.compare(tmp_path / "out", *model)[::2] == (0, "")
