"""What a job does with members that are late, silent, mistaken or picky."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
import torch
from pydantic import ValidationError
from sklearn.datasets import load_breast_cancer
from tests import deployments as dep
from tests.deployments import DirectChannel

from vertizo.core.errors import ConfigError, DataError, RunError
from vertizo.network import frames, service
from vertizo.network.joining import Member
from vertizo.network.options import JoinConfig, ServeConfig, load_join, load_serve
from vertizo.network.predicting import NewRecords, PredictingService, help_predict
from vertizo.network.serving import FederationService
from vertizo.protocol.messages import WirePurpose


class MuteError(Exception):
    """A member says no more."""


class Ending:
    """A channel whose owner falls silent after so many asks, or when all is over."""

    def __init__(
        self, service: FederationService, member: str, over: threading.Event, asks: int = 10**6
    ) -> None:
        self._service, self._member = service, member
        self._over, self._left = over, asks

    def ask(self, frame: bytes) -> bytes:
        self._left -= 1
        while self._left >= 0 and not self._over.is_set():
            answers: list[bytes] = []
            there = threading.Event()

            def take(
                answer: bytes, answers: list[bytes] = answers, there: threading.Event = there
            ) -> None:
                answers.append(answer)
                there.set()

            self._service.ask(self._member, frame, take)
            while not there.wait(0.05):
                if self._over.is_set():
                    raise MuteError
            return answers[0]
        raise MuteError

    def close(self) -> None:
        pass


class Clock:
    """The label holder's clock, which stands still until nobody can do anything but wait.

    However slow the machine is, nobody is silent then who was not meant to be.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        own = SimpleNamespace(monotonic=lambda: self.now, perf_counter=time.perf_counter)
        monkeypatch.setattr(service, "time", own)


def run(
    folder: Path, config: Any, silent_after: int, notices: list[str], clock: Clock
) -> tuple[FederationService, list[BaseException]]:
    """A job whose last member falls silent; the others go on as far as they get."""
    ended: dict[str, BaseException | None] = {}
    over = threading.Event()
    service = FederationService(config, notices.append)

    def work(member: str) -> None:
        asks = silent_after if member == "west" else 10**6
        try:
            with Member(dep.join_config(folder, member), Ending(service, member, over, asks)) as m:
                m.run()
            ended[member] = None
        except BaseException as error:
            ended[member] = error

    def stuck() -> bool:
        """Whether the last member is silent, and the others have ended or wait."""
        with service._lock:
            waiting = {dep.MEMBERS[client] for client in service._pending}
        return "west" in ended and waiting | ended.keys() == set(dep.MEMBERS)

    with service:
        threads = [threading.Thread(target=work, args=(m,), daemon=True) for m in dep.MEMBERS]
        for thread in threads:
            thread.start()
        until = time.monotonic() + 120
        more = 10  # looks at a job that waits for good
        while not service.finished.is_set() and more:
            assert time.monotonic() < until, (ended, notices)
            time.sleep(0.005)
            if stuck():
                clock.now += 2 * config.federation.patience
                more -= config.federation.absent == "wait" and bool(notices)
            service.tick()
        over.set()
        for thread in threads:
            thread.join(60)
    return service, [error for error in ended.values() if error is not None]


@pytest.mark.parametrize("timing", ["synchronous", "asynchronous"])
def test_a_job_goes_on_without_a_silent_member_where_it_may(
    timing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dep.serve_config(
        tmp_path,
        federation={"absent": "go-on", "patience": 0.5},
        simulation={"timing": timing},
    )
    notices: list[str] = []
    service, ended = run(tmp_path, config, 8, notices, Clock(monkeypatch))
    assert [type(error) for error in ended] == [MuteError], ended
    assert any("west; going on without" in line for line in notices)
    summary = json.loads((tmp_path / "server" / "summary.json").read_text())
    assert summary["rounds"] >= 12 if timing == "synchronous" else summary["rounds"] >= 36
    *others, silent = summary["queries"]
    assert silent <= 8
    assert others == [12] * 3
    assert summary["last"] is None  # its embeddings of test records never came
    assert service.finished.is_set()


@pytest.mark.parametrize("timing", ["synchronous", "asynchronous"])
def test_a_job_waits_for_a_silent_member_and_names_it(
    timing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dep.serve_config(
        tmp_path, federation={"absent": "wait", "patience": 0.3}, simulation={"timing": timing}
    )
    notices: list[str] = []
    service, _ = run(tmp_path, config, 8, notices, Clock(monkeypatch))
    named = [line for line in notices if "waiting for" in line]
    assert [line for line in named if "west" in line] == named
    assert not service.finished.is_set()
    assert service.state is not None
    answered = service.state.job.party.next_number
    if timing == "asynchronous":  # it held nobody up
        assert [answered(client) for client in range(3)] == [12, 12, 12]
    else:
        assert max(answered(client) for client in range(4)) < 12

    again: list[str] = []  # it comes back, and all end well
    with FederationService(config, again.append) as service, dep.ticking(service):
        done = dep.joined([dep.join_config(tmp_path, m) for m in dep.MEMBERS], dep.direct(service))
        assert [one.queries for one in done] == [12, 12, 12, 12]
    assert json.loads((tmp_path / "server" / "summary.json").read_text())["last"] is not None


def test_who_missed_rounds_takes_part_again(tmp_path: Path) -> None:
    config = dep.serve_config(
        tmp_path,
        federation={"absent": "go-on", "patience": 0.25},
        simulation={"timing": "synchronous"},
        epochs=10,
    )
    notices: list[str] = []
    with FederationService(config, notices.append) as service, dep.ticking(service):
        gate = threading.Event()

        class Sleepy(DirectChannel):
            asks = 0

            def ask(self, frame: bytes) -> bytes:
                self.asks += 1
                if self.asks == 10:
                    gate.wait(5)
                return super().ask(frame)

        def channels(member: str) -> DirectChannel:
            kind = Sleepy if member == "west" else DirectChannel
            return kind(service, member, patience=5.0)

        def wake() -> None:
            while not any("going on without" in line for line in notices):
                time.sleep(0.01)
            time.sleep(0.3)
            gate.set()

        threading.Thread(target=wake, daemon=True).start()
        done = dep.joined([dep.join_config(tmp_path, m) for m in dep.MEMBERS], channels)
    asked = [one.queries for one in done]
    assert 5 < asked[3] < min(asked[:3])
    assert any("west is back" in line for line in notices)


def test_a_folder_of_another_job_or_configuration_is_refused(tmp_path: Path) -> None:
    config = dep.serve_config(tmp_path)
    with FederationService(config) as service, dep.ticking(service):
        dep.joined([dep.join_config(tmp_path, m) for m in dep.MEMBERS], dep.direct(service))
    other = dep.serve_config(tmp_path, epochs=3)
    with pytest.raises(RunError, match="another configuration"), FederationService(other):
        pass
    new = dep.serve_config(tmp_path, federation={"folder": tmp_path / "elsewhere"})
    with FederationService(new) as service:
        channel = DirectChannel(service, "north")
        with (
            pytest.raises(RunError, match="another job"),
            Member(dep.join_config(tmp_path, "north"), channel),
        ):
            pass


def test_a_job_that_is_over_tells_so_again(tmp_path: Path) -> None:
    config = dep.serve_config(tmp_path)
    configs = [dep.join_config(tmp_path, m) for m in dep.MEMBERS]
    with FederationService(config) as service, dep.ticking(service):
        first = dep.joined(configs, dep.direct(service))
    with FederationService(config) as service, dep.ticking(service):
        second = dep.joined(configs, dep.direct(service))
        assert service.finished.wait(2)
    assert [one.words for one in first] == [one.words for one in second]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"require": {"method.name": "vafl"}}, "require.method.name is 'vafl' but the label holde"),
        ({"trial": False}, "federation.trial is false but the label holder runs a trial"),
        ({"name": "other"}, "federation.name is 'other'; the label holder's is 'test'"),
    ],
)
def test_a_member_refuses_what_it_did_not_agree_to(
    keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    tree = dep.join_config(tmp_path, "north").model_dump()
    tree["federation"] |= keys
    config = JoinConfig.model_validate(tree)
    with (
        FederationService(dep.serve_config(tmp_path)) as service,
        pytest.raises((ConfigError, RunError), match=message),
        Member(config, DirectChannel(service, "north")),
    ):
        pass


@pytest.mark.parametrize(
    ("federation", "keys", "message"),
    [
        ({"members": ["a", "a"]}, {}, "twice"),
        ({"members": []}, {}, "at least 1"),
        ({"listen": "7443"}, {}, "no address"),
        ({"members": ["a b"]}, {}, "no name"),
        ({"rate": 0}, {}, "greater than 0"),
        ({"rate": True}, {}, "federation.rate"),
        ({}, {"data": {"name": "digits", "parties": 3}}, "data.parties is 3"),
        (
            {"absent": "go-on"},
            {
                "simulation": {"timing": "synchronous"},
                "privacy": {"mechanism": "embedding-noise", "clip": 1.0, "noise_std": 1.0},
            },
            "federation.absent is 'go-on'",
        ),
    ],
)
def test_configurations_that_cannot_be_served(
    federation: dict[str, Any], keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValidationError, match=message):
        dep.serve_config(tmp_path, federation=federation, **keys)


def test_files_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("epochs: 3\n")
    with pytest.raises(ConfigError, match="no section federation; `vertizo train`"):
        load_serve(path)
    path.write_text("federation: {name: x, server: 'localhost:1', certificates: c, folder: f}\n")
    assert load_join(path).federation.folder == tmp_path / "f"
    with pytest.raises(ConfigError, match="members"):
        load_serve(path)


COLUMNS = 30
HOLDER = {"classes": ["benign", "malignant"], "label": "diagnosis"}


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Three parties' tables of the same people, in different orders, and new people."""
    whole = load_breast_cancer()
    frame = pl.DataFrame(whole.data, schema=[f"x{n}" for n in range(COLUMNS)]).with_columns(
        pl.Series("key", range(1000, 1000 + len(whole.target))),
        pl.Series("diagnosis", ["malignant" if y == 0 else "benign" for y in whole.target]),
    )
    own = {"bank": ["diagnosis", "x0"], "lab": [f"x{n}" for n in range(1, 12)]}
    own["clinic"] = [f"x{n}" for n in range(12, COLUMNS)]
    for seed, (party, columns) in enumerate(own.items()):
        known = frame[:500].sample(fraction=1.0, shuffle=True, seed=seed)
        known.select("key", *columns).write_csv(tmp_path / f"{party}.csv")
        new = frame[500:].sample(fraction=1.0, shuffle=True, seed=seed)
        new.select("key", *(c for c in columns if c != "diagnosis")).write_csv(
            tmp_path / f"{party}.new.csv"
        )
    return tmp_path


def holder_config(folder: Path) -> ServeConfig:
    federation = {
        "name": "t",
        "members": ["lab", "clinic"],
        "certificates": folder,
        "folder": folder / "run",
    }
    data = {"name": "table", "path": folder / "bank.csv", "id": "key", **HOLDER}
    return ServeConfig.model_validate(
        {
            "federation": federation,
            "data": data,
            "epochs": 24,
            "batch_size": 64,
            "simulation": {"timing": "synchronous"},
        }
    )


def member_config(folder: Path, member: str) -> JoinConfig:
    federation = {"name": "t", "server": "h:1", "certificates": folder, "folder": folder / member}
    data = {"path": folder / f"{member}.csv", "id": "key"}
    return JoinConfig.model_validate({"federation": federation, "data": data})


def test_tables_of_real_parties_train_and_predict(tables: Path) -> None:
    """With a label holder that has columns of its own; new records are scored by what was so."""
    for number, folder in enumerate(("run", "lab", "clinic")):  # the same secrets in every run
        (tables / folder).mkdir()
        (tables / folder / "secret.key").write_bytes(bytes([number]) * 32)
    config = holder_config(tables)
    members = [member_config(tables, m) for m in ("lab", "clinic")]
    with FederationService(config) as service, dep.ticking(service):
        dep.joined(members, dep.direct(service))
    assert json.loads((tables / "run" / "summary.json").read_text())["test_accuracy"] > 0.9

    records = NewRecords(tables / "bank.new.csv", "key", ",", "t")
    predicting = PredictingService(config, records)
    threads = [
        threading.Thread(
            target=help_predict,
            args=(
                member,
                NewRecords(tables / f"{name}.new.csv", "key", ",", "t"),
                DirectChannel(predicting, name, patience=5.0),
            ),
        )
        for name, member in zip(("lab", "clinic"), members, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert predicting.finished.wait(1)
    logits = predicting.logits()
    truth = torch.from_numpy(load_breast_cancer().target[500:])  # 0 is malignant, our class 1
    by_key = torch.tensor([int(key) - 1500 for key in records.keys])
    correct = (logits.argmax(1) == 1 - truth[by_key]).double().mean()
    assert correct > 0.9


def test_other_records_are_refused(tables: Path) -> None:
    config = holder_config(tables)
    lab = member_config(tables, "lab")
    frame = pl.read_csv(tables / "lab.csv")
    frame.head(300).write_csv(tables / "lab.csv")
    with FederationService(config) as service:
        channel = DirectChannel(service, "lab")
        with Member(lab, channel) as member, pytest.raises(RunError, match="vertizo align"):
            member.run()
    frame.with_columns(pl.col("key") + 1).write_csv(tables / "lab.csv")
    with FederationService(config) as service:
        channel = DirectChannel(service, "lab")
        with Member(lab, channel) as member, pytest.raises(RunError, match="with other keys"):
            member.run()


def test_new_records_before_the_end_or_without_a_column_are_refused(tables: Path) -> None:
    records = NewRecords(tables / "bank.new.csv", "key", ",", "t")
    config = holder_config(tables)
    with FederationService(config), pytest.raises(RunError, match="not over"):
        PredictingService(config, records)
    members = [member_config(tables, m) for m in ("lab", "clinic")]
    with FederationService(config) as service, dep.ticking(service):
        dep.joined(members, dep.direct(service))
    wrong = NewRecords(tables / "lab.new.csv", "key", ",", "t")
    with pytest.raises(DataError, match="does not have the column 'x0'"):
        PredictingService(config, wrong)
    notices: list[str] = []
    service_ = PredictingService(config, records, notices.append)
    fewer = pl.read_csv(tables / "lab.new.csv").head(10)
    fewer.write_csv(tables / "few.csv")
    with pytest.raises(RunError, match="lab has 10 new records and the label holder 69"):
        help_predict(
            members[0],
            NewRecords(tables / "few.csv", "key", ",", "t"),
            DirectChannel(service_, "lab"),
        )
    told = "lab was refused: lab has 10 new records and the label holder 69, or not the same ones"
    assert [line for line in notices if line.startswith(told)] == notices
    assert len(notices) == 1
    assert "waiting for it to be started again" in notices[0]


def test_members_that_are_silent_while_others_predict_are_named(tables: Path) -> None:
    config = holder_config(tables)
    members = [member_config(tables, m) for m in ("lab", "clinic")]
    with FederationService(config) as service, dep.ticking(service):
        dep.joined(members, dep.direct(service))
    served = config.federation.model_copy(update={"patience": 0.01})
    notices: list[str] = []
    records = NewRecords(tables / "bank.new.csv", "key", ",", "t")
    waiting = PredictingService(
        config.model_copy(update={"federation": served}), records, notices.append
    )
    until = time.monotonic() + 20
    while not notices:
        assert time.monotonic() < until
        waiting.tick()
    assert notices == ["silent: lab, clinic; waiting for them"]


def test_frames_survive_a_round_trip_and_garbage_does_not() -> None:
    from vertizo.core.errors import WireError

    ready = frames.Ready("job", 3, (1, 2, 3), b"f" * 32, True, False)
    assert frames.decode(frames.encode(ready)) == ready
    both = frames.encode(frames.Go()) + frames.encode(frames.Keep(4))
    assert [frames.decode(one) for one in frames.split(both)] == [frames.Go(), frames.Keep(4)]
    for wrong in (both[:-1], both + b"V", b"VC"):
        with pytest.raises(WireError):
            list(frames.split(wrong))
    with pytest.raises(WireError):
        frames.decode(both)


@pytest.mark.parametrize(
    "client",
    [
        {"model": {"name": "module", "path": "os:system", "arguments": {}}},
        {"model": {"name": "function", "path": "x.py:f", "num_parameters": 3}},
        {"model": {"name": "text", "checkpoint": "/etc"}},
    ],
)
def test_a_label_holder_cannot_name_code_or_files_of_a_member(
    client: dict[str, Any], tmp_path: Path
) -> None:
    config = dep.serve_config(tmp_path, client=client)
    with FederationService(config) as service:
        channel = DirectChannel(service, "north")
        with (
            pytest.raises(ConfigError, match="may not name code or files"),
            Member(dep.join_config(tmp_path, "north"), channel),
        ):
            pass


def test_terms_stay_as_they_were(tmp_path: Path) -> None:
    configs = [dep.join_config(tmp_path, m) for m in dep.MEMBERS]
    with FederationService(dep.serve_config(tmp_path)) as service:
        for config, member in zip(configs, dep.MEMBERS, strict=True):
            with Member(config, DirectChannel(service, member)):
                pass
    changed = (tmp_path / "server" / "config.yaml").read_text().replace("epochs: 2", "epochs: 9")
    (tmp_path / "server" / "config.yaml").write_text(changed)
    with (
        FederationService(dep.serve_config(tmp_path, epochs=9)) as service,
        pytest.raises(RunError, match="not those that the job began with"),
        Member(configs[0], DirectChannel(service, "north")),
    ):
        pass


def test_a_table_is_not_uploaded_twice(tmp_path: Path) -> None:
    """With noise on embeddings its release is accounted once, of the first parameters."""
    config = dep.serve_config(tmp_path)
    asked: list[bytes] = []

    class Greedy(DirectChannel):
        def ask(self, frame: bytes) -> bytes:
            asked.append(frame)
            answer = super().ask(frame)
            return (
                answer + frames.encode(frames.Send(WirePurpose.train, 0, "now"))
                if len(asked) > 6
                else answer
            )

    with FederationService(config) as service:
        for member in dep.MEMBERS[1:]:
            counts = service._archive.records.counts
            ready = frames.Ready(service._archive.run, 4, counts, b"", False, False)
            service.ask(member, frames.encode(ready), lambda answer: None)
        with (
            Member(dep.join_config(tmp_path, "north"), Greedy(service, "north")) as one,
            pytest.raises(RunError, match="not agreed on"),
        ):
            one.run()
