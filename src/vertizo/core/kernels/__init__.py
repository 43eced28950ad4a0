"""Loops and small products: compiled where the package was installed with a compiler.

In a round of training a call of NumPy or PyTorch costs more than what it computes for a batch of
64. These are what a round makes many of, each in one pass; `plain` (NumPy) and `plain_products`
(PyTorch) say what they are, and do it elsewhere. Nobody chooses: `COMPILED` says which are used.
"""

from __future__ import annotations

try:
    from vertizo.core.kernels._compiled import (
        add,
        add_normals,
        add_signs,
        ages,
        apart,
        bounded,
        descend,
        distinct,
        gather,
        highest,
        normal_squares,
        normals,
        right,
        scatter,
        signs,
        slopes,
        softmax,
        squares,
        stamp,
        start,
    )

    COMPILED = True
except ImportError:  # installed without a compiler
    from vertizo.core.kernels.plain import (
        add,
        add_normals,
        add_signs,
        ages,
        apart,
        bounded,
        descend,
        distinct,
        gather,
        highest,
        normal_squares,
        normals,
        right,
        scatter,
        signs,
        slopes,
        softmax,
        squares,
        stamp,
        start,
    )

    COMPILED = False

try:
    from vertizo.core.kernels._products import (
        affine,
        along,
        back,
        lanes,
        moved,
        outer,
        raised,
    )
except ImportError:
    from vertizo.core.kernels.plain_products import (
        affine,
        along,
        back,
        lanes,
        moved,
        outer,
        raised,
    )

__all__ = [
    "COMPILED",
    "add",
    "add_normals",
    "add_signs",
    "affine",
    "ages",
    "along",
    "apart",
    "back",
    "bounded",
    "descend",
    "distinct",
    "gather",
    "highest",
    "lanes",
    "moved",
    "normal_squares",
    "normals",
    "outer",
    "raised",
    "right",
    "scatter",
    "signs",
    "slopes",
    "softmax",
    "squares",
    "stamp",
    "start",
]
