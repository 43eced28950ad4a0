"""Tokenisers: texts to integers [records, length], 0 padding behind the text's end.

There are two kinds: ``hash`` turns words into numbers by a hash and needs nothing else; any other
name, such as ``minilm``, is a checkpoint whose own tokenizer is used (extra ``text``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertizo.core.errors import ConfigError
from vertizo.models.architectures import text

HASH = "hash"
CHUNK = 1000
"""Texts that a checkpoint's tokenizer gets at a time; it works on all cores."""
CHARACTERS = 6
"""Characters of a text that are read for each token wanted; most tokens have fewer."""
_WORD = re.compile(r"\w+|[^\w\s]")

Encode = Callable[[Sequence[str]], Tensor]


def encoder(tokenizer: str, length: int, vocabulary: int, key: str = "data.tokenizer") -> Encode:
    """Make a function of texts to int32 [texts, length], cut off or padded with 0.

    The tokenizer is ``hash``, or a checkpoint as `vertizo.models.architectures.text.Spec` names it;
    ``key`` is the configuration's key for it. The vocabulary, different tokens with 0 included, is
    for ``hash``; a checkpoint has its own. ConfigError where there is no such tokenizer, or what it
    needs is missing.
    """
    if tokenizer == HASH:
        if vocabulary < 2:
            raise ConfigError(f"data.vocabulary is {vocabulary}; hashed words need at least 2")
        return lambda texts: hashed(texts, length, vocabulary)
    found = _checkpoint(tokenizer, key)
    return lambda texts: _encoded(found, texts, length)


def hashed(texts: Sequence[str], length: int, vocabulary: int) -> Tensor:
    """Hash words and punctuation marks, in lower case, to numbers from 1 to vocabulary − 1.

    The same word has the same number on every machine. Words that share one cannot be told apart.
    """

    @cache
    def number(word: str) -> int:
        digest = blake2b(word.encode(), digest_size=8).digest()
        return 1 + int.from_bytes(digest, "little") % (vocabulary - 1)

    tokens = np.zeros((len(texts), length), np.int32)
    for row, string in zip(tokens, texts, strict=True):
        words = _WORD.findall(string.lower())[:length]
        row[: len(words)] = [number(word) for word in words]
    return torch.from_numpy(tokens)


def _checkpoint(name: str, key: str) -> Any:
    """Load the fast tokenizer of a checkpoint; ConfigError where it has none."""
    try:
        library = text.transformers()
        if name == text.RANDOM:
            raise ConfigError("a random model has no tokenizer; use 'hash'")
        place = text.resolve(name)
        if not (Path(place) / "tokenizer.json").is_file():
            with text.quiet(library):
                try:
                    found = library.AutoTokenizer.from_pretrained(place, local_files_only=True)
                except (OSError, ValueError):
                    raise ConfigError(text.missing(name)) from None
            if not found.is_fast or found.pad_token_id != 0:
                raise ConfigError(
                    f"checkpoint {name!r} has no fast tokenizer that pads with 0; "
                    "use one of BERT or DistilBERT"
                )
            return found.backend_tokenizer
    except ConfigError as error:
        raise ConfigError(f"{key} is {name!r}: {error}") from None
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(Path(place) / "tokenizer.json"))


def _encoded(tokenizer: Any, texts: Sequence[str], length: int) -> Tensor:
    """Encode by a tokenizer written in Rust; its marks of beginning and end count as tokens.

    It would read whole texts and then cut them off. So it gets their beginnings first, and the
    whole of those few whose beginning had too few tokens.
    """
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length, pad_id=0)
    most = CHARACTERS * length
    tokens = _in_chunks(tokenizer, [_beginning(text, most) for text in texts], length)
    cut = np.array([len(text) > most for text in texts], bool)
    again = np.flatnonzero(cut & (tokens[:, -1] == 0))
    tokens[again] = _in_chunks(tokenizer, [texts[int(index)] for index in again], length)
    return torch.from_numpy(tokens)


def _beginning(text: str, size: int) -> str:
    """The beginning of a text: at most so many characters, cut between words."""
    return text if len(text) <= size else text[: size + 1].rpartition(" ")[0]


def _in_chunks(tokenizer: Any, texts: Sequence[str], length: int) -> NDArray[np.int32]:
    tokens = np.empty((len(texts), length), np.int32)
    for start in range(0, len(texts), CHUNK):
        part = tokenizer.encode_batch_fast(texts[start : start + CHUNK])
        tokens[start : start + CHUNK] = [one.ids for one in part]
    return tokens
