"""Where a table of all records lives: in memory, or in a file that is mapped into it.

The rule: an array that takes more than half of the memory that is free when it is made lives in a
file. Free is what the system calls available, less where a control group or ``ulimit -d`` allows
less. The file has no name, so that it goes with the process however that ends; it is sparse, so
that rows never stored take no room; it lies in ``TMPDIR``, or else in ``/var/tmp``, which is on a
disk where ``/tmp`` may be memory. What is often used stays in memory either way: the system's page
cache holds it.
"""

from __future__ import annotations

import math
import mmap
import os
import shutil
import tempfile

import numpy as np
import torch
from torch import Tensor

from vertizo.core.errors import ConfigError
from vertizo.core.memory import available

SHARE = 0.5
"""Share of the free memory that one array may take."""


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros, in memory or mapped by the rule above; ConfigError if they fit nowhere."""
    size, free = math.prod(shape) * dtype.itemsize, available()
    if free is None or size <= SHARE * free:
        name = str(dtype).removeprefix("torch.")
        return torch.from_numpy(np.zeros(shape, name))  # of NumPy's, which asks for large pages
    return mapped(shape, dtype)


def mapped(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros in a sparse file without a name; ConfigError if the disk has no room for it."""
    size = math.prod(shape) * dtype.itemsize
    folder = directory()
    try:
        room = shutil.disk_usage(folder).free
        if room < size:
            raise ConfigError(
                f"the server's table takes {size / 1e9:,.1f} GB, more than half of the free memory "
                f"and more than the {room / 1e9:,.1f} GB free in {folder}; set TMPDIR to a folder "
                "with room for it"
            )
        with tempfile.TemporaryFile(dir=folder) as file:
            file.truncate(size)
            view = mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise ConfigError(
            f"the server's table takes {size / 1e9:,.1f} GB and cannot be mapped in {folder}: "
            f"{error.strerror}; set TMPDIR to another folder"
        ) from None
    if hasattr(mmap, "MADV_RANDOM"):  # rows are asked for in any order: do not read ahead
        view.madvise(mmap.MADV_RANDOM)
    numbers = np.frombuffer(view, np.uint8)  # holds the mapping
    return torch.from_numpy(numbers).view(dtype).view(shape)


def directory() -> str:
    """The folder that mapped files are made in."""
    if not os.environ.get("TMPDIR") and os.access("/var/tmp", os.W_OK):
        return "/var/tmp"
    return tempfile.gettempdir()
