"""Private labels: the law they are drawn by, what a label moves, and where they are kept."""

from __future__ import annotations

import math
import os
import shutil
import stat
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.lazy import Lazy
from tests.rows import each
from torch import Tensor

from vertizo.core.errors import ConfigError, RunError
from vertizo.core.randomness import Stream
from vertizo.models.losses import Classification, NoisyLabelClassification
from vertizo.privacy.accounting.events import LedgerBudget
from vertizo.privacy.labels import label_file
from vertizo.privacy.labels.label_file import LabelFile
from vertizo.privacy.labels.private_labels import (
    LONGEST,
    Paid,
    RandomisedResponse,
    Teacher,
    whitened,
)
from vertizo.privacy.ledger.durable import DurableLedger
from vertizo.privacy.ledger.register import Names
from vertizo.privacy.noise.mechanisms import NoiseSource, SeededNoise
from vertizo.privacy.noise.secure import SecureNoise

stats = Lazy("scipy.stats")


@each(
    "epsilon, classes",
    [(1e-3, 2), (0.1, 2), (1.0, 2), (1.0, 10), (3.0, 3), (12.0, 7), (36.0, 10), (42.0, 2)],
)
def test_no_label_is_told_apart_by_more_than_epsilon(epsilon: float, classes: int) -> None:
    """By the very words that are compared, not by the formula."""
    response = RandomisedResponse(epsilon * (1 - 1e-6), classes, os.urandom)
    words = Fraction(response.exchanged, 2**64)
    # A word modulo k − 1 hits some class by one word more than others.
    least = words * (2**64 // (classes - 1)) / 2**64
    most = words * (2**64 // (classes - 1) + 1) / 2**64
    assert 0 < words < 1
    assert 1 - words <= Fraction(math.exp(epsilon)) * least
    assert most <= Fraction(math.exp(epsilon)) * (1 - words)
    assert float(words) == pytest.approx((classes - 1) * response.other)
    assert response.keep + (classes - 1) * response.other == pytest.approx(1)


@each("classes", [2, 3, 10])
def test_labels_are_drawn_by_their_law(classes: int) -> None:
    response = RandomisedResponse(1.0, classes, np.random.default_rng(3).bytes)
    labels = torch.arange(60_000) % classes
    drawn = response.make(labels)
    assert drawn.dtype == torch.int64
    for label in range(classes):
        of = drawn[labels == label]
        counts = torch.bincount(of, minlength=classes)
        for other in range(classes):
            chance = response.keep if other == label else response.other
            assert 1e-6 < stats.binom.cdf(int(counts[other]), len(of), chance) < 1 - 1e-6


def test_a_corrected_loss_is_that_of_the_labels_as_they_are_drawn() -> None:
    """Its value is the likelihood of the drawn label, and its slopes are those of its value."""
    response = RandomisedResponse(0.7, 4, os.urandom)
    task = NoisyLabelClassification(4, response.keep, response.other)
    logits = torch.randn(50, 4, generator=torch.Generator().manual_seed(1)) * 4
    logits[0] = torch.tensor([80.0, -80.0, 0.0, 0.0])
    labels = torch.arange(50) % 4
    losses, exact = task.losses(logits, labels), logits.double().requires_grad_()
    shares = torch.softmax(exact, 1)
    law = response.other + (response.keep - response.other) * shares
    expected = -law[range(50), labels].log()
    torch.testing.assert_close(losses.values.double(), expected.detach(), rtol=1e-5, atol=1e-6)
    weights = torch.linspace(-1, 2, 50)
    (slopes,) = torch.autograd.grad((expected * weights).sum(), exact)
    weighted, alike = (losses.slopes(slice(None), by).double() for by in (weights, 2.0))
    for found in (weighted, alike / 2 * weights[:, None]):
        torch.testing.assert_close(found, slopes, atol=1e-6, rtol=1e-4)
    plain = Classification(4).losses(logits, labels)
    assert losses.correct(slice(None)) == plain.correct(slice(None))


def test_weighted_classes_are_learned_from_exchanged_labels_as_from_raw_ones() -> None:
    """The loss is smallest where the model predicts each class's share times its weight."""
    response = RandomisedResponse(0.7, 3, os.urandom)
    shares, weights = torch.tensor([0.9, 0.07, 0.03]), torch.tensor([1.0, 5.0, 30.0])
    law = response.other + (response.keep - response.other) * shares
    task = NoisyLabelClassification(3, response.keep, response.other, weights=weights)
    logits, labels = torch.zeros(3, 3), torch.arange(3)
    for _ in range(4000):
        slope = task.losses(logits, labels).slopes(slice(None), law).sum(0)
        logits = (logits - 40 * slope).contiguous()
    wanted = shares * weights / (shares * weights).sum()
    torch.testing.assert_close(torch.softmax(logits[0], 0), wanted, atol=2e-3, rtol=2e-2)


class Bare(NoiseSource):
    """Adds nothing."""

    name, is_secret, clip_norm, noise_std = "none", False, LONGEST, 10.0

    def onto(self, release: int, total: Tensor) -> Tensor:
        return total


def hostile(kind: str, records: int, width: int, generator: torch.Generator) -> Tensor:
    """Uploads that clients may send: of any size, and all that floats can be."""
    rows = torch.randn(records, width, generator=generator)
    if kind == "large":
        rows[::3] *= 1e6
    elif kind == "one large":
        rows[0] = 1e6
    elif kind == "constant":
        rows[:] = 1e6
    elif kind == "nearly constant":
        rows = 1e6 + rows * 1e-1
    elif kind == "small":
        rows *= 1e-38
    elif kind == "zeros":
        rows[:] = 0.0
    elif kind == "not finite":
        rows[0], rows[1], rows[2, 0] = torch.nan, torch.inf, -torch.inf
    elif kind == "alone":
        rows[1:] = 0.0
    return rows


HOSTILE = (
    *("usual", "large", "one large", "constant", "nearly constant", "small", "zeros"),
    *("not finite", "alone"),
)


@each("kind", HOSTILE)
def test_a_label_moves_a_teachers_statistic_by_no_more_than_is_counted(kind: str) -> None:
    """Whatever clients upload, every record in turn, every other label: at most √2 R."""
    generator = torch.Generator().manual_seed(5)
    rows, labels = hostile(kind, 24, 6, generator), torch.arange(24) % 3
    for whitening in (0.0, 0.5, 1.0):
        inputs = whitened(rows, whitening, 6)

        def statistic(given: Tensor, inputs: Tensor = inputs) -> Tensor:
            return Teacher(Bare(), 3, 6, 6, 0.0, 1.0).released(given, inputs)

        before, worst = statistic(labels), 0.0
        for record in range(24):
            for label in range(3):
                changed = labels.clone()
                changed[record] = label
                worst = max(worst, float((statistic(changed) - before).norm()))
        assert worst <= math.sqrt(2) * LONGEST * (1 + 1e-9)
        assert float(inputs.norm(dim=1).max()) <= LONGEST * (1 + 1e-9)


@each("kind", HOSTILE)
def test_on_a_grid_rows_are_no_longer_than_is_counted(kind: str) -> None:
    """In the integers that secure noise is added to, where nothing is rounded any more."""
    rows = whitened(hostile(kind, 24, 6, torch.Generator().manual_seed(5)), 0.5, 4)
    noise = SecureNoise(clip_norm=LONGEST, noise_std=3.0)
    steps = noise._on_grid(rows)
    assert int((steps * steps).sum(1).max()) <= (LONGEST / noise.grid) ** 2


def test_a_teacher_predicts_what_can_be_learned() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(3000) % 3
    rows = torch.randn(3000, 8, generator=generator)
    rows[:, :3] += 4 * torch.nn.functional.one_hot(labels, 3)
    drawn = np.random.default_rng(0).bytes
    noise = SecureNoise(clip_norm=LONGEST, noise_std=5.0, random_bytes=drawn)
    made = Teacher(noise, 3, 8, 8, 0.5, 1.0).make(labels, rows)
    assert float((made == labels).double().mean()) > 0.95
    drowned = SecureNoise(clip_norm=LONGEST, noise_std=1e6, random_bytes=drawn)
    blind = Teacher(drowned, 3, 8, 8, 0.5, 1.0)
    right = [float((blind.make(labels, rows) == labels).double().mean()) for _ in range(30)]
    assert 0.2 < sum(right) / 30 < 0.47


def test_a_teacher_of_weighted_classes_finds_a_rare_one() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(3000, generator=generator) < 0.03).long()
    rows = torch.randn(3000, 2, generator=generator) + labels[:, None]
    found = []
    for weights in (None, torch.tensor([1.0, 30.0])):
        teacher = Teacher(Bare(), 2, 1, 2, 0.5, 3.0, weights)
        found.append(teacher.make(labels, rows)[labels == 1].float().mean())
    assert found[0] < 0.2
    assert found[1] > 0.6


def test_a_teacher_is_better_without_what_noise_drowns() -> None:
    """Classes are told apart along three components of a hundred: the others only add noise."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(3000) % 3
    rows = torch.randn(3000, 100, generator=generator)
    rows[:, :3] += 4 * torch.nn.functional.one_hot(labels, 3)
    right = []
    for kept in (4, 100):
        noise = SeededNoise(Stream.from_seed(0), clip_norm=LONGEST, noise_std=40.0)
        teacher = Teacher(noise, 3, 100, kept, 0.75, 0.7)
        assert teacher.inputs(rows).shape == (3000, kept + 1)
        right.append(float((teacher.make(labels, rows) == labels).double().mean()))
    assert right[0] > 0.95 > 0.8 > right[1]


PAID = Paid("randomised-response", 1.0, 0.0, 0.462, None, "in secret", True, "this run alone")


def file_at(path: Path, **changes: Any) -> LabelFile:
    about = {"name": "people", "records": 40, "clients": 2} | changes
    return LabelFile(path, **about, witness_folder=path.parent / "state")


def made(count: int = 40) -> Tensor:
    return torch.from_numpy(np.random.default_rng().integers(0, 3, count))


class Died(BaseException):
    """The process ends."""


@each("apart", [False, True])
@each("end", [Died(), OSError(28, "No space left on device")])
def test_no_labels_are_there_that_nothing_counts(
    end: BaseException, apart: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ends it before the file is written, or just after."""
    keys = Names([f"k{n}" for n in range(40)])
    path, real = tmp_path / "labels", label_file.write_whole
    if apart:
        file_at(path, names=lambda: keys).set_apart(PAID, further=False)

    def before(*_: Any) -> None:
        raise end

    def after(*given: Any) -> None:
        real(*given)
        raise end

    for ends in (before, after):
        monkeypatch.setattr(label_file, "write_whole", ends)
        with pytest.raises((Died, RunError)):
            file_at(path, names=lambda: keys).labels(made, PAID)
        monkeypatch.setattr(label_file, "write_whole", real)
        elsewhere = file_at(tmp_path / "others", names=lambda: keys)
        if isinstance(end, Died) or ends is after or apart:
            with pytest.raises(RunError, match="40 of 40 records are charged"):
                elsewhere.labels(made, PAID)
        if isinstance(end, Died) and ends is before:
            return  # they are charged, for labels that nobody read
    assert file_at(path, names=lambda: keys).is_made
    path.unlink()  # and still nobody gets others
    with pytest.raises(RunError, match="40 of 40 records are charged"):
        elsewhere.labels(made, PAID)


def test_they_are_made_once_and_kept(tmp_path: Path) -> None:
    keys = Names([f"k{n}" for n in range(40)])
    path = tmp_path / "labels"
    first = file_at(path, names=lambda: keys)
    assert not first.is_made
    labels = first.labels(made, PAID)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = file_at(path, names=lambda: keys)
    assert torch.equal(again.labels(lambda: pytest.fail("made anew"), PAID), labels)
    assert "'labels' together" in again.paid(PAID).counted
    copy = tmp_path / "elsewhere" / "labels"
    copy.parent.mkdir()
    shutil.copy(path, copy)
    assert torch.equal(file_at(copy, names=lambda: keys).labels(made, PAID), labels)
    copy.unlink()
    path.unlink()
    for other in (path, tmp_path / "others"):
        with pytest.raises(RunError, match="40 of 40 records are charged"):
            file_at(other, names=lambda: keys).labels(made, PAID)
        assert not other.exists()


def test_a_file_beside_a_ledger_is_set_apart_first_and_both_add_up(tmp_path: Path) -> None:
    """Labels are still made once: a copy from before they were is refused."""
    people, state = Names([f"k{n}" for n in range(40)]), tmp_path / "state"
    about, path = {"names": lambda: people}, tmp_path / "labels"
    budget = LedgerBudget("people", 40, 2, 10**9, 2.5, 1e-5)
    DurableLedger.create(tmp_path / "ledger", budget, state, names=people)
    seeded = replace(PAID, is_secret=False)
    for make in (
        lambda: file_at(path, **about).labels(made, PAID),
        lambda: file_at(path, **about).set_apart(PAID, further=False),
    ):
        with pytest.raises(RunError, match=r"for replies, not for labels; state .*--further"):
            make()
        assert not path.exists()
    for _ in range(2):  # where it was lost before it was used, nothing was charged
        file_at(path, **about).set_apart(PAID, further=True)
        before, _ = path.read_bytes(), path.unlink()
    path.write_bytes(before)
    assert not file_at(path, **about).is_made
    assert file_at(path, **about).paid(seeded).is_secret is False  # as they are made, then
    labels = file_at(path, **about).labels(made, PAID)
    kept = file_at(path, **about)
    assert kept.is_made
    assert torch.equal(kept.labels(lambda: pytest.fail("made anew"), PAID), labels)
    assert "ε = 1 at δ = 0, and with" in kept.paid(PAID).counted
    assert "('ledger') ε = 3.5 at δ = 1e-05" in kept.paid(PAID).counted
    with DurableLedger.open(tmp_path / "ledger", "run", state, names=people) as ledger:
        assert "('labels') ε = 3.5 at δ = 1e-05" in ledger.counted
    path.write_bytes(before)
    with pytest.raises(RunError, match="is an older copy"):
        file_at(path, **about).labels(made, PAID)
    path.unlink()
    with pytest.raises(RunError, match="are charged to the ledger"):
        file_at(tmp_path / "more", **about).set_apart(PAID, further=False)


def test_other_records_or_another_price_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "labels"
    file_at(path).labels(made, PAID)
    for changes, words in (
        ({"mechanism": "teacher"}, "privacy.mechanism is 'teacher' but .* 'randomised-response'"),
        ({"epsilon": 2.0}, r"privacy.epsilon is 2.0 but .* made with 1.0, and are not made again"),
    ):
        with pytest.raises(ConfigError, match=words):
            file_at(path).paid(Paid(**{**vars(PAID), **changes}))
    with pytest.raises(ConfigError, match="has the labels of 40 records of people"):
        file_at(path, records=41).labels(made, PAID)
    seeded = Paid(**{**vars(PAID), "is_secret": False})
    assert file_at(path).paid(seeded).is_secret  # what was drawn in secret stays so
    other = tmp_path / "seeded"
    file_at(other).labels(made, seeded)
    with pytest.raises(ConfigError, match="were made from a seed"):
        file_at(other).labels(made, PAID)


def test_a_damaged_file_is_never_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "labels"
    file_at(path).labels(made, PAID)
    whole = path.read_bytes()
    for place in range(1, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(RunError, match=r"is damaged|has no private labels"):
            file_at(path).labels(made, PAID)
    path.write_bytes(b"")
    with pytest.raises(RunError, match="has no private labels"):
        file_at(path).labels(made, PAID)
