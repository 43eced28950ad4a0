"""Named data sets."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vertizo.core.errors import ConfigError, DataError
from vertizo.core.suggestions import nearest
from vertizo.data.datasets import bundled, cifar, idx, published, reviews, voxels
from vertizo.data.options import DataConfig
from vertizo.data.pooled import Pooled
from vertizo.data.tabular import tables

ROOT_VARIABLE = "VERTIZO_DATA"


@dataclass(frozen=True)
class Entry:
    """One data set of the catalogue."""

    summary: str
    load: Callable[[Path | None, DataConfig], Pooled]
    """From the folder of data files and the ``data`` section of a configuration."""
    needs_files: bool = False
    """Whether it looks for files in data.root or VERTIZO_DATA."""
    own_test: bool = True
    """Whether test records are set apart already; else data.test says how many are."""
    tokens: bool = False
    """Whether records are the tokens of texts."""


def load(name: str, root: Path | None = None, options: DataConfig | None = None) -> Pooled:
    """A data set by name.

    Args:
        name: one of `CATALOG`.
        root: folder of data files; None for ``VERTIZO_DATA``, or else a cache in the home folder.
        options: the other keys that a data set may heed; None for the defaults.

    Raises:
        ConfigError: no such data set, or keys that do not fit it.
        DataError: its files are missing or damaged.
    """
    if name == "frame":
        raise ConfigError(
            "data.name is 'frame': its records were given in Python and are in no file; "
            "use data.name 'table' with data.path"
        )
    if name not in CATALOG:
        hint = nearest(name, list(CATALOG)) or ";"
        raise ConfigError(f"data.name is {name!r}{hint} known are {', '.join(CATALOG)}")
    if options is None:
        if name == "table":
            raise ConfigError("data.name is 'table', which needs data.path and data.label")
        options = DataConfig(name=name, root=root)
    entry, source = CATALOG[name], "data.root"
    if options.test is not None and entry.own_test:
        raise ConfigError(
            f"data.test is {options.test} but {name} has test records of its own; leave it out"
        )
    if root is None and entry.needs_files and os.environ.get(ROOT_VARIABLE):
        source, root = ROOT_VARIABLE, Path(os.environ[ROOT_VARIABLE])
    if root is not None and not root.is_dir():
        raise DataError(f"{source} is {root}, which is not a folder")
    return entry.load(root, options)


CATALOG: dict[str, Entry] = {
    "digits": Entry("1,797 digits of 8×8 pixels, from scikit-learn; no download", bundled.digits),
    "breast-cancer": Entry(
        "569 tumours, 30 measurements in 3 groups, from scikit-learn; no download",
        bundled.breast_cancer,
    ),
    "diabetes": Entry(
        "442 patients, 10 measurements; regression, from scikit-learn; no download",
        bundled.diabetes,
    ),
    "mnist": Entry(
        "70,000 digits of 28×28 pixels; found in data.root or downloaded (11 MB)",
        idx.loader(idx.MNIST),
        needs_files=True,
    ),
    "fashion-mnist": Entry(
        "70,000 pieces of clothing of 28×28 pixels; found in data.root or downloaded (30 MB)",
        idx.loader(idx.FASHION_MNIST),
        needs_files=True,
    ),
    "cifar-10": Entry(
        "60,000 photographs of 32×32 pixels in colour, 10 kinds of things; found in data.root",
        cifar.load,
        needs_files=True,
    ),
    "modelnet10": Entry(
        "4,899 objects of 10 kinds as 12 views of 30×30 pixels each; found in data.root",
        voxels.load,
        needs_files=True,
    ),
    "adult": Entry(
        "48,842 people of a census, 14 columns of 3 parties: income; found in data.root",
        published.adult,
        needs_files=True,
    ),
    "bank-marketing": Entry(
        "41,188 calls of a bank, 19 columns of 3 parties: term deposit; found in data.root",
        published.bank_marketing,
        needs_files=True,
        own_test=False,
    ),
    "credit-default": Entry(
        "30,000 credit card holders, 23 columns of 3 parties: default; found in data.root",
        published.credit_default,
        needs_files=True,
        own_test=False,
    ),
    "imdb": Entry(
        "50,000 film reviews, positive or negative, as tokens; found in data.root",
        reviews.imdb,
        needs_files=True,
        tokens=True,
    ),
    "amazon-domains": Entry(
        "8,000 Amazon reviews of 4 kinds of goods, positive or negative; found in data.root",
        reviews.amazon_domains,
        needs_files=True,
        own_test=False,
        tokens=True,
    ),
    "amazon-polarity": Entry(
        "3,204 Amazon reviews, positive or negative, as tokens; found in data.root",
        reviews.amazon_polarity,
        needs_files=True,
        own_test=False,
        tokens=True,
    ),
    "table": Entry(
        "a CSV or Parquet file of your own: data.path, data.label, data.columns",
        tables.load,
        own_test=False,
    ),
}
