"""What is found, kept and asked again: online scores are those of `vertizo predict`."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from tests import deployments as dep
from tests.network.by_hand import NAMES
from tests.ops.scoring.parties import Scoring, predicted
from tests.rows import each
from tests.waiting import PATIENT, until

from vertizo.core.errors import DataError, RunError
from vertizo.core.names import Head
from vertizo.data.own_tables.keyed import FileTable
from vertizo.data.tabular.csv_lines import CsvFormat
from vertizo.network.serving import frames
from vertizo.network.serving.frames import Found, Hello, Ready, Refusal, Want
from vertizo.ops.scoring import LOOKED_UP
from vertizo.ops.scoring.scorer import NotScoredError
from vertizo.ops.scoring.service import SilentError
from vertizo.protocol import wire
from vertizo.protocol.codecs.none import NoCompression
from vertizo.protocol.messages import Upload

Make = Callable[..., Scoring]


def assert_scored(found: Any, keys: list[str], truth: dict[str, torch.Tensor]) -> None:
    there, logits, missing = found
    assert there == keys
    assert not missing
    torch.testing.assert_close(logits, torch.stack([truth[key] for key in keys]))


@pytest.mark.full
@each("head", ["private", "raw"])
def test_scores_are_the_predictions_of_the_same_records(
    head: Head, scoring: Make, tables: Path, trained: Path
) -> None:
    truth, made = predicted(tables, trained, head), scoring(head=head)
    with made.members():
        keys = random.Random(0).sample(made.keys, 40)
        assert_scored(made.service.logits(keys, PATIENT), keys, truth)
        for key in made.keys:
            assert_scored(made.service.logits([key], PATIENT), [key], truth)


def test_records_that_some_party_lacks_are_named_and_the_others_scored(
    scoring: Make, tables: Path, trained: Path, tmp_path: Path
) -> None:
    made, truth = scoring(), predicted(tables, trained)
    first, second, third, *_ = made.keys
    frame = pl.read_csv(tables / "lab.new.csv").filter(pl.col("key") != int(second))
    frame.write_csv(tmp_path / "lab.csv")
    few = FileTable(tmp_path / "lab.csv", "key", CsvFormat())
    with made.members(tables={"lab": few}):
        there, logits, missing = made.service.logits([first, second, "nobody", third], PATIENT)
    assert there == [first, third]
    torch.testing.assert_close(logits, torch.stack([truth[first], truth[third]]))
    assert missing == {second: ["lab"], "nobody": ["", "lab", "clinic"]}


def test_a_row_that_cannot_be_embedded_is_one_that_is_not_there(
    scoring: Make, tables: Path, trained: Path, tmp_path: Path
) -> None:
    made, truth = scoring(), predicted(tables, trained)
    bad, good = made.keys[0], made.keys[1]
    frame = pl.read_csv(tables / "lab.new.csv").cast({"x1": pl.String})
    spoilt = pl.when(pl.col("key") == int(bad)).then(pl.lit("wet")).otherwise(pl.col("x1"))
    frame.with_columns(spoilt.alias("x1")).write_csv(tmp_path / "lab.csv")
    with made.members(tables={"lab": FileTable(tmp_path / "lab.csv", "key", CsvFormat())}):
        there, logits, missing = made.service.logits([bad, good], PATIENT)
        made.service.logits([bad], PATIENT)
    assert (there, missing) == ([good], {bad: ["lab"]})
    torch.testing.assert_close(logits[0], truth[good])
    (notice,) = (line for line in made.notices if "wet" in line)  # told once
    assert notice.endswith("but only numbers in training; such records are not scored")


def test_a_table_that_cannot_be_read_lacks_nobody(scoring: Make, tmp_path: Path) -> None:
    """Its records are not called missing; scores go on once it can be read."""
    made = scoring(cache=0.0)

    class Locked(FileTable):
        fails = True

        def rows(self, keys: Any) -> Any:
            if self.fails:
                raise DataError("people.db cannot be read: database is locked")
            return super().rows(keys)

    theirs = Locked(made.tables / "lab.new.csv", "key", CsvFormat())
    with made.members(tables={"lab": theirs}):
        for _ in range(2):
            with pytest.raises(SilentError, match=r"^lab cannot read the table that records are"):
                made.service.logits(made.keys[:3], PATIENT)
        theirs.fails = False
        assert made.service.logits(made.keys[:3], PATIENT)[0] == made.keys[:3]
    (told,) = (line for line in made.notices if line != LOOKED_UP)
    assert told.endswith("database is locked; nothing is scored until it can be read")
    ours = Locked(made.tables / "bank.new.csv", "key", CsvFormat())
    assert made.service._own is not None
    made.service._own._table = ours
    with made.members():
        with pytest.raises(NotScoredError, match="the label holder's table cannot be read"):
            made.scorer.score(made.key, made.keys[:3], "http")
        ours.fails = False
        assert made.scorer.score(made.key, made.keys[:3], "http").frame.height == 3


def test_a_score_that_is_no_number_is_not_given_out(
    scoring: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vertizo.ops.scoring.http import STATUS

    made = scoring()
    found = ["k"], torch.tensor([[0.0, float("nan")]]), {}
    monkeypatch.setattr(made.service, "logits", lambda keys, deadline: found)
    with pytest.raises(NotScoredError, match="a score is not a finite number") as refusal:
        made.scorer.score(made.key, ["k"], "http")
    assert STATUS[refusal.value.reason] == 503
    assert any("the score of record 1 of 1 is nan" in line for line in made.notices)


def test_embeddings_are_kept_for_as_long_as_is_said(
    scoring: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cache, asked in ((300.0, 3), (0.0, 6)):
        made = scoring(cache=cache)
        with made.members() as members:
            for _ in range(2):
                made.service.logits(made.keys[:3], PATIENT)
            assert [one.answered for one in members.values()] == [asked, asked]
            assert made.service.remembered == 2 * (6 - asked)
    made = scoring(cache=0.05)
    with made.members() as members:
        made.service.logits(made.keys[:3], PATIENT)
        time.sleep(0.1)
        made.service.logits(made.keys[:3], PATIENT)
        assert [one.answered for one in members.values()] == [6, 6]


def test_a_silent_member_is_named_and_nothing_is_left_over(
    scoring: Make, tables: Path, trained: Path
) -> None:
    made, truth = scoring(cache=PATIENT), predicted(tables, trained)
    with made.members():
        made.service.logits(made.keys[:5], PATIENT)
    clinics = made.service._kept[made.service.members.index("clinic")]
    assert clinics is not None
    clinics.clear()
    with made.members(["lab"]):
        assert until(lambda: made.service.missing() == ["clinic"])
        with pytest.raises(SilentError, match=r"^clinic did not answer within 0\.2 s$"):
            made.service.logits(made.keys[:5], 0.2)
        assert made.service._wanted == [{}, {}]
        with made.members(["clinic"]):
            assert_scored(made.service.logits(made.keys[:5], PATIENT), made.keys[:5], truth)
            assert made.service.is_ready


@pytest.mark.full
def test_members_that_come_and_go_lose_no_score(scoring: Make, tables: Path, trained: Path) -> None:
    """Connections end before, at and after answers; many ask for overlapping records meanwhile."""
    made, truth = scoring(cache=0.02), predicted(tables, trained)
    lock, chance = threading.Lock(), random.Random(3)

    class Cut(dep.DirectChannel):
        """Loses an ask before or after it reached the service, and asks again."""

        def ask(self, frame: bytes) -> bytes:
            with lock:
                fate = chance.random()
            if fate < 0.15:
                self._service.gone(self._member)
            elif fate < 0.45:  # the answer is lost, and the ask is repeated byte for byte
                self._service.ask(self._member, frame, lambda answer: None)
                if fate < 0.3:  # else nobody noticed that the connection was lost
                    self._service.gone(self._member)
            return super().ask(frame)

    def caller(seed: int) -> int:
        mine = random.Random(seed)
        for _ in range(25):
            keys = mine.sample(made.keys, mine.randint(1, 30))
            assert_scored(made.service.logits(keys, PATIENT), keys, truth)
        return 25

    with made.members(channel=Cut):
        assert dep.together([partial(caller, seed) for seed in range(8)]) == [25] * 8
        assert made.service._wanted == [{}, {}]


# Members that are hostile, or broken.


def ask(made: Scoring, member: str, content: bytes) -> list[frames.Frame]:
    answers: list[bytes] = []
    made.service.ask(member, content, answers.append)
    return [frames.decode(part) for answer in answers for part in frames.split(answer)]


def test_what_a_member_sends_is_used_only_where_it_fits(scoring: Make) -> None:
    """Whatever it sends, others' scores go on, and nothing of it is scored or kept."""
    made = scoring()
    job, dim = made.service.model.job, made.service.model.dims[0]
    keys = made.keys[:4]

    def upload(rows: int, value: float = 1.0, client: int = 0, width: int = dim) -> bytes:
        values = torch.full((1, rows, width), value)
        return wire.encode(Upload(client, "test", torch.arange(rows), values), NoCompression())

    wrong: list[tuple[tuple[int, ...], list[bytes]]] = [
        ((0, 1), [upload(3)]),
        ((0, 1, 2, 3), [upload(4, float("nan"))]),
        ((0, 1, 2, 3), [upload(4, float("inf"))]),
        ((0, 1, 2, 3), [upload(4, client=1)]),
        ((0, 1, 2, 3), [upload(4, width=dim + 1)]),
        ((0, 1, 2, 4), [upload(4)]),
        ((0, 1, 2, 2**62), [upload(4)]),
        ((1, 0, 2, 3), [upload(4)]),
        ((0, 0, 1, 2), [upload(4)]),
        ((0, 1, 2, 3), []),
        ((0, 1, 2, 3), [upload(4), upload(4)]),
        ((0, 1, 2, 3), [b"VZ" + bytes(6)]),
    ]
    ready = frames.encode(Ready(job, dim, (0, 0, 0), b"", False, False))
    with made.members(["clinic"]):
        for places, behind in wrong:
            answers: list[bytes] = []
            made.service.ask("lab", ready, answers.append)
            found: list[Any] = []
            caller = threading.Thread(
                target=lambda found=found: found.append(made.service.logits(keys, PATIENT))
            )
            caller.start()
            assert until(lambda answers=answers: bool(answers), 120)
            want = frames.decode(answers[0])
            assert isinstance(want, Want)
            assert list(want.keys) == keys
            told = len(made.notices)
            sent = frames.encode(Found(job, want.number, places)) + b"".join(behind)
            assert ask(made, "lab", sent) == []  # it waits for more
            caller.join()
            assert found[0][0] == [], places
            assert found[0][2] == {key: ["lab"] for key in keys}
            said = [line for line in made.notices[told:] if line != LOOKED_UP]
            assert said[0].startswith("lab sent what cannot be used: "), places
    cache = made.service._kept[0]
    assert cache is not None
    assert not len(cache)


def test_asks_that_make_no_sense_are_refused(scoring: Make) -> None:
    made = scoring()
    job, dim = made.service.model.job, made.service.model.dims[0]
    rows: list[tuple[frames.Frame, str]] = [
        (Hello(frames.PROTOCOL, "another"), "another"),
        (Hello(1, "t"), "protocol 1"),
        (Ready("another", dim, (0, 0, 0), b"", False, False), "of another job"),
        (Ready(job, dim + 1, (0, 0, 0), b"", False, False), f"had {dim} in the job"),
        (Found("another", 1, ()), "for another job"),
        (frames.Next(job), "no ask here"),
    ]
    for frame, words in rows:
        (refusal,) = ask(made, "lab", frames.encode(frame))
        assert isinstance(refusal, Refusal)
        assert words in refusal.words, frame
    (refusal,) = ask(made, "lab", b"garbage")
    assert isinstance(refusal, Refusal)
    late = frames.encode(Found(job, 7, (0,)))
    assert ask(made, "lab", late) == []  # nothing was wanted; it waits for work
    assert made.service.missing() == ["clinic"]


def test_a_member_of_another_job_says_so(scoring: Make, tables: Path, tmp_path: Path) -> None:
    made = scoring()
    made.trained = tmp_path
    with pytest.raises(RunError, match="holds no job"):
        made.member("lab", dep.DirectChannel(made.service, "lab"))
    assert NAMES == ("lab", "clinic")
