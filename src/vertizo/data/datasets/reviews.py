"""Loaders of reviews, positive or negative: IMDb and two small sets of Amazon's.

CSV files compressed by xz, with the columns label and text, perhaps title: IMDb (Maas et al. 2011)
with its own test half; the Multi-Domain Sentiment Dataset (Blitzer et al. 2007) and a part of
Amazon Review Polarity (Zhang et al. 2015), of which a share is set apart for testing.
"""

from __future__ import annotations

import csv
import html
import lzma
import re
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from vertizo.core.errors import DataError
from vertizo.data.datasets import files, tokens
from vertizo.data.options import DataConfig
from vertizo.data.pooled import Pooled
from vertizo.data.record_split import AT_RANDOM, Criterion, set_apart
from vertizo.models.losses import Classification

Reviews = tuple[list[str], list[int]]
"""Texts, and their labels: 1 for a positive one, 0 for a negative one."""

_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)


def imdb(root: Path | None, options: DataConfig) -> Pooled:
    """25,000 film reviews to train on and as many for testing.

    123 of the test texts are also in the training half, as in the original.
    """
    names = ["imdb-train.csv.xz", "imdb-test.csv.xz"]
    folder = files.folder_of("imdb", root, "imdb", names)
    train, test = (read(folder / name) for name in names)
    return _pooled("imdb", train, test, options)


def amazon(name: str, file: str) -> Callable[[Path | None, DataConfig], Pooled]:
    """Make the loader of one of the two Amazon files.

    The files are sorted by class, so test records are drawn; equal texts go to the same side.
    """

    def load(root: Path | None, options: DataConfig) -> Pooled:
        folder = files.folder_of(name, root, "amazon-reviews", [file])
        texts, labels = read(folder / file)
        different = list(dict.fromkeys(texts))
        by = AT_RANDOM
        if options.stratify:
            known = dict(zip(texts, labels, strict=True))
            by = Criterion(classes=torch.tensor([known[text] for text in different]))
        places = set_apart(len(different), options.test, by)[1].tolist()
        for_test = {different[place] for place in places}
        sides: tuple[Reviews, Reviews] = ([], []), ([], [])
        for text, label in zip(texts, labels, strict=True):
            side = sides[text in for_test]
            side[0].append(text)
            side[1].append(label)
        return _pooled(name, *sides, options)

    return load


amazon_domains = amazon("amazon-domains", "amazon-mds-8000.csv.xz")
amazon_polarity = amazon("amazon-polarity", "amazon-polarity-3204.csv.xz")


def read(file: Path) -> Reviews:
    """Read the reviews of one file, in its order.

    A title, where it is in a column of its own, comes first, as in Amazon Review Polarity.
    DataError names the file, and the review where there is one.
    """
    texts: list[str] = []
    labels: list[int] = []
    try:
        with lzma.open(file, "rt", encoding="utf-8", newline="") as stream:
            for number, row in enumerate(csv.DictReader(stream), 1):
                label, text, title = row.get("label"), row.get("text"), row.get("title")
                if label not in ("0", "1") or not text:
                    raise DataError(
                        f"{file}: review {number} has the label {label!r} and "
                        f"{'a' if text else 'no'} text; it must have 0 or 1, and a text"
                    )
                labels.append(int(label))
                texts.append(clean(f"{title}: {text}" if title else text))
    except (OSError, EOFError, lzma.LZMAError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or "damaged, or no CSV file compressed by xz"
        raise DataError(f"{file}: {reason}") from None
    if len(texts) < 2:
        raise DataError(f"{file}: {len(texts)} reviews; there must be at least 2")
    return texts, labels


def clean(text: str) -> str:
    """Clean a text: no HTML line breaks, characters for HTML entities, single spaces.

    >>> clean("Good.<br /><br />Really  &amp; truly &lt;3")
    'Good. Really & truly <3'
    """
    return " ".join(html.unescape(_BREAK.sub(" ", text)).split())


def _pooled(name: str, train: Reviews, test: Reviews, options: DataConfig) -> Pooled:
    key = "data.encoder" if options.tokenizer is None and options.encoder else "data.tokenizer"
    tokenizer = options.tokenizer or options.encoder or tokens.HASH
    encode = tokens.encoder(tokenizer, options.length, options.vocabulary, key)

    def half(texts: list[str], labels: list[int]) -> tuple[Tensor, Tensor]:
        return encode(texts), torch.tensor(labels)

    names = ("negative", "positive")
    return Pooled(name, *half(*train), *half(*test), Classification(2), class_names=names)
