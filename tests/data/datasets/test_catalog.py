"""The named data sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from torch import Tensor

from vertizo.core.errors import ConfigError, DataError
from vertizo.core.randomness import Stream
from vertizo.data.datasets import catalog, idx
from vertizo.data.options import DataConfig
from vertizo.data.prepare import prepare
from vertizo.models.losses import Classification, Regression


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
def no_mirrors() -> Iterator[None]:
    """Both published sets without a place to download them from."""
    sets = (idx.MNIST, idx.FASHION_MNIST)
    before = [files.mirrors for files in sets]
    for files in sets:
        object.__setattr__(files, "mirrors", ())
    yield
    for files, mirrors in zip(sets, before, strict=True):
        object.__setattr__(files, "mirrors", mirrors)


class TestDigits:
    def test_counts_shapes_and_kinds(self) -> None:
        pooled = catalog.load("digits")
        assert pooled.name == "digits"
        assert pooled.train.shape == (1438, 1, 8, 8)
        assert pooled.test.shape == (359, 1, 8, 8)
        assert pooled.train_labels.shape == (1438,)
        assert pooled.test_labels.shape == (359,)
        assert pooled.train.dtype == pooled.test.dtype == torch.float32
        assert pooled.train_labels.dtype == pooled.test_labels.dtype == torch.int64
        assert isinstance(pooled.task, Classification)
        assert pooled.task.outputs == 10
        assert pooled.columns is None
        assert not pooled.fitted_scaling
        assert set(pooled.test_labels.tolist()) == set(range(10))

    def test_training_and_test_records_together_are_the_whole_set_once(self) -> None:
        pooled = catalog.load("digits")
        whole = torch.from_numpy(load_digits().images / 16).float().unsqueeze(1)
        assert rows(pooled.train, pooled.test) == rows(whole)
        assert not rows(pooled.train) & rows(pooled.test)

    def test_labels_belong_to_their_records(self) -> None:
        pooled, bunch = catalog.load("digits"), load_digits()
        label_of = {
            image.astype(np.float32).tobytes(): label
            for image, label in zip(bunch.images / 16, bunch.target, strict=True)
        }
        for images, labels in (
            (pooled.train, pooled.train_labels),
            (pooled.test, pooled.test_labels),
        ):
            found = [label_of[image.numpy().tobytes()] for image in images]
            assert found == labels.tolist()


class TestBreastCancer:
    def test_counts_shapes_and_kinds(self) -> None:
        pooled = catalog.load("breast-cancer")
        assert pooled.train.shape == (456, 30)
        assert pooled.test.shape == (113, 30)
        assert pooled.levels == {}
        assert pooled.task.outputs == 2
        assert set(pooled.train_labels.tolist()) == set(pooled.test_labels.tolist()) == {0, 1}

    def test_groups_are_the_thirty_columns_once(self) -> None:
        pooled = catalog.load("breast-cancer")
        assert pooled.columns == tuple(load_breast_cancer().feature_names)
        assert pooled.groups is not None
        assert list(pooled.groups) == ["mean", "error", "worst"]
        assert [name for group in pooled.groups.values() for name in group] == list(pooled.columns)
        for group, names in pooled.groups.items():
            assert all(group in name for name in names)

    def test_the_classes_are_those_of_scikit_learn(self) -> None:
        pooled = catalog.load("breast-cancer")
        assert pooled.class_names == ("malignant", "benign")
        test = np.arange(569) % 5 == 4
        assert pooled.test_labels.tolist() == load_breast_cancer().target[test].tolist()

    def test_only_training_rows_that_are_not_for_validation_scale(self) -> None:
        values = load_breast_cancer().data
        test = np.arange(569) % 5 == 4
        pooled = catalog.load("breast-cancer")
        assert torch.equal(pooled.train, torch.from_numpy(values[~test]))
        data = prepare(DataConfig(name="breast-cancer"), Stream.from_seed(0))
        assert data.records == 410
        assert data.fitted == ("mean", "error", "worst")
        for party, own in enumerate(data.features):
            columns = slice(10 * party, 10 * party + 10)
            torch.testing.assert_close(own["table"].mean(0), torch.zeros(10), atol=1e-4, rtol=0)
            torch.testing.assert_close(
                own["table"].std(0, unbiased=False), torch.ones(10), atol=1e-4, rtol=0
            )
            raw = torch.from_numpy(values[test][:, columns])
            slope = (own["test"][1] - own["test"][0]) / (raw[1] - raw[0])
            expected = (raw - raw[0]) * slope + own["test"][0]
            torch.testing.assert_close(own["test"], expected.float(), atol=1e-3, rtol=1e-3)


class TestDiabetes:
    def test_counts_and_kinds(self) -> None:
        pooled = catalog.load("diabetes")
        assert pooled.train.shape == (354, 10)
        assert pooled.test.shape == (88, 10)
        assert isinstance(pooled.task, Regression)
        assert pooled.class_names is None
        whole = torch.cat([pooled.train_labels, pooled.test_labels])
        assert sorted(whole.tolist()) == sorted(load_diabetes().target.tolist())


class TestIdxSets:
    @pytest.mark.parametrize(
        ("name", "mean", "spread"),
        [("mnist", 0.1307, 0.3081), ("fashion-mnist", 0.286, 0.353)],
    )
    @pytest.mark.parametrize("packed", [True, False])
    @pytest.mark.parametrize("inner", [True, False])
    def test_small_files_of_that_kind(
        self,
        name: str,
        mean: float,
        spread: float,
        packed: bool,
        inner: bool,
        tmp_path: Path,
        put: Callable[..., Path],
        plain: dict[str, bytes],
    ) -> None:
        put(tmp_path / name if inner else tmp_path, packed=packed)
        pooled = catalog.load(name, tmp_path)
        assert pooled.name == name
        assert pooled.train.shape == (7, 1, 28, 28)
        assert pooled.test.shape == (3, 1, 28, 28)
        assert pooled.task.outputs == 10
        pixels = np.frombuffer(plain["t10k-images-idx3-ubyte"], np.uint8, offset=16)
        expected = torch.from_numpy((pixels / 255 - mean) / spread).float().reshape(3, 1, 28, 28)
        torch.testing.assert_close(pooled.test, expected)
        assert pooled.train_labels.tolist() == list(plain["train-labels-idx1-ubyte"][8:])
        assert pooled.test_labels.tolist() == list(plain["t10k-labels-idx1-ubyte"][8:])

    def test_the_root_goes_before_the_variable(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        put: Callable[..., Path],
        idx_bytes: Callable[[Any], bytes],
    ) -> None:
        nines = idx_bytes(np.full(7, 9, np.uint8))
        put(tmp_path / "by root", **{"train-labels-idx1-ubyte": nines})
        put(tmp_path / "by variable", **{"train-labels-idx1-ubyte": idx_bytes(np.zeros(7, "u1"))})
        monkeypatch.setenv("VERTIZO_DATA", str(tmp_path / "by variable"))
        assert catalog.load("mnist", tmp_path / "by root").train_labels.tolist() == [9] * 7
        assert catalog.load("mnist").train_labels.tolist() == [0] * 7

    def test_the_cache_is_the_last_resort(
        self, no_mirrors: None, tmp_path: Path, put: Callable[..., Path]
    ) -> None:
        put(tmp_path / "cache" / "vertizo" / "mnist")
        assert catalog.load("mnist").train.shape[0] == 7

    def test_an_empty_cache_variable_means_the_home_folder(
        self,
        no_mirrors: None,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        put: Callable[..., Path],
    ) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", "")
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.chdir(tmp_path)
        put(tmp_path / ".cache" / "vertizo" / "mnist")
        assert catalog.load("mnist").train.shape[0] == 7

    def test_without_files_and_mirrors_one_line_says_what_to_do(
        self, no_mirrors: None, tmp_path: Path
    ) -> None:
        root = tmp_path / "root"
        root.mkdir()
        with pytest.raises(DataError) as caught:
            catalog.load("mnist", root)
        text = str(caught.value)
        assert "\n" not in text
        for word in ("train-images-idx3-ubyte.gz", str(root / "mnist"), "VERTIZO_DATA"):
            assert word in text
        assert list(root.iterdir()) == []

    def test_images_and_labels_of_different_numbers_are_refused(
        self, tmp_path: Path, put: Callable[..., Path], idx_bytes: Callable[[Any], bytes]
    ) -> None:
        put(tmp_path, **{"train-labels-idx1-ubyte": idx_bytes(np.zeros(6, np.uint8))})
        with pytest.raises(DataError, match="differ in number") as caught:
            catalog.load("mnist", tmp_path)
        assert str(tmp_path) in str(caught.value)

    @pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
    def test_a_file_of_another_kind_under_that_name_is_refused(
        self, name: str, tmp_path: Path, put: Callable[..., Path], plain: dict[str, bytes]
    ) -> None:
        """Images where labels belong, or labels where images belong: the magic number is wrong."""
        other = name.replace("images-idx3", "labels-idx1")
        if other == name:
            other = name.replace("labels-idx1", "images-idx3")
        put(tmp_path, **{name: plain[other]})
        with pytest.raises(DataError) as caught:
            catalog.load("mnist", tmp_path)
        assert str(tmp_path / f"{name}.gz") in str(caught.value)

    def test_labels_beyond_the_classes_are_refused(
        self, tmp_path: Path, put: Callable[..., Path], idx_bytes: Callable[[Any], bytes]
    ) -> None:
        letters = idx_bytes(np.full(7, 26, np.uint8))
        put(tmp_path, **{"train-labels-idx1-ubyte": letters})
        with pytest.raises(DataError) as caught:
            catalog.load("mnist", tmp_path)
        assert "26" in str(caught.value)
        assert str(tmp_path / "train-labels-idx1-ubyte.gz") in str(caught.value)

    @pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
    def test_the_published_files(
        self, name: str, mnist_root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if not (mnist_root / name).is_dir():
            pytest.skip(f"VERTIZO_DATA has no {name}")
        pooled = catalog.load(name, mnist_root)
        assert pooled.train.shape == (60000, 1, 28, 28)
        assert pooled.test.shape == (10000, 1, 28, 28)
        counts = torch.bincount(pooled.test_labels)
        assert counts.numel() == 10
        assert int(counts.sum()) == 10000
        if name == "mnist":
            assert counts.tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
            assert pooled.train_labels[:5].tolist() == [5, 0, 4, 1, 9]
        else:
            assert counts.tolist() == [1000] * 10
        assert abs(float(pooled.train.mean())) < 1e-3
        assert abs(float(pooled.train.std()) - 1) < 1e-3


class TestNames:
    def test_an_unknown_name_lists_the_known_ones(self) -> None:
        with pytest.raises(ConfigError) as caught:
            catalog.load("mnits")
        for word in ("data.name", "'mnits'", *catalog.CATALOG):
            assert word in str(caught.value)

    @pytest.mark.parametrize("name", ["digits", "mnist"])
    def test_a_root_that_is_no_folder_is_named(self, name: str, tmp_path: Path) -> None:
        with pytest.raises(DataError) as caught:
            catalog.load(name, tmp_path / "nowhere")
        assert "data.root" in str(caught.value)
        assert str(tmp_path / "nowhere") in str(caught.value)

    def test_a_variable_that_names_no_folder_is_named_itself(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("VERTIZO_DATA", str(tmp_path / "nowhere"))
        with pytest.raises(DataError) as caught:
            catalog.load("mnist")
        assert "VERTIZO_DATA" in str(caught.value)
        assert str(tmp_path / "nowhere") in str(caught.value)

    @pytest.mark.parametrize("name", ["digits", "diabetes", "adult", "mnist"])
    def test_a_share_for_testing_where_there_is_one_already(self, name: str) -> None:
        with pytest.raises(ConfigError, match=rf"data.test is 0.3 but {name} has test records"):
            catalog.load(name, None, DataConfig(name=name, test=0.3))

    def test_a_table_needs_its_file(self) -> None:
        with pytest.raises(ConfigError, match=r"data\.path and data\.label"):
            catalog.load("table")

    @pytest.mark.parametrize(
        "name", ["adult", "bank-marketing", "credit-default", "cifar-10", "modelnet10"]
    )
    def test_files_that_are_nowhere(self, name: str, tmp_path: Path) -> None:
        with pytest.raises(DataError) as caught:
            catalog.load(name, tmp_path)
        text = str(caught.value)
        assert "\n" not in text
        for word in (name, str(tmp_path), "VERTIZO_DATA", "data.root"):
            assert word in text

    def test_every_entry_says_what_it_is(self) -> None:
        for entry in catalog.CATALOG.values():
            assert entry.summary
            assert "\n" not in entry.summary
