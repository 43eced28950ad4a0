"""Checks of methods, codecs, models, data sets, mechanisms and trackers, your own included.

Each check raises an AssertionError of one line where a part does not do what it must, and returns
otherwise; call it in a test, with pytest or without (docs/own-method.md). The project's own tests
call the same. A check covers a part as it is given: a class with its default options, unless others
are named.

A demand may be added, with a broken part in `tests/contracts` that it finds, and named in the
changelog. What never changes: the checks are public and need no pytest, and ``python -O`` skips
none; a method, codec or model that comes along passes them; they prove no privacy guarantee.

    >>> from vertizo.protocol.codecs.uniform import Uniform
    >>> check_codec(Uniform(bits=8), error=1 / 250)
"""

from vertizo.testing.codecs import check_codec
from vertizo.testing.datasets import check_dataset
from vertizo.testing.mechanisms import check_mechanism
from vertizo.testing.methods import check_method
from vertizo.testing.models import check_model
from vertizo.testing.trackers import check_tracker

__all__ = [
    "check_codec",
    "check_dataset",
    "check_mechanism",
    "check_method",
    "check_model",
    "check_tracker",
]
