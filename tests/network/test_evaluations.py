"""An evaluation is of one moment, whoever dies during it: its figures, and the best model."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from tests import deployments as dep
from tests.network.by_hand import leave, live
from tests.network.test_faults import SETTINGS, House, run_house
from tests.rows import each

from vertizo.network.serving import frames
from vertizo.network.serving.frames import Next, Ready, Send, Sent, Terms
from vertizo.network.serving.serving import FederationService
from vertizo.protocol import wire
from vertizo.run.experiment import Experiment
from vertizo.run.results import checkpoint
from vertizo.run.results.folder import RunFolder

CLOCK = ("seconds", "bytes_up", "bytes_down", "sha256")
"""Figures of the processes, not of the models: bytes that were sent again are counted again; and
the digest of all."""


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """What evaluations found, but for the time they took."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in CLOCK} for line in lines]


def assert_same_evaluations(one: Path, other: Path) -> None:
    """Label holders' folders have the same figures, and the same best model."""
    assert rows_of(one) == rows_of(other)
    assert_same_best(one, other)


def assert_same_best(one: Path, other: Path) -> None:
    """Two folders of one party have the same best model."""
    ours, theirs = (
        checkpoint.load(folder / "checkpoints" / "best.safetensors") for folder in (one, other)
    )
    assert ours["number"] == theirs["number"]
    name = "server" if "server" in ours else "parameters"
    torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=0)


class Held:
    """A label holder that is killed in the midst of each evaluation, with one member stopped.

    The stopped member sends what it is asked for only after all others have said all that they
    can, and the label holder was killed and started again.
    """

    def __init__(self, config: Any, *, deaths: bool) -> None:
        self.config = config
        self.deaths = 0
        self._deadly = deaths
        self._lock = threading.Lock()
        self.heard: dict[str, list[bytes]] = {member: [] for member in dep.MEMBERS}
        """The frames that each member was answered, in their order."""
        self._said: set[str] = set()
        self._quiet = threading.Condition(self._lock)
        self.service = FederationService(config)
        self.service.__enter__()

    def ask(self, member: str, frame: bytes) -> bytes:
        if member == "west" and self._deadly and wire.is_upload(frame):
            self._die()
        answers: Queue[bytes] = Queue()
        while True:
            with self._quiet:
                service = self.service
                service.ask(member, frame, answers.put)
                assert service.failure is None, service.failure
                if answers.empty():
                    self._said.add(member)
                    self._quiet.notify_all()
            while self.service is service or not answers.empty():
                with suppress(Empty):
                    answer = answers.get(timeout=0.01)
                    with self._quiet:
                        self._said.discard(member)
                    self.heard[member] += frames.split(answer)
                    return answer

    def _die(self) -> None:
        with self._quiet:
            assert self._quiet.wait_for(lambda: len(self._said) == 3, 20)
            leave(self.service)
            self.deaths += 1
            self._said.clear()
            self.service = FederationService(self.config)
            self.service.__enter__()
            # whoever waits asks the new process, before the stopped member goes on
            assert self._quiet.wait_for(lambda: len(self._said) == 3, 20)


def held_run(folder: Path, *, deaths: bool, **keys: Any) -> Held:
    house = Held(dep.serve_config(folder, **keys), deaths=deaths)

    def channel(member: str) -> Any:
        return SimpleNamespace(ask=partial(house.ask, member))

    dep.joined([dep.join_config(folder, m) for m in dep.MEMBERS], channel)
    house.service.tick()
    assert house.service.finished.is_set()
    house.service.conclude()
    house.service.__exit__()
    return house


@pytest.mark.full
@each("head", ["boosting", "auto"])
def test_a_label_holder_killed_during_evaluations_scores_what_it_would_have(
    head: str, tmp_path: Path
) -> None:
    server = {**dep.SMALL["server"], "final_head": head}
    keys: dict[str, Any] = {**dep.IN_STEP, "epochs": 4, "server": server}
    held_run(tmp_path / "whole", deaths=False, **keys)
    house = held_run(tmp_path / "killed", deaths=True, **keys)
    assert house.deaths >= 5 + 4  # of five rounds; then test records twice and training records
    assert_same_evaluations(tmp_path / "whole" / "server", tmp_path / "killed" / "server")
    for member in dep.MEMBERS:
        assert_same_best(tmp_path / "whole" / member, tmp_path / "killed" / member)
    assert len({row["round"] for row in rows_of(tmp_path / "killed" / "server")}) == 5
    whole, killed = (RunFolder(tmp_path / name / "server") for name in ("whole", "killed"))
    one, other = (folder.load("raw_head")["head"] for folder in (whole, killed))
    assert one.get("kind") == other.get("kind")
    one, other = (each.get("head", each) for each in (one, other))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    summaries = [json.loads(folder.summary_file.read_text()) for folder in (whole, killed)]
    assert summaries[0]["raw_head"] == summaries[1]["raw_head"]
    assert summaries[0]["raw_head"]["test_accuracy"] > 0.5


def test_members_hear_nothing_of_a_raw_head_before_training_is_over(tmp_path: Path) -> None:
    """But for the terms, which say that it will want their embeddings once more."""
    heard = []
    for head in ("private", "logistic"):
        server = {**dep.SMALL["server"], "final_head": head}
        house = held_run(tmp_path / head, deaths=False, **dep.IN_STEP, server=server)
        heard.append(house.heard)
    wanted = 0
    for plain, other in zip(*(one.values() for one in heard), strict=True):
        terms, *rest = plain
        assert isinstance(frames.decode(terms), Terms)
        before, after = other[1 : len(plain) - 1], other[len(plain) - 1 :]
        assert before == rest[:-1]  # all but the last, that the job is over
        assert other[-1] == rest[-1]
        asked = [frames.decode(frame) for frame in after[:-1]]
        wanted += sum(isinstance(one, Send) and one.purpose.own == "train" for one in asked)
    assert wanted == len(dep.MEMBERS)
    here = Experiment(house.config.experiment()).run().raw_head
    kept = RunFolder(tmp_path / "logistic" / "server").load("raw_head")["head"]
    assert isinstance(here, dict)
    assert all(torch.equal(here[name], kept[name]) for name in kept)  # as with no network


def hear_again(house: House, config: Any) -> None:
    """A label holder is told the same, in the same order, and never dies."""
    with FederationService(config) as service:
        for member, frame in house.asks:
            told = frame
            if not frames.is_party_frame(frame):
                ask = frames.decode(frame)
                if isinstance(ask, Ready | Next | Sent):
                    told = frames.encode(msgspec.structs.replace(ask, job=service._archive.run))
            service.ask(member, told, lambda answer: None)
            assert service.failure is None, service.failure
        assert live(service).phase == "done"


def assert_best_can_be_gone_back_to(folder: Path, config: Any) -> None:
    """The parties' best parameters give the figures that the label holder scored."""
    best = json.loads((folder / "server" / "summary.json").read_text())["best"]
    federation = dep.simulated(config)
    paths = [folder / name / "checkpoints" / "best.safetensors" for name in dep.MEMBERS]
    for model, path in zip(federation.models, paths, strict=True):
        model.parameters.copy_(checkpoint.load(path)["parameters"])
    head = federation.server.side.model
    head.parameters.copy_(RunFolder(folder / "server").load("best")["server"])
    federation.simulator.upload("validation", len(federation.data.labels["validation"]))
    found = federation.server.score("validation")
    assert {f"validation_{name}": value for name, value in found.items()}.items() <= best.items()


@pytest.mark.full
@each("name", SETTINGS)
def test_deaths_change_no_evaluation(name: str, tmp_path: Path) -> None:
    keys = {**SETTINGS[name], "evaluate_every": 3}
    config = dep.serve_config(tmp_path, **keys)
    house = run_house(tmp_path, config, seed=7, deaths=25)
    assert house.deaths >= 15
    again = tmp_path / "again"
    hear_again(house, dep.serve_config(again, **keys))
    assert_same_evaluations(tmp_path / "server", again / "server")
    assert_best_can_be_gone_back_to(tmp_path, config)
