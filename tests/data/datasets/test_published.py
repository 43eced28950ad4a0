"""Adult, Bank Marketing and Credit Default: small files of their form, and the real ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from vertizo.core.errors import ConfigError, DataError
from vertizo.core.randomness import Stream
from vertizo.data.datasets import catalog, published
from vertizo.data.options import DataConfig
from vertizo.data.pooled import Pooled
from vertizo.data.prepare import prepare
from vertizo.data.vertical import VerticalData

PERSON = "39, State-gov, 7, Bachelors, 13, Never-married, ?, Husband, White, Male, 0, 0, 40, Cuba, "


def load(name: str, root: Path, **more: Any) -> Pooled:
    return catalog.load(name, root, DataConfig(name=name, **more))


def prepared(name: str, root: Path, **more: Any) -> VerticalData:
    return prepare(DataConfig(name=name, root=root, **more), Stream.from_seed(0))


def adult(root: Path, train: str | None = None, test: str | None = None) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    (root / "adult.data").write_text(train or f"{PERSON}<=50K\n{PERSON}>50K\n{PERSON}>50K\n\n")
    lines = f"|1x3 Cross validator\n{PERSON}<=50K.\n{PERSON}>50K.\n\n"
    (root / "adult.test").write_text(test or lines)
    return root


class TestAdult:
    def test_small_files(self, tmp_path: Path) -> None:
        for inner in ("adult", "."):
            root = tmp_path / f"in {inner}"
            adult(root / inner)
            pooled = load("adult", root)
            assert (pooled.train.shape, pooled.test.shape) == ((3, 14), (2, 14))
            assert pooled.class_names == ("<=50K", ">50K")
            assert pooled.train_labels.tolist() == [0, 1, 1]
            assert pooled.test_labels.tolist() == [0, 1]
            assert pooled.levels["occupation"] == ()
            assert pooled.levels["native-country"] == ("Cuba",)
            data = prepared("adult", root, validation=0)
            assert data.parties == ("demographics", "work", "finances")

    def test_a_line_with_too_few_values(self, tmp_path: Path) -> None:
        for part, text, line in (
            ("train", f"{PERSON}<=50K\n39, State-gov\n", r"adult\.data.* line 2"),
            ("test", f"|1x3\n{PERSON}<=50K.\n39, State-gov\n", r"adult\.test.* line 3"),
        ):
            with pytest.raises(DataError, match=f"{line} has 2 values where 15"):
                load("adult", adult(tmp_path, **{part: text}))

        # Dropped columns leave their party.
        adult(tmp_path)
        gone = ["capital-gain", "capital-loss", "fnlwgt"]
        data = prepared("adult", tmp_path, validation=0, drop=gone)
        assert data.parties == ("demographics", "work")
        assert data.shape(0) == (6,)


class TestBankMarketing:
    def files(self, root: Path) -> Path:
        columns = [*published.BANK_PARTIES["client"], "contact", "month", "day_of_week", "duration"]
        columns += [*published.BANK_PARTIES["contact"][3:], *published.BANK_PARTIES["economy"], "y"]
        rows = [";".join(f'"{column}"' for column in columns)]
        for i in range(10):
            rows.append(";".join([*(str(i) for _ in columns[:-1]), '"no"' if i % 2 else '"yes"']))
        (root / "bank-additional-full.csv").write_bytes("\r\n".join(rows).encode() + b"\r\n")
        return root

    def test_the_length_of_the_call_is_left_out(self, tmp_path: Path) -> None:
        pooled = load("bank-marketing", self.files(tmp_path))
        assert "duration" not in pooled.columns
        assert len(pooled.columns) == 19
        assert pooled.train.shape == (8, 19)
        assert pooled.class_names == ("no", "yes")
        assert load("bank-marketing", tmp_path, test=0.5).train.shape == (5, 19)
        assert load("bank-marketing", tmp_path, drop=["duration"]).train.shape == (8, 19)

        # Unless somebody asks for it.
        columns = {"a": ["duration"], "b": ["age"]}
        data = prepared("bank-marketing", self.files(tmp_path), columns=columns)
        assert data.shape(0) == (1,)
        # Another file of that name.
        (tmp_path / "bank-additional-full.csv").write_text("age;y\n1;no\n")
        with pytest.raises(DataError, match="does not have the column 'duration'"):
            load("bank-marketing", tmp_path)


class TestCreditDefault:
    def test_small_file(self, tmp_path: Path) -> None:
        columns = ["ID", *(c for wanted in published.CREDIT_PARTIES.values() for c in wanted)]
        rows = [",".join([*columns, "default.payment.next.month"])]
        rows += [",".join(str(i % 5) for _ in columns) + f",{i % 2}" for i in range(10)]
        (tmp_path / "credit-default.csv").write_text("\n".join(rows))
        pooled = load("credit-default", tmp_path)
        assert pooled.columns == tuple(columns[1:])
        assert set(pooled.levels) == {"SEX", "EDUCATION", "MARRIAGE"}
        with pytest.raises(ConfigError, match=r"data.drop .*'AEG'.*did you mean 'AGE'"):
            load("credit-default", tmp_path, drop=["AEG"])


@pytest.mark.full
def test_the_published_files() -> None:
    root, seen = Path(os.environ.get("VERTIZO_DATA", "nowhere")), 0
    for name, train, test, ones, columns, parties in (
        ("adult", 32561, 16281, 7841 + 3846, 14, ["demographics", "work", "finances"]),
        ("bank-marketing", 32950, 8238, 4640, 19, ["client", "contact", "economy"]),
        ("credit-default", 24000, 6000, 6636, 23, ["demographics", "bills", "payments"]),
    ):
        if not (root / name).is_dir():
            continue
        seen += 1
        pooled = load(name, root)
        assert pooled.train.shape == (train, columns)
        assert pooled.test.shape == (test, columns)
        assert int(pooled.train_labels.sum() + pooled.test_labels.sum()) == ones
        assert list(pooled.groups) == parties
        held = sorted(column for wanted in pooled.groups.values() for column in wanted)
        assert held == sorted(pooled.columns or ())
        for own in prepared(name, root).features:
            for values in own.values():
                assert values.dtype == torch.float32
                assert torch.isfinite(values).all()
        shares = [labels.float().mean() for labels in (pooled.test_labels, pooled.train_labels)]
        assert abs(float(shares[0] - shares[1])) < 0.01
    if not seen:
        pytest.skip("VERTIZO_DATA has none of them")
