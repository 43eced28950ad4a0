"""Loaders of published tables whose columns belong to natural parties."""

from __future__ import annotations

from functools import partial
from itertools import chain
from pathlib import Path

from vertizo.core.errors import DataError
from vertizo.core.plugins.lazy_import import polars as pl
from vertizo.data.datasets import files
from vertizo.data.options import DataConfig
from vertizo.data.pooled import Pooled
from vertizo.data.tables import pool
from vertizo.data.tabular import frames
from vertizo.data.tabular.columns import Source
from vertizo.data.tabular.csv_lines import CsvFormat


def _names(words: str) -> list[str]:
    return words.split()


ADULT = _names(
    "age workclass fnlwgt education education-num marital-status occupation relationship race sex "
    "capital-gain capital-loss hours-per-week native-country income"
)
ADULT_CATEGORIES = _names(
    "workclass education marital-status occupation relationship race sex native-country"
)
ADULT_PARTIES = {
    "demographics": _names("age sex race native-country marital-status relationship fnlwgt"),
    "work": ["workclass", "occupation", "hours-per-week", "education", "education-num"],
    "finances": ["capital-gain", "capital-loss"],
}
BANK_PARTIES = {
    "client": ["age", "job", "marital", "education", "default", "housing", "loan"],
    "contact": ["contact", "month", "day_of_week", "campaign", "pdays", "previous", "poutcome"],
    "economy": ["emp.var.rate", "cons.price.idx", "cons.conf.idx", "euribor3m", "nr.employed"],
}
CREDIT_PARTIES = {
    "demographics": ["LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE"],
    "bills": [
        *(f"PAY_{month}" for month in (0, 2, 3, 4, 5, 6)),
        *(f"BILL_AMT{month}" for month in range(1, 7)),
    ],
    "payments": [f"PAY_AMT{month}" for month in range(1, 7)],
}
_classes = partial(pool, task="classification")


def adult(root: Path | None, options: DataConfig) -> Pooled:
    """UCI Adult: does a person earn more than 50,000 dollars a year? Official split."""
    folder = files.folder_of("adult", root, "adult", ["adult.data", "adult.test"])
    sources = []
    for name, skip in (("adult.data", 0), ("adult.test", 1)):
        frame = frames.csv_text(folder / name, names=ADULT, skip=skip)
        # The labels of the test file end in a full stop.
        frame = frame.with_columns(pl.col("income").str.strip_chars_end("."))
        sources.append(Source(str(folder / name), frame))
    parties, categories = ADULT_PARTIES, ADULT_CATEGORIES
    return _classes(
        "adult", *sources, label="income", options=options, categorical=categories, groups=parties
    )


def bank_marketing(root: Path | None, options: DataConfig) -> Pooled:
    """UCI Bank Marketing: does a client who is called open a term deposit?

    The length of the call, ``duration``, is known only once the answer is, and nearly gives it
    away; it is left out unless data.columns gives it to a party.
    """
    columns = ["y", "duration", *chain(*BANK_PARTIES.values())]
    path, frame = _frame("bank-marketing", root, "bank-additional-full.csv", ";", columns)
    if not any("duration" in wanted for wanted in (options.columns or {}).values()):
        frame = frame.drop("duration")
        options = options.model_copy(
            update={"drop": [column for column in options.drop if column != "duration"]}
        )
    source = Source(str(path), frame)
    return _classes("bank-marketing", source, None, label="y", options=options, groups=BANK_PARTIES)


def credit_default(root: Path | None, options: DataConfig) -> Pooled:
    """UCI Default of Credit Card Clients: is the next payment missed?"""
    label = "default.payment.next.month"
    columns = ["ID", label, *chain(*CREDIT_PARTIES.values())]
    path, frame = _frame("credit-default", root, "credit-default.csv", ",", columns)
    return _classes(
        "credit-default",
        Source(str(path), frame.drop("ID")),
        None,
        label=label,
        options=options,
        categorical=["SEX", "EDUCATION", "MARRIAGE"],
        groups=CREDIT_PARTIES,
    )


def _frame(
    name: str, root: Path | None, file: str, delimiter: str, columns: list[str]
) -> tuple[Path, pl.DataFrame]:
    """Read a published table as text; DataError for another file under its name."""
    path = files.folder_of(name, root, name, [file]) / file
    frame = frames.csv_text(path, CsvFormat(delimiter))
    for column in columns:
        if column not in frame.columns:
            raise DataError(f"{path} does not have the column {column!r}; it is another file")
    return path, frame
