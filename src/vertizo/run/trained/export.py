"""Exports of a finished run's models, as ``state_dict`` or as ONNX, a file for each party.

A client's model takes its prepared features [batch, …] and gives embeddings; the server's takes the
joined embeddings, with the label holder's own prepared features behind them, and gives logits (of a
regression, the scaled value). Names in a ``state_dict`` are the module's own; what
`client.pretrain` makes is ``front.`` and the model behind it ``model.``; a server with columns of
its own is ``top.`` and ``encoder.``.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from vertizo.core.errors import ConfigError, RunError
from vertizo.core.text.suggestions import nearest
from vertizo.models.base import Model
from vertizo.models.encoded import EncodedModel
from vertizo.models.linear.linear_stack import LinearStack
from vertizo.models.parts import first_line
from vertizo.models.pretrained import Pretrained
from vertizo.models.torch import TorchModel
from vertizo.run.results import checkpoint
from vertizo.run.trained.prediction import Predictor

SERVER = "server"
Format = Literal["torch", "onnx"]
ENDINGS: dict[Format, str] = {"torch": ".pt", "onnx": ".onnx"}


@dataclass(frozen=True)
class Part:
    """One party's trained model, and example rows for it."""

    name: str
    module: nn.Module
    example: Tensor
    """Two rows that the model takes, [2, …]."""


class Encoded(nn.Module):
    """A server model with an encoder of the label holder's own features, as one module."""

    def __init__(self, model: EncodedModel) -> None:
        super().__init__()
        self.top, self.encoder = map(module_of, model.parts)
        self._width, self._shape, self._dtype = model.layout

    def forward(self, rows: Tensor) -> Tensor:
        """Joined embeddings and own features, [batch, numbers], to logits."""
        own = rows[:, self._width :].reshape(-1, *self._shape).to(self._dtype)
        encoded = self.encoder(own).flatten(1)
        found: Tensor = self.top(torch.cat([rows[:, : self._width], encoded], 1))
        return found


def module_of(model: Model) -> nn.Module:
    """A model as a PyTorch module in evaluation mode; ConfigError for a plain function."""
    if isinstance(model, TorchModel | LinearStack) and model.module is not None:
        return model.module.eval()
    if isinstance(model, Pretrained):
        front, behind = model.parts
        return nn.Sequential(OrderedDict(front=front, model=module_of(behind))).eval()
    if isinstance(model, EncodedModel):
        return Encoded(model).eval()
    raise ConfigError("is a plain function and no module; its parameters are in the checkpoint")


def parts_of(run: Path, names: Sequence[str] = ()) -> list[Part]:
    """The models of a finished run: of all parties, or of those named.

    The server's is called ``server``, or by the name of the label holder's own columns.

    Raises:
        UserError: the run is unfinished, a name is unknown, or a model is no module.
    """
    predictor = Predictor.load(run)
    federation = predictor.parties()
    data, server = federation.data, federation.server.side
    if SERVER in data.parties:
        raise ConfigError(f"{run} has a client called {SERVER!r}, which is the label holder's file")
    untrained = predictor.config.is_label_free  # what predicts is a raw head, which stays
    known = data.parties if untrained else (*data.parties, SERVER)
    holder = None if data.own is None else data.own.name
    names = [SERVER if name == holder else name for name in names]
    for one, other in combinations(known, 2):
        if file_name(one) == file_name(other) and not {one, other}.isdisjoint(names or known):
            raise ConfigError(f"{run} has clients {one!r} and {other!r}, whose files are the same")
    for name in names:
        if name not in known:
            hint = nearest(name, known) or f"; there are {', '.join(known)}"
            raise ConfigError(f"--party {name} is none of the parties{hint}")
    model = server.model.model
    numbers = server.table.width
    if isinstance(model, EncodedModel):
        numbers = model.layout[0] + torch.Size(model.layout[1]).numel()
    rows = torch.zeros(2, numbers)
    found: list[Part] = []
    for place, name in enumerate(known):
        if names and name not in names:
            continue
        is_server = name == SERVER
        model = server.model.model if is_server else federation.models[place]
        example = rows if is_server else data.features[place]["train"][:2]
        try:
            found.append(Part(name, module_of(model), example))
        except ConfigError as error:
            raise ConfigError(f"the model of {name} {error}; name others with --party") from None
    return found


def export(part: Part, folder: Path, form: Format) -> Path:
    """Write one model into an existing folder; return the file's path.

    Raises:
        ConfigError: a package is missing.
        RunError: PyTorch cannot write this model as ONNX, or the file cannot be written.
    """
    path = folder / f"{file_name(part.name)}{ENDINGS[form]}"
    with checkpoint.writing(path):
        if form == "torch":
            written = io.BytesIO()
            torch.save(part.module.state_dict(), written)
            checkpoint.write_atomically(path, written.getvalue())
        else:
            begun = path.with_name(f".{path.name}.new")
            try:
                _onnx(part, begun)
                begun.replace(path)
            finally:
                begun.unlink(missing_ok=True)
    return path


def file_name(party: str) -> str:
    """The name of a party's file, without its ending."""
    return party.replace("/", "_").lstrip(".") or "_"


def _onnx(part: Part, path: Path) -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise ConfigError(
            "--format onnx needs packages that are not here; pip install 'vertizo[onnx]'"
        ) from None
    try:
        with _quiet(), torch.no_grad():
            torch.onnx.export(
                part.module,
                (part.example,),
                str(path),
                input_names=["rows"],
                output_names=["logits" if part.name == SERVER else "embeddings"],
                dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    except OSError:
        raise
    except Exception as error:
        reason: BaseException = error
        while reason.__cause__ is not None:
            reason = reason.__cause__
        raise RunError(
            f"the model of {part.name} cannot be written as ONNX ({first_line(reason)}); use "
            "--format torch"
        ) from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence logs and warnings of PyTorch's exporter, whose errors say what matters."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
