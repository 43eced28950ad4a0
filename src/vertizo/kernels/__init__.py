"""Loops over arrays: compiled where the package was installed with a compiler, else in NumPy.

In a round of training a call of NumPy or PyTorch costs more than what it computes for a batch of
64. These are what a round makes many of, each in one pass; `plain` says what they are. Nobody
chooses between them: `COMPILED` says which are used.
"""

from __future__ import annotations

try:
    from vertizo.kernels._compiled import (
        ages,
        bounded,
        distinct,
        gather,
        normals,
        right,
        scatter,
        signs,
        slopes,
        softmax,
        start,
        through_relu,
    )

    COMPILED = True
except ImportError:  # installed without a compiler
    from vertizo.kernels.plain import (
        ages,
        bounded,
        distinct,
        gather,
        normals,
        right,
        scatter,
        signs,
        slopes,
        softmax,
        start,
        through_relu,
    )

    COMPILED = False

__all__ = [
    "COMPILED",
    "ages",
    "bounded",
    "distinct",
    "gather",
    "normals",
    "right",
    "scatter",
    "signs",
    "slopes",
    "softmax",
    "start",
    "through_relu",
]
