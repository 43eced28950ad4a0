"""Cutting records between parties."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.refusals import refused
from tests.rows import examples
from torch import Tensor

from vertizo.core.errors import ConfigError
from vertizo.core.randomness import Stream
from vertizo.data import vertical
from vertizo.data.options import DataConfig
from vertizo.data.pooled import Pooled
from vertizo.data.vertical import VerticalData
from vertizo.models.losses import Classification, Regression

SEED = Stream.from_seed(0)


def pooled_of(name: str, *shape: int, records: int = 9, dtype: Any = torch.float32) -> Pooled:
    """Records in which no two numbers are the same, and three more to test on."""
    values = torch.arange((records + 3) * math.prod(shape), dtype=dtype).reshape(-1, *shape)
    labels = torch.arange(len(values))
    train, test = slice(records), slice(records, None)
    halves = values[train], labels[train], values[test], labels[test]
    return Pooled(name, *halves, Classification(2))


def images(height: int = 6, width: int = 5, channels: int = 1, records: int = 9) -> Pooled:
    return pooled_of("pictures", channels, height, width, records=records)


def table(columns: int = 6, records: int = 9, *, grouped: bool = True) -> Pooled:
    """Columns are called c0, c1, ..."""
    names = tuple(f"c{index}" for index in range(columns))
    groups = {"odd": names[1::2], "even": names[::2]} if grouped else None
    return replace(pooled_of("ledger", columns, records=records), columns=names, groups=groups)


def texts(length: int = 7) -> Pooled:
    return pooled_of("letters", length, dtype=torch.int32)


def photographs() -> Pooled:
    """Six views of 2 by 3 pixels."""
    return pooled_of("objects", 6, 1, 2, 3)


def cut(
    pooled: Pooled,
    split: Any = None,
    parties: int | None = None,
    stream: Stream = SEED,
    validation: float = 0.0,
    **more: Any,
) -> VerticalData:
    """What the options alone would refuse comes as far as the cut."""
    settings = {"split": split, "parties": parties, "validation": validation, **more}
    return vertical.cut(pooled, DataConfig.model_construct(**settings), stream)


def parts(data: VerticalData, purpose: Any = "train") -> list[Tensor]:
    return [own[purpose] for own in data.features]


def numbers(tensors: list[Tensor]) -> list[float]:
    return [number for tensor in tensors for number in tensor.flatten().tolist()]


def refuse(words: list[str], *args: Any, **more: Any) -> str:
    return refused(words, ConfigError, cut, *args, **more)


def fits(size: tuple[int, int, int], split: str, parties: int) -> bool:
    """Whether every party gets something."""
    height, width, channels = size
    down = max(n for n in range(1, parties + 1) if parties % n == 0 and n * n <= parties)
    return {
        "rows": parties <= height,
        "patches": down <= height and parties // down <= width,
        "halves": height > 1,
        "sides": width > 1,
        "even": parties <= height * width * channels,
    }[split]


SIZES = st.tuples(st.integers(1, 7), st.integers(1, 7), st.integers(1, 2))


class TestPieces:
    @settings(max_examples=examples(80), deadline=None)
    @given(
        SIZES, st.sampled_from(["rows", "patches", "halves", "sides", "even"]), st.integers(1, 12)
    )
    def test_pieces_are_disjoint_and_complete_for_every_purpose(
        self, size: tuple[int, int, int], split: str, parties: int
    ) -> None:
        pooled = images(*size)
        asked = None if split in ("halves", "sides") else parties
        if not fits(size, split, parties):
            refuse(["data.parties"], pooled, split, asked)
            return
        data = cut(pooled, split, asked, validation=0.3)
        whole = {"train": 6, "validation": 3, "test": 3}
        for purpose, records in whole.items():
            pieces = parts(data, purpose)
            assert len(pieces) == len(data.parties)
            assert {piece.shape[0] for piece in pieces} == {records}
            assert all(piece.numel() and piece.is_contiguous() for piece in pieces)
        everything = numbers([*parts(data), *parts(data, "validation")])
        assert sorted(everything) == sorted(numbers([pooled.train]))
        assert sorted(numbers(parts(data, "test"))) == sorted(numbers([pooled.test]))

    @settings(max_examples=examples(40), deadline=None)
    @given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
    def test_strips_reassemble_the_image_and_the_last_takes_the_remainder(
        self, height: int, width: int, parties: int
    ) -> None:
        pooled = images(height, width, channels=2)
        if parties > height:
            refuse(["data.parties"], pooled, "rows", parties)
            return
        pieces = parts(cut(pooled, "rows", parties))
        assert torch.equal(torch.cat(pieces, 2), pooled.train)
        heights = [piece.shape[2] for piece in pieces]
        assert heights[:-1] == [height // parties] * (parties - 1)
        assert heights[-1] == height // parties + height % parties

    def test_two_halves(self) -> None:
        pooled = images(5, 7)
        for split, side, sizes in (("halves", 2, [2, 3]), ("sides", 3, [3, 4])):
            for parties in (None, 2):
                pieces = parts(cut(pooled, split, parties))
                assert [piece.shape[side] for piece in pieces] == sizes
                assert torch.equal(torch.cat(pieces, side), pooled.train)
            for parties in (1, 3):
                words = [f"data.parties is {parties}", "data.split", repr(split), "2"]
                refuse(words, images(), split, parties)

    def test_patches_are_a_grid_as_square_as_can_be(self) -> None:
        pooled = images(9, 11)
        grids = [(1, 1), (1, 2), (2, 2), (2, 3), (1, 7), (3, 3), (3, 4), (4, 4)]
        for down, across in grids:
            pieces = parts(cut(pooled, "patches", down * across))
            lines = [torch.cat(pieces[at : at + across], 3) for at in range(0, len(pieces), across)]
            assert len(lines) == down, (down, across)
            assert torch.equal(torch.cat(lines, 2), pooled.train)
            assert pieces[0].shape[2:] == (9 // down, 11 // across)
            assert pieces[-1].shape[2:] == (9 // down + 9 % down, 11 // across + 11 % across)

    def test_even_runs_of_the_flattened_record(self) -> None:
        for pooled, sizes in ((images(3, 5), [5, 5, 5]), (table(7), [2, 2, 3])):
            data = cut(pooled, "even", 3)
            pieces = parts(data)
            assert torch.equal(torch.cat(pieces, 1), pooled.train.flatten(1))
            assert [piece.shape[1] for piece in pieces] == sizes
            assert data.shape(2) == (sizes[2],)

    def test_blocks_of_given_sizes(self) -> None:
        for pooled, split, sizes, side in (
            (images(28, 28), None, [100, 200, 50, 300, 134], 1),
            (images(6, 5), "rows", [1, 3, 2], 2),
            (images(6, 5), "sides", [4, 1], 3),
            (table(7), None, [1, 4, 2], 1),
            (texts(8), None, [5, 3], 1),
            (photographs(), None, [1, 5], 1),
        ):
            pieces = parts(cut(pooled, split, sizes=sizes))
            assert [piece.shape[side] for piece in pieces] == sizes
            whole = pooled.train
            if pooled.kind == "views":
                whole = whole.flatten(1, 2)
            whole = whole.flatten(1) if side == 1 and pooled.kind == "images" else whole
            assert torch.equal(torch.cat(pieces, side), whole)
        for split, sizes, words in (
            (None, [100, 200], ["data.sizes adds up to 300", "30 to share", "add up to 30"]),
            ("rows", [3, 4], ["data.sizes adds up to 7", "6 to share"]),
            ("halves", [2, 2, 2], ["data.parties is 3", "'halves' makes 2"]),
            ("patches", [15, 15], ["data.sizes is set", "'patches'", "'even'"]),
        ):
            refuse(words, images(6, 5), split, sizes=sizes)
        refuse(["data.sizes is set", "'columns'"], table(), "columns", sizes=[3, 3])

    def test_images_have_four_parties_unless_said_otherwise(self) -> None:
        for split in (None, "rows", "patches", "even"):
            data = cut(images(8, 8), split)
            assert data.parties == ("party0", "party1", "party2", "party3"), split
        assert torch.equal(torch.cat(parts(cut(images(8, 8))), 2), images(8, 8).train)

        data = cut(images(8, 5, channels=3), "rows", 3)
        assert [data.shape(party) for party in range(3)] == [(3, 2, 5), (3, 2, 5), (3, 4, 5)]


class TestColumns:
    def test_the_natural_parties_of_a_table(self) -> None:
        data = cut(table(6))
        assert data.parties == ("odd", "even")
        assert torch.equal(parts(data)[0], table(6).train[:, 1::2])
        assert torch.equal(parts(data)[1], table(6).train[:, ::2])
        assert cut(table(6), parties=2).parties == ("odd", "even")
        assert (data.name, data.task.outputs, data.fitted_scaling) == ("ledger", 2, False)

    def test_named_columns_in_their_order(self) -> None:
        data = cut(table(6), columns={"bank": ["c4", "c0"], "shop": ["c1"]})
        assert data.parties == ("bank", "shop")
        assert torch.equal(parts(data)[0], table(6).train[:, [4, 0]])
        assert torch.equal(parts(data, "test")[1], table(6).test[:, [1]])

    def test_another_number_of_parties_takes_runs_of_columns(self) -> None:
        data = cut(table(7), parties=3)
        assert data.parties == ("party0", "party1", "party2")
        assert torch.equal(torch.cat(parts(data), 1), table(7).train)
        assert [piece.shape[1] for piece in parts(data)] == [2, 2, 3]

    def test_wrong_columns_are_refused(self) -> None:
        rows: list[tuple[dict[str, list[str]], list[str]]] = [
            ({"a": ["c1"], "b": ["c9"]}, ["data.columns", "'b'", "'c9'", "ledger"]),
            ({"a": ["cc1"]}, ["'cc1'", "did you mean 'c1'?"]),
            ({"a": ["c1"], "b": ["c2", "c1"]}, ["data.columns", "'c1'", "'a'", "'b'"]),
            ({"a": ["c1"], "b": []}, ["data.columns", "'b'", "no columns"]),
            ({}, ["data.columns"]),
        ]
        for columns, words in rows:
            refuse(words, table(6), columns=columns)
        line = refuse(["data.columns", "'c1'", "'a'"], table(6), columns={"a": ["c1", "c1"]})
        assert "both 'a' and 'a'" not in line
        # Parties and columns must be said, and agree.
        refuse(["data.columns", "data.parties"], table(6, grouped=False))
        words = ["data.parties is 3", "data.columns", "2"]
        refuse(words, table(6), parties=3, columns={"a": ["c1"], "b": ["c2"]})


class TestCombinations:
    def test_splits_of_another_kind_of_data(self) -> None:
        for split in ("rows", "patches", "halves", "sides"):
            words = ["data.split", repr(split), "ledger", "table", "'columns'"]
            refuse(words, table(), split)
        refuse(["data.split", "'columns'", "pictures", "images", "'rows'"], images(), "columns")
        for split in ("rows", "even", "columns", "views"):
            words = ["data.split", repr(split), "letters", "token", "use 'segments'"]
            refuse(words, texts(), split)
        for pooled in (images(), table(), texts()):
            refuse(["data.split is 'views' but"], pooled, "views")

        words = ["data.columns", "data.split", "'columns'", "'even'"]
        for pooled in (images(), table()):
            refuse(words, pooled, "even", columns={"a": ["c1"]})

    def test_too_many_parties_say_how_many_there_can_be(self) -> None:
        for pooled, split, most in (
            (images(6, 5), "rows", 6),
            (images(6, 5), "even", 30),
            (table(30), "columns", 30),
            (texts(), None, 7),
            (photographs(), None, 6),
        ):
            words = [f"data.parties is {most + 1}", f"1 to {most}"]
            refuse(words, pooled, split, most + 1)

        # 11 patches would be 11 side by side; 12 fit, as 3 lines of 4: no wrong advice.
        assert len(cut(images(8, 8), "patches", 12).parties) == 12
        assert "use 1 to 8" not in refuse(["data.parties is 11"], images(8, 8), "patches", 11)


class TestValidation:
    @settings(max_examples=examples(40), deadline=None)
    @given(st.floats(0, 0.9), st.none() | st.integers(2, 40), st.integers(0, 3))
    def test_validation_and_training_share_no_record(
        self, share: float, limit: int | None, seed: int
    ) -> None:
        pooled = images(2, 2, records=30)
        data = cut(pooled, "rows", 2, validation=share, limit=limit, stream=Stream.from_seed(seed))
        training, validation = (set(data.labels[p].tolist()) for p in ("train", "validation"))
        used = min(limit or 30, 30)
        assert not training & validation
        assert len(training) + len(validation) == used
        assert len(validation) == round(share * used)
        assert training | validation <= set(range(30))
        assert data.labels["test"].tolist() == [30, 31, 32]
        assert data.records == len(training)
        for purpose in ("train", "validation", "test"):
            whole = torch.cat(parts(data, purpose), 2)
            source = torch.cat([pooled.train, pooled.test])
            assert torch.equal(whole, source[data.labels[purpose]])

    def test_the_choice_is_the_seeds(self) -> None:
        first, again, other = (
            cut(images(records=40), validation=0.5, stream=Stream.from_seed(seed)).labels
            for seed in (1, 1, 2)
        )
        for purpose in ("validation", "train"):
            assert first[purpose].tolist() == again[purpose].tolist()
        assert first["validation"].tolist() != other["validation"].tolist()

        # A limit beyond the records changes nothing.
        all_, limited = (cut(images(), validation=0.3, limit=limit) for limit in (None, 10**6))
        assert all_.labels["train"].tolist() == limited.labels["train"].tolist()

    def test_all_parties_hold_the_same_records_in_the_same_order(self) -> None:
        data = cut(table(4, records=20), "even", 4, validation=0.25)
        records = [(piece[:, 0] // 4).long().tolist() for piece in parts(data)]
        assert records == [data.labels["train"].tolist()] * 4


def test_texts_are_cut_into_segments() -> None:
    data = cut(texts())
    assert data.parties == ("party0",)
    assert torch.equal(parts(data)[0], texts().train)
    assert parts(data)[0].dtype == torch.int32
    data = cut(texts(8), parties=3)
    assert [data.shape(party) for party in range(3)] == [(2,), (2,), (4,)]
    assert torch.equal(torch.cat(parts(data), 1), texts(8).train)
    assert torch.equal(torch.cat(parts(data, "test"), 1), texts(8).test)


def test_fewer_parties_than_views_hold_several_as_channels() -> None:
    data = cut(photographs())
    assert len(data.parties) == 6
    for view, piece in enumerate(parts(data)):
        assert torch.equal(piece, photographs().train[:, view])
    for channels in ([6], [2, 2, 2], [1, 1, 1, 3], [1] * 6):
        data = cut(photographs(), parties=len(channels), validation=0.3)
        shapes = [data.shape(party) for party in range(len(channels))]
        assert shapes == [(count, 2, 3) for count in channels]
        whole = photographs().train.flatten(1, 2)[data.labels["train"]]
        assert torch.equal(torch.cat(parts(data), 1), whole)
    pieces = parts(cut(photographs(), "even", 2))
    assert torch.equal(torch.cat(pieces, 1), photographs().train.flatten(1))


class TestLabelHolder:
    def test_a_party_of_images(self) -> None:
        data = cut(images(8, 4), parties=4, validation=0.3, label_holder="party2")
        whole = cut(images(8, 4), parties=4, validation=0.3)
        assert data.parties == ("party0", "party1", "party3")
        assert data.own.name == "party2"
        assert whole.own is None
        for purpose in ("train", "validation", "test"):
            own, *others = (whole.features[party][purpose] for party in (2, 0, 1, 3))
            assert torch.equal(data.own.values[purpose], own)
            for ours, theirs in zip(parts(data, purpose), others, strict=True):
                assert torch.equal(ours, theirs)

    def test_a_party_by_name(self) -> None:
        data = cut(table(6), label_holder="even")
        assert data.parties == ("odd",)
        assert data.own.name == "even"
        words = ["data.label_holder is 'evn'", "did you mean 'even'?"]
        refuse(words, table(6), label_holder="evn")
        refuse(["'odd', 'even'"], table(6), label_holder="7")
        refuse(["leaves no client"], table(6), parties=1, label_holder="party0")


class TestLabels:
    def regression(self, labels: Tensor) -> Pooled:
        return replace(table(), task=Regression(), train_labels=labels[:9], test_labels=labels[9:])

    def test_a_regression_is_scaled_by_the_labels_trained_on(self) -> None:
        labels = torch.arange(12.0) * 1000
        data = cut(self.regression(labels), validation=0.3)
        used = data.labels["train"].double()
        assert isinstance(data.task, Regression)
        assert data.task.mean == pytest.approx(used.mean().item())
        assert data.task.spread == pytest.approx(used.std(unbiased=False).item())
        assert data.fitted_labels
        torch.testing.assert_close(data.labels["test"], labels[9:])
        task = cut(self.regression(torch.full((12,), 3.0))).task
        assert isinstance(task, Regression)
        assert (task.mean, task.spread) == (3, 1)
        refuse(["data.validation is 0.99"], self.regression(torch.ones(12)), validation=0.99)

    def test_public_bounds(self) -> None:
        data = cut(self.regression(torch.arange(12.0)), label_range=[10, 30])
        assert isinstance(data.task, Regression)
        assert (data.task.mean, data.task.spread) == (20, 10)
        assert not data.fitted_labels
        assert not cut(table()).fitted_labels
        refuse(["data.label_range"], table(), label_range=[0, 1])  # classes have none
        refuse(["data.loss is 'huber'", "no regression"], table(), loss="huber")
        # Neither for columns that are prepared already.
        refuse(["data.ranges"], table(), ranges={"c0": [0, 1]})
        refuse(["data.categories"], images(), categories={"c0": ["a"]})
