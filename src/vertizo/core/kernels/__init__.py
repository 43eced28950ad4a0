"""Compiled loops and small products, which replace many calls of NumPy and PyTorch in a round.

For a batch of 64 such a call costs more than what it computes; each function here makes one pass.
`plain.py` (NumPy) and `plain_products.py` (PyTorch) specify and document them, and stand in where
the package was installed without a C compiler; nobody chooses.

A kernel is added with its plain twin and a line below. What never changes: a function does what its
twin does, to the rounding that tests allow; it refuses arrays that do not fit and writes nothing
outside them; and if it is compiled, no digit of a row depends on other rows or on threads.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import TypeVar

from vertizo.core.kernels import plain, plain_products

Function = TypeVar("Function", bound=Callable[..., object])


def _imported(name: str) -> ModuleType | None:
    try:
        return import_module(f"vertizo.core.kernels.{name}")
    except ImportError:  # installed without a compiler
        return None


_TWINS = {plain.__name__: _imported("_compiled"), plain_products.__name__: _imported("_products")}
COMPILED = None not in _TWINS.values()
"""Whether the compiled functions are used, and not their plain twins."""


def _fastest(twin: Function) -> Function:
    """The compiled function of that name, else the plain twin; typed as the twin either way."""
    compiled = _TWINS[twin.__module__]
    return twin if compiled is None else getattr(compiled, twin.__name__)


add = _fastest(plain.add)
add_normals = _fastest(plain.add_normals)
add_signs = _fastest(plain.add_signs)
ages = _fastest(plain.ages)
apart = _fastest(plain.apart)
bounded = _fastest(plain.bounded)
checksum = _fastest(plain.checksum)
descend = _fastest(plain.descend)
distinct = _fastest(plain.distinct)
gather = _fastest(plain.gather)
highest = _fastest(plain.highest)
normal_squares = _fastest(plain.normal_squares)
normals = _fastest(plain.normals)
right = _fastest(plain.right)
scatter = _fastest(plain.scatter)
signs = _fastest(plain.signs)
slopes = _fastest(plain.slopes)
softmax = _fastest(plain.softmax)
squares = _fastest(plain.squares)
stamp = _fastest(plain.stamp)
start = _fastest(plain.start)

affine = _fastest(plain_products.affine)
along = _fastest(plain_products.along)
back = _fastest(plain_products.back)
lanes = _fastest(plain_products.lanes)
moved = _fastest(plain_products.moved)
outer = _fastest(plain_products.outer)
raised = _fastest(plain_products.raised)


def notes() -> tuple[str, ...]:
    """Notes for users: a line where compiled functions are missing."""
    if COMPILED:
        return ()
    return (
        "training is slower than it could be: the compiled loops are missing, and NumPy and "
        "PyTorch do their work; install vertizo where there is a C compiler",
    )
