"""The catalogue of named data sets, and loading by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from vertizo.core.errors import ConfigError, DataError
from vertizo.core.plugins.registry import Registry
from vertizo.data.options import DataConfig

if TYPE_CHECKING:
    from vertizo.data.pooled import Pooled

ROOT_VARIABLE = "VERTIZO_DATA"


Loader = Callable[[Path | None, DataConfig], "Pooled"]
"""Loads a data set from the folder of data files and a configuration's ``data`` section."""


@dataclass(frozen=True)
class Entry:
    """A data set of the catalogue."""

    summary: str
    loader: str | Loader
    """The function, or its path below `vertizo.data`, ``module:function``."""
    needs_files: bool = True
    """Whether it reads files in data.root or VERTIZO_DATA."""
    own_test: bool = True
    """Whether it has test records of its own; else data.test gives their share."""
    tokens: bool = False
    """Whether records are the tokens of texts."""

    def load(self, root: Path | None, options: DataConfig) -> Pooled:
        """Import the loader, if need be, and load the data set."""
        if not isinstance(self.loader, str):
            return self.loader(root, options)
        module, _, name = self.loader.partition(":")
        load: Loader = getattr(import_module(f"vertizo.data.{module}"), name)
        return load(root, options)


def load(name: str, root: Path | None = None, options: DataConfig | None = None) -> Pooled:
    """Load a data set by a name of `CATALOG` or of an installed package, or ``module:function``.

    Its files are in ``root``, else in ``VERTIZO_DATA``, else in a cache in the home folder.
    ``options`` has the other keys that the loader may use; None for the defaults.

    Raises:
        ConfigError: no such data set, or keys that do not fit it.
        DataError: its files are missing or damaged.
    """
    if name == "frame":
        raise ConfigError(
            "data.name is 'frame': its records were given in Python and are in no file; "
            "use data.name 'table' with data.path"
        )
    entry = CATALOG.find(name, "data.name")
    if not isinstance(entry, Entry):  # somebody's own function
        entry = Entry(f"by {name}", entry, needs_files=False, own_test=False)
    if options is None:
        if name == "table":
            raise ConfigError("data.name is 'table', which needs data.path and data.label")
        options = DataConfig(name=name, root=root)
    source = "data.root"
    if options.test is not None and entry.own_test:
        raise ConfigError(
            f"data.test is {options.test} but {name} has test records of its own; leave it out"
        )
    if root is None and entry.needs_files and os.environ.get(ROOT_VARIABLE):
        source, root = ROOT_VARIABLE, Path(os.environ[ROOT_VARIABLE])
    if root is not None and not root.is_dir():
        raise DataError(f"{source} is {root}, which is not a folder")
    if name in CATALOG:
        return entry.load(root, options)
    from vertizo.data.pooled import Pooled
    from vertizo.models.parts import user_code_errors

    with user_code_errors(f"data.name is {name!r}: loading failed"):
        data = entry.load(root, options)
    if not isinstance(data, Pooled):
        raise ConfigError(
            f"data.name is {name!r}, which loads a {type(data).__name__}; "
            "it must load a vertizo.data.pooled.Pooled"
        )
    return data


CATALOG: Registry[Entry] = Registry(
    "dataset",
    {
        "digits": Entry(
            "1,797 digits of 8×8 pixels, from scikit-learn; no download",
            "datasets.bundled:digits",
            needs_files=False,
        ),
        "breast-cancer": Entry(
            "569 tumours, 30 measurements in 3 groups, from scikit-learn; no download",
            "datasets.bundled:breast_cancer",
            needs_files=False,
        ),
        "diabetes": Entry(
            "442 patients, 10 measurements; regression, from scikit-learn; no download",
            "datasets.bundled:diabetes",
            needs_files=False,
        ),
        "mnist": Entry(
            "70,000 digits of 28×28 pixels; found in data.root or downloaded (11 MB)",
            "datasets.idx:mnist",
        ),
        "fashion-mnist": Entry(
            "70,000 pieces of clothing of 28×28 pixels; found in data.root or downloaded (30 MB)",
            "datasets.idx:fashion_mnist",
        ),
        "cifar-10": Entry(
            "60,000 photographs of 32×32 pixels in colour, 10 kinds of things; found in data.root",
            "datasets.cifar:load",
        ),
        "modelnet10": Entry(
            "4,899 objects of 10 kinds as 12 views of 30×30 pixels each; found in data.root",
            "datasets.voxels:load",
        ),
        "adult": Entry(
            "48,842 people of a census, 14 columns of 3 parties: income; found in data.root",
            "datasets.published:adult",
        ),
        "bank-marketing": Entry(
            "41,188 calls of a bank, 19 columns of 3 parties: term deposit; found in data.root",
            "datasets.published:bank_marketing",
            own_test=False,
        ),
        "credit-default": Entry(
            "30,000 credit card holders, 23 columns of 3 parties: default; found in data.root",
            "datasets.published:credit_default",
            own_test=False,
        ),
        "imdb": Entry(
            "50,000 film reviews, positive or negative, as tokens; found in data.root",
            "datasets.reviews:imdb",
            tokens=True,
        ),
        "amazon-domains": Entry(
            "8,000 Amazon reviews of 4 kinds of goods, positive or negative; found in data.root",
            "datasets.reviews:amazon_domains",
            own_test=False,
            tokens=True,
        ),
        "amazon-polarity": Entry(
            "3,204 Amazon reviews, positive or negative, as tokens; found in data.root",
            "datasets.reviews:amazon_polarity",
            own_test=False,
            tokens=True,
        ),
        "table": Entry(
            "a CSV, Excel or Parquet file of your own: data.path, data.label, data.columns",
            "tables:load",
            needs_files=False,
            own_test=False,
        ),
    },
)
