"""``deploy/``: what containers run is run here as processes; what is written holds together.

No container runs in a test: neither a daemon nor a cluster is at hand wherever tests are.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from tests.processes import held_port
from tests.waiting import PATIENT

from vertizo.config.environment import PREFIX, settings_of
from vertizo.network.serving.options import load_join, load_serve
from vertizo.ops.monitoring import SERVICE, health_at

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "vertizo"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
PARTIES = ("hospital", "lab", "clinic")
HOLDER = {
    "role": "labelHolder",
    "config": {
        "federation": {"name": "f", "members": ["lab"]},
        "data": {"name": "table", "path": "/tables/a.csv", "id": "key", "label": "label"},
    },
    "certificates": {"existingSecret": "s"},
}
MEMBER = {
    "config": {"federation": {"name": "f", "server": "a:7443"}},
    "certificates": {"certificate": "a", "key": "b", "authority": "c"},
}


@pytest.fixture
def port() -> Iterator[int]:
    held: socket.socket
    with held_port() as held:
        yield int(held.getsockname()[1])


@pytest.mark.long
@pytest.mark.full
def test_the_compose_file_goes_from_nothing_to_predictions(tmp_path: Path, port: int) -> None:
    """Its entry points and variables; only folders, the port and the host's name are others."""
    pytest.importorskip("nacl")
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, start in (("python", ""), ("vertizo", " -m vertizo")):
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{start} "$@"\n')
        (tools / name).chmod(0o755)

    def start(name: str) -> subprocess.Popen[bytes]:
        service = SERVICES[name]

        def here(text: str) -> str:
            text = text.replace("/opt/tutorial", str(DEPLOY / "tutorial"))
            text = text.replace("/parties", str(tmp_path / "parties"))
            text = re.sub(r"^(hospital|0\.0\.0\.0):7443$", f"localhost:{port}", text)
            return re.sub(r"^[\d.]+:910\d$", "127.0.0.1:0", text)

        environment = {k: here(v) for k, v in service.get("environment", {}).items()}
        environment |= {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "XDG_STATE_HOME": str(tmp_path / f"{name}-state"),
            "VERTIZO_LOG_FORMAT": "json",
            "OMP_NUM_THREADS": "1",
        }
        with (tmp_path / f"{name}.log").open("ab") as log:
            words, nothing = map(here, service["entrypoint"]), subprocess.DEVNULL
            env = {**os.environ, **environment}
            return subprocess.Popen([*words], env=env, stdin=nothing, stdout=log, stderr=log)

    def run(*names: str) -> None:
        started = {name: start(name) for name in names}
        try:
            for name, process in started.items():
                code = process.wait(5 * PATIENT)
                assert code == 0, f"{name}: {(tmp_path / f'{name}.log').read_text()}"
        finally:
            for process in started.values():
                process.kill()
                process.wait()

    for _ in range(2):  # the second time, nothing is left to do
        run("prepare")
        run(*PARTIES)
    folders = {name: tmp_path / "parties" / name for name in PARTIES}
    assert pl.read_csv(folders["hospital"] / "predictions.csv").height == 60
    for name, folder in folders.items():  # nobody has what is another's
        keys = [path.parent.name for path in folder.rglob("key.pem")]
        assert keys == [name]
        others = set(PARTIES) - {name}
        assert not [p for p in folder.rglob("*") if any(p.name.startswith(o) for o in others)]


def test_the_compose_file_holds_together() -> None:
    assert set(SERVICES) == {"prepare", *PARTIES}
    image = (DEPLOY / "Dockerfile").read_text()
    for name, service in SERVICES.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        script = service["entrypoint"][1].replace("/opt/tutorial", "deploy/tutorial")
        assert (ROOT / script).is_file(), script
        mounted = dict(volume.split(":") for volume in service["volumes"])
        assert set(mounted) <= set(COMPOSE["volumes"])
        assert all(place in image for place in mounted.values()), "the image gives their owner"
        if name in PARTIES:  # and no other party's
            assert set(mounted) == {name, f"{name}-state"}
        file = ROOT / "src" / "vertizo" / "data" / "tutorial" / f"{name}.yaml"
        variables = settings_of(service.get("environment", {}))
        if name == "hospital":
            assert load_serve(file, variables).federation.metrics == "0.0.0.0:9100"
        elif name != "prepare":
            assert load_join(file, variables).federation.server == "hospital:7443"
    for script in (DEPLOY / "tutorial").iterdir():
        subprocess.run(["sh", "-n", str(script)], check=True)


def test_the_image_takes_what_is_there_and_runs_as_nobody() -> None:
    image = (DEPLOY / "Dockerfile").read_text()
    stages = image.split("\nFROM ")
    assert len(stages) == 3
    assert "USER 10001:10001" in stages[2]
    assert "HEALTHCHECK" in stages[2]
    assert "gcc" not in stages[2]
    rules = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    let_in = {line[1:].rstrip("/") for line in rules if line.startswith("!")}
    for line in re.findall(r"^COPY (?!--from)(.+)$", image, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert source in let_in, source
    for name in re.findall(rf"{PREFIX}\w+(?==)", image):
        settings_of({name: "x"})


@pytest.mark.full
def test_the_probe_says_what_health_says() -> None:
    pytest.importorskip("grpc_health")
    ready = [False]

    def probe(*words: str, **environment: str) -> tuple[int, str]:
        command = [sys.executable, str(DEPLOY / "probe.py"), *words]
        env = {**os.environ, **environment}
        done = subprocess.run(command, capture_output=True, text=True, env=env)
        return done.returncode, done.stderr.strip().rpartition(" ")[2]

    with health_at("127.0.0.1:0", lambda: ready[0]) as port:
        place = f"127.0.0.1:{port}"
        assert probe(place) == (0, "SERVING")
        assert probe(place, SERVICE) == (1, "NOT_SERVING")
        assert probe(VERTIZO_SET__FEDERATION__HEALTH=place) == (0, "SERVING")
    assert probe(place) == (1, "UNAVAILABLE")
    assert probe() == (0, "")


def test_the_charts_values_are_those_of_its_schema() -> None:
    from jsonschema import Draft7Validator

    schema = json.loads((CHART / "values.schema.json").read_text())
    Draft7Validator.check_schema(schema)
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(defaults) | {"global"} == set(schema["properties"])
    check = Draft7Validator(schema)
    for values in (HOLDER, MEMBER):
        assert not list(check.iter_errors({**defaults, **values}))
    for wrong in (
        {"role": "server"},
        {"rolle": "member"},
        {"config": {"federation": {"listen": "0.0.0.0:1"}}},
        {"data": {"size": "much"}},
        {"health": {"port": 80}},
    ):
        assert list(check.iter_errors({**defaults, **wrong})), wrong


@pytest.mark.full
def test_helm_renders_the_chart(tmp_path: Path) -> None:
    """Where helm is installed."""
    helm = shutil.which("helm")
    if helm is None:
        pytest.skip("helm is not installed")

    def rendered(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
        file = tmp_path / "values.yaml"
        file.write_text(yaml.safe_dump(values))
        lint = [helm, "lint", "--strict", str(CHART), "-f", str(file)]
        subprocess.run(lint, check=True, capture_output=True)
        template = [helm, "template", "x", str(CHART), "-f", str(file), "--kube-version", "1.33.0"]
        text = subprocess.run(template, check=True, capture_output=True, text=True).stdout
        parts = [part for part in yaml.safe_load_all(text) if part]
        return {f"{part['kind']}/{part['metadata']['name']}": part for part in parts}

    holder, member = rendered(HOLDER), rendered(MEMBER)
    both = {
        "ConfigMap/x-vertizo",
        "Job/x-vertizo",
        "PersistentVolumeClaim/x-vertizo-data",
        "PersistentVolumeClaim/x-vertizo-state",
        "Service/x-vertizo-metrics",
    }
    assert set(holder) == both | {"Service/x-vertizo"}
    assert set(member) == both | {"Secret/x-vertizo"}
    for parts, command, load in ((holder, "serve", load_serve), (member, "join", load_join)):
        pod = parts["Job/x-vertizo"]["spec"]["template"]["spec"]
        [party] = pod["containers"]
        assert party["args"] == [command, "/etc/vertizo/party.yaml"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert party["securityContext"]["readOnlyRootFilesystem"] is True
        file = tmp_path / "party.yaml"
        file.write_text(parts["ConfigMap/x-vertizo"]["data"]["party.yaml"])
        variables = {one["name"]: one["value"] for one in party["env"]}
        config = load(file, settings_of(variables))
        assert config.federation.folder == Path("/data/run")
        mounts = {one["mountPath"] for one in party["volumeMounts"]}
        assert {"/data", "/state", "/tmp", "/certificates"} <= mounts
        ports = {one["name"]: one["containerPort"] for one in party["ports"]}
        for key in ("metrics", "health"):
            assert getattr(config.federation, key) == f"0.0.0.0:{ports[key]}"
        assert party["livenessProbe"]["grpc"]["port"] == ports["health"]
        assert party["readinessProbe"]["grpc"]["service"] == SERVICE
