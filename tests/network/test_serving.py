"""What a job does with members that are late, silent, mistaken or picky."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
import torch
from pydantic import ValidationError
from tests import deployments as dep
from tests.deployments import DirectChannel, GoneError
from tests.lazy import Lazy
from tests.network.by_hand import (
    NAMES,
    holder_config,
    live,
    member,
    new_records,
    predicted_together,
)
from tests.refusals import refused
from tests.rows import each

from vertizo.config.schema import parse
from vertizo.core.errors import ConfigError, DataError, RunError, WireError
from vertizo.core.names import Head
from vertizo.core.randomness import Stream
from vertizo.data.prepare import prepare
from vertizo.network.serving import frames, service
from vertizo.network.serving.frames import Ready, Send
from vertizo.network.serving.options import JoinConfig, ServeConfig, load_join, load_serve
from vertizo.network.serving.predicting import PredictingService, help_predict
from vertizo.network.serving.serving import FederationService
from vertizo.party.final_head import Fitted
from vertizo.protocol.messages import WirePurpose
from vertizo.run.build.data_defaults import complete
from vertizo.run.results import checkpoint

sklearn_datasets = Lazy("sklearn.datasets")

TIMINGS = ("synchronous", "asynchronous")


class Clock:
    """The label holder's clock, which stands still until nobody can do anything but wait.

    However slow the machine is, nobody is silent then who was not meant to be.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(service, "time", SimpleNamespace(monotonic=lambda: self.now))


def run(
    folder: Path, config: ServeConfig, notices: list[str], clock: Clock
) -> tuple[FederationService, list[BaseException]]:
    """A job whose last member falls silent at its ninth ask; the others get as far as they can."""
    ended: dict[str, BaseException | None] = {}
    over = threading.Event()
    served = FederationService(config, notices.append)

    class Ending(DirectChannel):
        left = 8

        def ask(self, frame: bytes) -> bytes:
            self.left -= self._member == "west"
            if self.left < 0:
                raise GoneError
            return super().ask(frame)

    def work(member: str) -> None:
        try:
            channel = Ending(served, member, 1e6, over.is_set)
            dep.take_part(dep.join_config(folder, member), channel)
            ended[member] = None
        except BaseException as error:
            ended[member] = error

    def stuck() -> bool:
        """Whether the last member is silent, and the others have ended or wait."""
        with served._lock:
            waiting = {dep.MEMBERS[client] for client in served._pending}
        return "west" in ended and waiting | ended.keys() == set(dep.MEMBERS)

    with served:
        threads = [threading.Thread(target=work, args=(m,), daemon=True) for m in dep.MEMBERS]
        for thread in threads:
            thread.start()
        until = time.monotonic() + 120
        more = 10  # looks at a job that waits for good
        while not served.finished.is_set() and more:
            assert time.monotonic() < until, (ended, notices)
            time.sleep(0.005)
            if stuck():
                clock.now += 2 * config.federation.patience
                more -= config.federation.absent == "wait" and bool(notices)
            served.tick()
        over.set()
        for thread in threads:
            thread.join(60)
        if served.finished.is_set():
            served.conclude()
    return served, [error for error in ended.values() if error is not None]


@each("timing", TIMINGS)
def test_a_job_goes_on_without_a_silent_member_where_it_may(
    timing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = {"absent": "go-on", "patience": 0.5}
    keys = {"simulation": {"timing": timing}, "server": {"final_head": "logistic"}}
    config = dep.serve_config(tmp_path, federation=waits, **keys)
    notices: list[str] = []
    served, ended = run(tmp_path, config, notices, Clock(monkeypatch))
    assert [type(error) for error in ended] == [GoneError], ended
    assert any("west; going on without" in line for line in notices)
    summary = json.loads((tmp_path / "server" / "summary.json").read_text())
    assert summary["rounds"] >= (12 if timing == "synchronous" else 36)
    *others, silent = summary["queries"]
    assert silent <= 8
    assert others == [12] * 3
    assert summary["last"] is None  # its embeddings of test records never came
    assert summary["raw_head"].keys() == {"kind", "words"}
    assert "There is no raw head: a member was silent" in summary["raw_head"]["words"]
    assert served.finished.is_set()


@pytest.mark.full
@each("timing", TIMINGS)
def test_a_job_waits_for_a_silent_member_and_names_it(
    timing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = {"absent": "wait", "patience": 0.3}
    config = dep.serve_config(tmp_path, federation=waits, simulation={"timing": timing})
    notices: list[str] = []
    served, _ = run(tmp_path, config, notices, Clock(monkeypatch))
    named = [line for line in notices if "waiting for" in line]
    assert [line for line in named if "west" in line] == named
    assert not served.finished.is_set()
    answered = list(map(live(served).job.party.next_number, range(4)))
    if timing == "asynchronous":  # it held nobody up
        assert answered[:3] == [12, 12, 12]
    else:
        assert max(answered) < 12
    done = dep.served(tmp_path, config)  # it comes back, and all end well
    assert [one.queries for one in done] == [12, 12, 12, 12]
    assert json.loads((tmp_path / "server" / "summary.json").read_text())["last"] is not None


@pytest.mark.full
def test_who_missed_rounds_takes_part_again(tmp_path: Path) -> None:
    waits = {"absent": "go-on", "patience": 0.25}
    config = dep.serve_config(tmp_path, federation=waits, epochs=10, **dep.IN_STEP)
    notices: list[str] = []
    gate = threading.Event()

    class Sleepy(DirectChannel):
        asks = 0

        def ask(self, frame: bytes) -> bytes:
            self.asks += self._member == "west"
            if self.asks == 10:
                gate.wait(5)
            return super().ask(frame)

    def wake() -> None:
        while not any("going on without" in line for line in notices):
            time.sleep(0.01)
        time.sleep(0.3)
        gate.set()

    threading.Thread(target=wake, daemon=True).start()
    with FederationService(config, notices.append) as served, dep.ticking(served):
        configs = [dep.join_config(tmp_path, m) for m in dep.MEMBERS]
        done = dep.joined(configs, lambda member: Sleepy(served, member))
    asked = [one.queries for one in done]
    assert 5 < asked[3] < min(asked[:3])
    assert any("west is back" in line for line in notices)


def test_a_job_that_is_over_tells_so_again_and_keeps_its_folders(tmp_path: Path) -> None:
    config = dep.serve_config(tmp_path)
    first, second = dep.served(tmp_path, config), dep.served(tmp_path, config)
    assert [one.words for one in first] == [one.words for one in second]
    other = dep.serve_config(tmp_path, epochs=3)
    with pytest.raises(RunError, match="another configuration"), FederationService(other):
        pass
    new = dep.serve_config(tmp_path, federation={"folder": tmp_path / "elsewhere"})
    with FederationService(new) as served, pytest.raises(RunError, match="another job"):
        dep.opened(dep.join_config(tmp_path, "north"), DirectChannel(served, "north"))


CODE = "may not name code or files"


@each(
    "client, keys, message",
    [
        ({}, {"require": {"method.name": "vafl"}}, "require.method.name is 'vafl' but the label h"),
        ({}, {"require": {"server.final_head": "refit"}}, "but the label holder wants 'private'"),
        ({}, {"trial": False}, "federation.trial is false but the label holder runs a trial"),
        ({}, {"name": "other"}, "federation.name is 'other'; the label holder's is 'test'"),
        ({"name": "module", "path": "os:system", "arguments": {}}, {}, CODE),
        ({"name": "function", "path": "x.py:f", "num_parameters": 3}, {}, CODE),
        ({"name": "text", "checkpoint": "/etc"}, {}, CODE),
    ],
)
def test_a_member_refuses_what_it_did_not_agree_to(
    client: dict[str, Any], keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    tree = dep.join_config(tmp_path, "north").model_dump()
    tree["federation"] |= keys
    config = dep.serve_config(tmp_path, **({"client": {"model": client}} if client else {}))
    with FederationService(config) as served, pytest.raises((ConfigError, RunError), match=message):
        dep.opened(JoinConfig.model_validate(tree), DirectChannel(served, "north"))


def test_configurations_that_cannot_be_served(tmp_path: Path) -> None:
    noise = {"mechanism": "embedding-noise", "clip": 1.0, "noise_std": 1.0}
    whole = {**dep.PRIVATE, **dep.IN_STEP, "server": {"update": "private-sgd"}}
    for federation, keys, message in (
        ({"members": ["a", "a"]}, {}, "twice"),
        ({"members": []}, {}, "at least 1"),
        ({"listen": "7443"}, {}, "no address"),
        ({"members": ["a b"]}, {}, "no name"),
        ({"rate": 0}, {}, "greater than 0"),
        ({"rate": True}, {}, "federation.rate"),
        ({}, {"data": {"name": "digits", "parties": 3}}, "data.parties is 3"),
        ({"absent": "go-on"}, {**dep.IN_STEP, "privacy": noise}, "federation.absent is 'go-on'"),
        ({"absent": "go-on", "trial": False}, whole, "charged in part"),
        ({}, {"control": "label-free"}, "control is 'label-free', which is for simulations"),
    ):
        given: dict[str, Any] = {"federation": federation, **keys}
        refused(message, ValidationError, dep.serve_config, tmp_path, match=message, **given)


def test_files_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("epochs: 3\n")
    with pytest.raises(ConfigError, match="no section federation; `vertizo train`"):
        load_serve(path)
    path.write_text("federation: {name: x, server: 'localhost:1', certificates: c, folder: f}\n")
    assert load_join(path).federation.folder == tmp_path / "f"
    with pytest.raises(ConfigError, match="members"):
        load_serve(path)


# Parties with tables of their own, and new records.


@each("head", ["private", "raw"])
def test_tables_of_real_parties_train_and_predict(head: Head, tables: Path, trained: Path) -> None:
    """With a label holder that has columns of its own; new records are scored by what was so."""
    summary = json.loads((trained / "run" / "summary.json").read_text())
    assert (summary if head == "private" else summary["raw_head"])["test_accuracy"] > 0.9
    records = new_records(tables, "bank")
    predicting = PredictingService(holder_config(tables, trained), records, head=head)
    logits = predicted_together(predicting, tables, trained)
    truth = torch.from_numpy(
        sklearn_datasets.load_breast_cancer().target[500:]
    )  # 0 is malignant, our class 1
    by_key = torch.tensor([int(key) - 1500 for key in records.keys])
    correct = (logits.argmax(1) == 1 - truth[by_key]).double().mean()
    assert correct > 0.9


@pytest.mark.full
def test_one_upload_of_real_parties_trains_and_predicts(tables: Path, tmp_path: Path) -> None:
    """By the head of the run's figures, as no other was trained; and it is scored by callers."""
    tree = holder_config(tables, tmp_path).model_dump(exclude_unset=True)
    tree |= {"method": {"name": "one-shot"}, "server": {"final_head": "auto"}, "simulation": {}}
    config = ServeConfig.model_validate(tree)
    dep.served(tmp_path, config, [member(tables, tmp_path, name) for name in NAMES])
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["privacy"]["epsilon"] == 0
    assert summary["test_accuracy"] == summary["raw_head"]["test_accuracy"] > 0.9
    assert set(summary["raw_head"]["tried"]) == {"logistic", "boosting", "refit"}
    predicting = PredictingService(config, new_records(tables, "bank"))
    assert predicting.head == "raw"
    with pytest.raises(RunError, match="trains nothing but its raw head; predict with --head raw"):
        PredictingService(config, new_records(tables, "bank"), head="private")
    logits = predicted_together(predicting, tables, tmp_path)
    assert logits.softmax(1).amax(1).mean() > 0.8


def test_other_records_are_refused(tables: Path, tmp_path: Path) -> None:
    frame = pl.read_csv(tables / "lab.csv")
    moved = frame.with_columns(pl.col("key") + 1)
    for theirs, words in ((frame.head(300), "vertizo align"), (moved, "with other keys")):
        theirs.write_csv(tmp_path / "lab.csv")
        with FederationService(holder_config(tables, tmp_path)) as served:
            channel = DirectChannel(served, "lab")
            with pytest.raises(RunError, match=words):
                dep.take_part(member(tmp_path, tmp_path, "lab"), channel)


@pytest.mark.parametrize("method", ["dpzv", "tangent", "label-statistic", "vafl"])
def test_what_follows_from_the_data_is_as_in_a_simulation(method: str, tmp_path: Path) -> None:
    """Epochs, batches, clips and the like, where a file leaves them out."""
    tree: dict[str, Any] = {"method": {"name": method}, "data": {"name": "digits", "parties": 4}}
    if method != "vafl":
        tree["privacy"] = {"mechanism": "gaussian", "epsilon": 1.0, "delta": 1e-5}
    federation = {**dep.serve_config(tmp_path).federation.model_dump(exclude_unset=True)}
    for trial in (True, False):
        served = {**federation, "trial": trial}
        plain = ServeConfig.model_validate({**tree, "federation": served}).experiment()
        data = prepare(plain.data, Stream.from_seed(0))
        wanted, found = (complete(each, data).model_dump() for each in (parse(tree), plain))
        if "privacy" in tree:  # of real parties' noise, only a trial's is made from a seed
            wanted["privacy"]["noise"] = "seeded" if trial else "secure"
        assert found == wanted
        assert "epochs" not in plain.model_fields_set, "which would be somebody's choice"


def test_a_label_holder_says_who_trains_where_nobody_else_can(tables: Path, tmp_path: Path) -> None:
    tree = holder_config(tables, tmp_path).model_dump(exclude_unset=True)
    tree["data"]["stratify"] = True
    config = ServeConfig.model_validate({**tree, "epochs": 1})
    dep.served(tmp_path, config, [member(tables, tmp_path, name) for name in NAMES])
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert "read the labels to choose who trains" in summary["privacy"]["words"]
    assert b'"rows' in (tmp_path / "lab" / "checkpoints" / "terms").read_bytes()


def test_new_records_before_the_end_or_without_a_column_are_refused(
    tables: Path, trained: Path, tmp_path: Path
) -> None:
    records = new_records(tables, "bank")
    early = holder_config(tables, tmp_path)
    with FederationService(early), pytest.raises(RunError, match="not over"):
        PredictingService(early, records)
    config = holder_config(tables, trained)
    with pytest.raises(DataError, match="does not have the column 'x0'"):
        PredictingService(config, new_records(tables, "lab"))
    notices: list[str] = []
    predicting = PredictingService(config, records, notices.append)
    pl.read_csv(tables / "lab.new.csv").head(10).write_csv(tmp_path / "few.new.csv")
    lab = member(tables, trained, "lab")
    with pytest.raises(RunError, match="lab has 10 new records and the label holder 69"):
        help_predict(lab, new_records(tmp_path, "few"), DirectChannel(predicting, "lab"))
    (notice,) = notices
    told = "lab was refused: lab has 10 new records and the label holder 69, or not the same ones"
    assert notice.startswith(told)
    assert "waiting for it to be started again" in notice


def test_a_job_that_is_over_says_so_at_once_and_waits_shortly(
    tables: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, notices = Clock(monkeypatch), list[str]()
    config = holder_config(tables, shutil.copytree(trained, tmp_path / "copied"))
    with FederationService(config, notices.append) as served:
        assert notices == ["the job is finished; members that missed its end have 10 s to ask"]
        served.tick()
        assert not served.finished.is_set()
        for _ in range(2):
            clock.now += 10.1
            served.tick()
        assert served.finished.is_set()


def test_members_that_are_silent_while_others_predict_are_named(
    tables: Path, trained: Path
) -> None:
    config = holder_config(tables, trained, patience=0.01)
    notices: list[str] = []
    waiting = PredictingService(config, new_records(tables, "bank"), notices.append)
    until = time.monotonic() + 120
    while not notices:
        assert time.monotonic() < until
        waiting.tick()
    assert notices == ["silent: lab, clinic; waiting for them"]


# What is said, and what a label holder may not say.


def test_frames_survive_a_round_trip_and_garbage_does_not() -> None:
    ready = Ready("job", 3, (1, 2, 3), b"f" * 32, True, False)
    assert frames.decode(frames.encode(ready)) == ready
    both = frames.encode(frames.Go()) + frames.encode(frames.Keep(4))
    assert [frames.decode(one) for one in frames.split(both)] == [frames.Go(), frames.Keep(4)]
    for wrong in (both[:-1], both + b"V", b"VC"):
        refused(wrong, WireError, lambda answer: list(frames.split(answer)), wrong)
    refused("two at once", WireError, frames.decode, both)


def test_terms_stay_as_they_were(tmp_path: Path) -> None:
    config = dep.join_config(tmp_path, "north")
    with FederationService(dep.serve_config(tmp_path)) as served:
        dep.opened(config, DirectChannel(served, "north"))
    known = tmp_path / "server" / "config.yaml"
    checkpoint.keep(known, known.read_text().replace("epochs: 2", "epochs: 9").encode())
    with (
        FederationService(dep.serve_config(tmp_path, epochs=9)) as served,
        pytest.raises(RunError, match="not those that the job began with"),
    ):
        dep.opened(config, DirectChannel(served, "north"))


def test_a_table_is_not_uploaded_twice(tmp_path: Path) -> None:
    """With noise on embeddings its release is accounted once, of the first parameters."""
    again = frames.encode(Send(WirePurpose.train, 0, "now"))

    class Greedy(DirectChannel):
        asked = 0

        def ask(self, frame: bytes) -> bytes:
            self.asked += 1
            return super().ask(frame) + (again if self.asked > 6 else b"")

    with FederationService(dep.serve_config(tmp_path)) as served:
        for member in dep.MEMBERS[1:]:
            counts = served._archive.records.counts
            ready = Ready(served._archive.run, 4, counts, b"", False, False)
            served.ask(member, frames.encode(ready), lambda answer: None)
        with pytest.raises(RunError, match="not agreed on"):
            dep.take_part(dep.join_config(tmp_path, "north"), Greedy(served, "north"))


def test_members_are_told_before_the_raw_head_is_fitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How long that takes, or whether it fails, depends on raw labels. A kill in between is made up
    for."""
    config = dep.serve_config(tmp_path, server={"final_head": "logistic"})
    fits: list[int] = []

    def fit(head: Fitted, rows: torch.Tensor, *_: torch.Tensor | None) -> None:
        fits.append(len(rows))
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Fitted, "fit", fit)
        configs = [dep.join_config(tmp_path, member) for member in dep.MEMBERS]
        with FederationService(config) as service:
            assert len(dep.joined(configs, dep.direct(service))) == len(dep.MEMBERS)
            service.tick()
            assert service.finished.is_set()
            assert fits == []  # while they could ask still, and would wait for it
            with pytest.raises(MemoryError):
                service.conclude()
    assert fits == [180]
    assert not (tmp_path / "server" / "summary.json").exists()
    Clock(monkeypatch)  # which stands still: nobody is waited for, since all were told
    for is_last in (False, True):  # what the journal has and what the checkpoint has
        with FederationService(config) as service:
            assert service.stage().startswith("over")
            service.conclude()  # too early: nobody said that the network is closed
            assert service.state.phase == "fitting"
            if is_last:
                service.tick()
                service.conclude()
            assert service.finished.is_set() is is_last
    summary = json.loads((tmp_path / "server" / "summary.json").read_text())
    assert summary["raw_head"]["test_accuracy"] > 0.3
