"""The named data sets."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.data.datasets.idx_files import PLAIN, encoded, put
from tests.data.refusals import refused
from tests.lazy import Lazy
from torch import Tensor

from vertizo.core.errors import ConfigError, DataError
from vertizo.core.randomness import Stream
from vertizo.data.datasets import catalog
from vertizo.data.options import DataConfig
from vertizo.data.prepare import prepare
from vertizo.models.losses import Regression

sklearn_datasets = Lazy("sklearn.datasets")


def rows(*parts: Tensor) -> Counter[bytes]:
    """Records as bytes, counted."""
    return Counter(row.numpy().tobytes() for part in parts for row in part)


@pytest.fixture(autouse=True)
def no_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No VERTIZO_DATA, and a cache of the test's own."""
    monkeypatch.delenv("VERTIZO_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def no_mirrors(monkeypatch: pytest.MonkeyPatch) -> None:
    """No place to download published sets from."""

    def nobody(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr("urllib.request.urlopen", nobody)


def test_digits() -> None:
    pooled, bunch = catalog.load("digits"), sklearn_datasets.load_digits()
    assert pooled.name == "digits"
    assert pooled.train.shape == (1438, 1, 8, 8)
    assert pooled.test.shape == (359, 1, 8, 8)
    assert pooled.train.dtype == pooled.test.dtype == torch.float32
    assert pooled.train_labels.dtype == pooled.test_labels.dtype == torch.int64
    assert (pooled.task.outputs, pooled.columns, pooled.fitted_scaling) == (10, None, False)
    assert set(pooled.test_labels.tolist()) == set(range(10))
    # Training and test records together are the whole set once, and have their labels.
    whole = torch.from_numpy(bunch.images / 16).float().unsqueeze(1)
    assert rows(pooled.train, pooled.test) == rows(whole)
    assert not rows(pooled.train) & rows(pooled.test)
    label_of = {one.numpy().tobytes(): y for one, y in zip(whole, bunch.target, strict=True)}
    for images, labels in ((pooled.train, pooled.train_labels), (pooled.test, pooled.test_labels)):
        assert [label_of[image.numpy().tobytes()] for image in images] == labels.tolist()


class TestBreastCancer:
    def test_what_is_in_it(self) -> None:
        pooled, bunch = catalog.load("breast-cancer"), sklearn_datasets.load_breast_cancer()
        test = np.arange(569) % 5 == 4
        assert torch.equal(pooled.train, torch.from_numpy(bunch.data[~test]))
        assert pooled.train.shape == (456, 30)
        assert pooled.test.shape == (113, 30)
        assert pooled.levels == {}
        assert set(pooled.train_labels.tolist()) == {0, 1}
        assert (pooled.task.outputs, pooled.class_names) == (2, ("malignant", "benign"))
        assert pooled.test_labels.tolist() == bunch.target[test].tolist()
        assert pooled.columns == tuple(bunch.feature_names)
        assert list(pooled.groups) == ["mean", "error", "worst"]
        assert [name for group in pooled.groups.values() for name in group] == list(pooled.columns)
        assert all(group in name for group, names in pooled.groups.items() for name in names)

    def test_only_training_rows_that_are_not_for_validation_scale(self) -> None:
        test = np.arange(569) % 5 == 4
        values = torch.from_numpy(sklearn_datasets.load_breast_cancer().data[test])
        data = prepare(DataConfig(name="breast-cancer"), Stream.from_seed(0))
        assert data.records == 410
        assert data.fitted == ("mean", "error", "worst")
        for raw, own in zip(values.split(10, 1), data.features, strict=True):
            scaled = own["train"]
            torch.testing.assert_close(scaled.mean(0), torch.zeros(10), atol=1e-4, rtol=0)
            spread = scaled.std(0, unbiased=False)
            torch.testing.assert_close(spread, torch.ones(10), atol=1e-4, rtol=0)
            slope = (own["test"][1] - own["test"][0]) / (raw[1] - raw[0])
            expected = (raw - raw[0]) * slope + own["test"][0]
            torch.testing.assert_close(own["test"], expected.float(), atol=1e-3, rtol=1e-3)


def test_diabetes() -> None:
    pooled = catalog.load("diabetes")
    assert pooled.train.shape == (354, 10)
    assert pooled.test.shape == (88, 10)
    assert isinstance(pooled.task, Regression)
    assert pooled.class_names is None
    whole = torch.cat([pooled.train_labels, pooled.test_labels])
    assert sorted(whole.tolist()) == sorted(sklearn_datasets.load_diabetes().target.tolist())


class TestIdxSets:
    def test_small_files_of_that_kind(self, tmp_path: Path) -> None:
        pixels = np.frombuffer(PLAIN["t10k-images-idx3-ubyte"], np.uint8, offset=16)
        for name, mean, spread in (("mnist", 0.1307, 0.3081), ("fashion-mnist", 0.286, 0.353)):
            expected = torch.from_numpy((pixels / 255 - mean) / spread).float()
            for packed in (True, False):
                for inner in (name, "."):
                    root = tmp_path / f"{name} {packed} {inner}"
                    put(root / inner, packed=packed)
                    pooled = catalog.load(name, root)
                    assert pooled.name == name
                    assert pooled.train.shape == (7, 1, 28, 28)
                    torch.testing.assert_close(pooled.test, expected.reshape(3, 1, 28, 28))
                    assert pooled.task.outputs == 10
                    labels = [*PLAIN["train-labels-idx1-ubyte"][8:]]
                    assert pooled.train_labels.tolist() == labels
                    assert pooled.test_labels.tolist() == [*PLAIN["t10k-labels-idx1-ubyte"][8:]]

    def test_the_root_goes_before_the_variable(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for digit, folder in ((9, "by root"), (0, "by variable")):
            labels = encoded(np.full(7, digit, np.uint8))
            put(tmp_path / folder, **{"train-labels-idx1-ubyte": labels})
        monkeypatch.setenv("VERTIZO_DATA", str(tmp_path / "by variable"))
        assert catalog.load("mnist", tmp_path / "by root").train_labels.tolist() == [9] * 7
        assert catalog.load("mnist").train_labels.tolist() == [0] * 7

    def test_the_cache_is_the_last_resort(
        self, no_mirrors: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(tmp_path / "cache" / "vertizo" / "mnist")
        assert catalog.load("mnist").train.shape[0] == 7
        monkeypatch.setenv("XDG_CACHE_HOME", "")  # which means the home folder
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.chdir(tmp_path)
        with pytest.raises(DataError):
            catalog.load("mnist")
        put(tmp_path / ".cache" / "vertizo" / "mnist")
        assert catalog.load("mnist").train.shape[0] == 7

    def test_without_files_and_mirrors_one_line_says_what_to_do(
        self, no_mirrors: None, tmp_path: Path
    ) -> None:
        root = tmp_path / "root"
        root.mkdir()
        words = ["train-images-idx3-ubyte.gz", str(root / "mnist"), "VERTIZO_DATA"]
        refused(words, DataError, catalog.load, "mnist", root)
        assert list(root.iterdir()) == []

    def test_wrong_files_are_refused(self, tmp_path: Path) -> None:
        images, labels = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
        tests = "t10k-labels-idx1-ubyte"
        changes = [
            (labels, encoded(np.zeros(6, np.uint8)), "7 records but 6 labels"),
            # Images where labels belong, or labels where images belong: wrong in their sides.
            (images, PLAIN[labels], ""),
            (tests, PLAIN["t10k-images-idx3-ubyte"], ""),
            (labels, encoded(np.full(7, 26, np.uint8)), "26"),
        ]
        for number, (name, content, word) in enumerate(changes):
            root = put(tmp_path / str(number), **{name: content})
            refused([str(root / f"{name}.gz"), word], DataError, catalog.load, "mnist", root)

    @pytest.mark.full
    def test_the_published_files(self, mnist_root: Path) -> None:
        for name in ("mnist", "fashion-mnist"):
            if not (mnist_root / name).is_dir():
                continue  # the fixture has seen to it that MNIST is there
            pooled = catalog.load(name, mnist_root)
            assert pooled.train.shape == (60000, 1, 28, 28)
            assert pooled.test.shape == (10000, 1, 28, 28)
            counts = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
            if name == "mnist":
                assert pooled.train_labels[:5].tolist() == [5, 0, 4, 1, 9]
            else:
                counts = [1000] * 10
            assert torch.bincount(pooled.test_labels).tolist() == counts
            assert abs(float(pooled.train.mean())) < 1e-3
            assert abs(float(pooled.train.std()) - 1) < 1e-3


class TestNames:
    def test_an_unknown_name_lists_the_known_ones(self) -> None:
        refused(["data.name", "'mnits'", *catalog.CATALOG], ConfigError, catalog.load, "mnits")
        refused(["data.path and data.label"], ConfigError, catalog.load, "table")

    def test_a_root_that_is_no_folder_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        nowhere = tmp_path / "nowhere"
        for name in ("digits", "mnist"):
            refused(["data.root", str(nowhere)], DataError, catalog.load, name, nowhere)
        monkeypatch.setenv("VERTIZO_DATA", str(nowhere))
        refused(["VERTIZO_DATA", str(nowhere)], DataError, catalog.load, "mnist")

    def test_a_share_for_testing_where_there_is_one_already(self) -> None:
        for name in ("digits", "diabetes", "adult", "mnist"):
            options = DataConfig(name=name, test=0.3)
            words = [f"data.test is 0.3 but {name} has test records"]
            refused(words, ConfigError, catalog.load, name, None, options)

    def test_files_that_are_nowhere(self, tmp_path: Path) -> None:
        for name in ("adult", "bank-marketing", "credit-default", "cifar-10", "modelnet10"):
            words = [name, str(tmp_path), "VERTIZO_DATA", "data.root"]
            refused(words, DataError, catalog.load, name, tmp_path)

    def test_every_entry_says_what_it_is(self) -> None:
        for name, entry in catalog.CATALOG.items():
            assert entry.summary, name
            assert "\n" not in entry.summary, name


def test_fewer_test_records_are_the_same_for_every_run() -> None:
    whole = prepare(DataConfig(), Stream.from_seed(0))
    found = [prepare(DataConfig(test_limit=50), Stream.from_seed(seed)) for seed in (0, 1)]
    for data in found:
        assert data.labels["test"].numel() == 50
        assert data.features[0]["test"].shape[0] == 50
        assert torch.equal(data.labels["test"], found[0].labels["test"])
    assert found[0].records == whole.records
    assert len(found[0].labels["test"].unique()) > 5  # not one class of a sorted file
    more = prepare(DataConfig(test_limit=10**6), Stream.from_seed(0))
    assert torch.equal(more.labels["test"], whole.labels["test"])


def test_a_named_record_is_itself_without_a_column_and_coded_otherwise() -> None:
    """Or leaving out a column would make strangers of people that a ledger is charged for."""

    def keys(**changes: Any) -> list[str]:
        options = DataConfig(name="breast-cancer", **changes)
        return prepare(options, Stream.from_seed(0)).keys()

    people = keys()
    assert len(set(people)) == len(people)
    assert keys(drop=["mean radius"]) == people
    assert keys(categorical=["mean texture"], ranges={"mean area": [0.0, 3000.0]}) == people
