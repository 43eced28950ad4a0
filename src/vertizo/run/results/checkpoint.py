"""Checkpoints: a state as one safetensors file, which is written whole or not at all.

A state is nested dicts and lists of tensors, bytes and plain values. Tensors and bytes become
tensors of the file, everything else JSON in its metadata; no pickle is involved.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors

from vertizo.core import digests, system
from vertizo.core.errors import RunError, UserError
from vertizo.core.plugins.lazy_import import torch
from vertizo.core.version import VERSION

if TYPE_CHECKING:
    from torch import Tensor

ADVICE = "continue with the version that wrote it, or begin anew in another folder"
FORMAT = "vertizo-1"
"""Key of the metadata that holds the JSON."""
WRITER = "vertizo"
"""Key of the metadata that names the version that wrote the file."""
NAMES = {
    "torch.float64": "F64",
    "torch.float32": "F32",
    "torch.float16": "F16",
    "torch.bfloat16": "BF16",
    "torch.int64": "I64",
    "torch.int32": "I32",
    "torch.int16": "I16",
    "torch.int8": "I8",
    "torch.uint8": "U8",
    "torch.bool": "BOOL",
}
"""PyTorch's dtype → its name in the safetensors format."""
Part = bytes | memoryview
Write = Callable[[Part], None]
SHARE = 0.05
"""Share of a run's time that checkpoints may take, at most."""


def save(path: Path, state: Any) -> None:
    """Write ``state``; a crash at any moment leaves the old file or the new one.

    Only its owner may read the file: states hold keys of noise, and numbers that reveal labels.
    Tensors are written from where they are, without a second copy. RunError if it cannot be
    written.
    """
    tensors: dict[str, Tensor] = {}
    skeleton = json.dumps(_pack(state, tensors))
    with _whole(path, 0o600, listed=True) as write:
        _write(write, tensors, {FORMAT: skeleton, WRITER: VERSION})


def _write(write: Write, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write the safetensors format: the header's length, the header, the tensors it places."""
    largest_first = sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize)  # to align
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for key, tensor in largest_first:
        start, end = end, end + tensor.numel() * tensor.dtype.itemsize
        header[key] = {
            "dtype": NAMES[str(tensor.dtype)],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    write(len(text).to_bytes(8, "little") + text)
    for _, tensor in largest_first:
        if tensor.numel():
            write(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def load(path: Path) -> Any:
    """The state of a file; RunError where there is no such file, or not what `save` wrote."""
    try:
        digests.check(path)
        with safetensors.safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise RunError(f"{path}: there is no such checkpoint") from None
    except (safetensors.SafetensorError, OSError) as error:
        raise RunError(f"{path}: not a readable checkpoint: {error}") from None
    if FORMAT not in metadata:
        other = next((key for key in metadata if key.startswith("vertizo-")), None)
        if other is None:
            raise RunError(f"{path}: not a checkpoint of the format {FORMAT}")
        raise RunError(
            f"{path} is of the format {other}, written by {_writer(metadata)}; this is vertizo "
            f"{VERSION}, which reads {FORMAT}: {ADVICE}"
        )
    try:
        return _unpack(json.loads(metadata[FORMAT]), tensors)
    except (json.JSONDecodeError, KeyError) as error:
        raise RunError(f"{path}: not a readable checkpoint: {error}") from None


def write_atomically(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Replace a file's content in one step that survives a power cut, or raise RunError.

    The umask takes some of the rights in ``mode`` away.
    """
    with _whole(path, mode) as write:
        write(content)


def keep(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write as `write_atomically` does, and list the file's digest in its folder."""
    with _whole(path, mode, listed=True) as write:
        write(content)


def kept(path: Path, advice: str = digests.ADVICE) -> bytes:
    """Read what `keep` wrote; RunError if it cannot be read or is damaged."""
    with reading(path):
        return digests.content(path, advice)


def kept_text(path: Path) -> str:
    """Read text that `keep` wrote; RunError if it cannot be read, is damaged or is no text."""
    try:
        return kept(path).decode()
    except UnicodeDecodeError as error:
        raise RunError(f"{path} cannot be read: {error}") from None


@contextmanager
def telling(words: str, advice: str = "") -> Iterator[None]:
    """Turn an OSError inside into a RunError: the words, the system's reason, the advice."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{words}: {error.strerror}{advice}") from None


def writing(path: Path) -> AbstractContextManager[None]:
    """Turn an OSError inside into a RunError that says that ``path`` cannot be written."""
    return telling(f"{path} cannot be written")


def reading(path: Path) -> AbstractContextManager[None]:
    """Turn an OSError inside into a RunError that says that ``path`` cannot be read."""
    return telling(f"{path} cannot be read")


@contextmanager
def going_on_from(path: Path) -> Iterator[None]:
    """Turn errors of restoring the state of ``path`` into a RunError with its likely cause."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # whatever it is that does not fit
        if (other := _other_writer(path)) is not None:
            raise RunError(
                f"{path} was written by {other}, and this is vertizo {VERSION}, which cannot go on "
                f"from it ({type(error).__name__} {error}): {ADVICE}"
            ) from None
        raise RunError(
            f"{path} is damaged, or of another version: {type(error).__name__} {error}; put a copy "
            "of it back, or begin anew in another folder"
        ) from None


def _writer(metadata: Mapping[str, str]) -> str:
    """The name of the version that wrote a file, for messages."""
    return f"vertizo {metadata[WRITER]}" if WRITER in metadata else "another vertizo"


def _other_writer(path: Path) -> str | None:
    """The name of the version that wrote a file, if it was another than this; else None."""
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
    except (safetensors.SafetensorError, OSError):
        return None
    return None if metadata.get(WRITER, VERSION) == VERSION else _writer(metadata)


@contextmanager
def _whole(path: Path, mode: int, *, listed: bool = False) -> Iterator[Write]:
    """Write a file that replaces ``path`` once it is on the disk; a failure leaves nothing.

    What has its temporary name already is removed, never written to: it may be left by a killed
    process, or be a link or an open file of somebody who waits for the content.
    """
    temporary = path.with_name(path.name + ".partial")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | system.NO_LINKS | system.CLOSED_ON_EXEC
    made = sha256()

    def write(part: Part) -> None:
        if listed:
            made.update(part)
        file.write(part)

    try:
        with writing(path):
            temporary.unlink(missing_ok=True)
            with os.fdopen(os.open(temporary, flags, mode), "wb") as file:
                yield write
                file.flush()
                os.fsync(file.fileno())
            with digests.replacing(path, made.hexdigest()) if listed else nullcontext():
                os.replace(temporary, path)
                system.sync_folder(path.parent)
    except RunError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _pack(value: Any, tensors: dict[str, Tensor]) -> Any:
    key = str(len(tensors))
    if isinstance(value, torch.Tensor):
        tensors[key] = value.detach()
        return {"$tensor": key}
    if isinstance(value, bytes):
        empty = torch.empty(0)
        tensors[key] = torch.frombuffer(bytearray(value), dtype=torch.uint8) if value else empty
        return {"$bytes": key}
    if isinstance(value, dict):
        return {name: _pack(item, tensors) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_pack(item, tensors) for item in value]
    return value


def _unpack(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if "$tensor" in value:
            return tensors[value["$tensor"]]
        if "$bytes" in value:
            return tensors[value["$bytes"]].numpy().tobytes()
        return {name: _unpack(item, tensors) for name, item in value.items()}
    if isinstance(value, list):
        return [_unpack(item, tensors) for item in value]
    return value
