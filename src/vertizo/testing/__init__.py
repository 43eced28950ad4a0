"""What the project's own parts are tested by, for parts of your own (docs/own-method.md).

Each check raises an AssertionError of one line where a part does not do what it must, and returns
otherwise; so they are called in a test, with pytest or without. The project's own tests call the
same. What they say of a part they say of the part as given: of its class with default options,
unless others are named.

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
