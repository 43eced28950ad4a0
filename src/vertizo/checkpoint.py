"""State as one safetensors file that is either there whole or not at all.

A state is nested dicts and lists of tensors, bytes and plain values. Tensors and bytes become
tensors of the file, everything else JSON in its metadata; no pickle is involved.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from vertizo.errors import RunError

FORMAT = "vertizo-1"
"""Key of the metadata that holds the JSON."""


def save(path: Path, state: Any) -> None:
    """Write ``state``; a crash at any moment leaves the old file or the new one."""
    tensors: dict[str, Tensor] = {}
    skeleton = json.dumps(_pack(state, tensors))
    write_atomically(path, safetensors.torch.save(tensors, {FORMAT: skeleton}))


def load(path: Path) -> Any:
    """The state of a file.

    Raises:
        RunError: no such file, or not one that `save` wrote.
    """
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise RunError(f"{path}: there is no such checkpoint") from None
    except (safetensors.SafetensorError, OSError) as error:
        raise RunError(f"{path}: not a readable checkpoint: {error}") from None
    if FORMAT not in metadata:
        raise RunError(f"{path}: not a checkpoint of the format {FORMAT}")
    try:
        return _unpack(json.loads(metadata[FORMAT]), tensors)
    except (json.JSONDecodeError, KeyError) as error:
        raise RunError(f"{path}: not a readable checkpoint: {error}") from None


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file's content in one step that survives a power cut."""
    temporary = path.with_name(path.name + ".partial")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _pack(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, (Tensor, bytes)):
        key = str(len(tensors))
        if isinstance(value, Tensor):
            tensors[key] = value.detach().clone().contiguous()
            return {"$tensor": key}
        data = torch.frombuffer(bytearray(value), dtype=torch.uint8) if value else torch.empty(0)
        tensors[key] = data
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
