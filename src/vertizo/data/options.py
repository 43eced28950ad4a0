"""The ``data`` section of a configuration, and that of a feature holder's file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    PositiveInt,
    ValidationInfo,
    WrapValidator,
    model_validator,
)

from vertizo.core.names import Encoding, SplitName
from vertizo.core.options import Options
from vertizo.core.plugins.registry import short
from vertizo.core.text.suggestions import nearest
from vertizo.data import weights

_NUMERIC = ("categories", "categorical")
_CLASHES = {
    "id": ("weight", "columns", "drop", "ranges", *_NUMERIC),
    "weight": ("person", "columns", "drop", "ranges", *_NUMERIC),
    "person": ("columns", "drop", "ranges", *_NUMERIC),
    "drop": ("columns", "ranges", *_NUMERIC),
    "ranges": _NUMERIC,
}
"""Key → keys that may not name the same column."""


def _category(value: Any, info: ValidationInfo) -> Any:
    """Convert a category to text; refuse booleans, which YAML makes of yes and no."""
    if isinstance(value, bool):
        raise ValueError(
            f"data.{info.field_name} has true or false, which is how YAML reads yes and no without "
            "quotes; put them in quotes"
        )
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value) if isinstance(value, int | float) else value


Category = Annotated[str, BeforeValidator(_category)]


def _class_weights(value: Any, weights: Callable[[Any], Any]) -> Any:
    """Validate weights by class, or the word balanced."""
    if isinstance(value, str) and value != "balanced":
        raise ValueError(
            f"data.class_weights is {value!r}; it must be 'balanced', or map classes to weights"
            f"{nearest(value, ['balanced'])}"
        )
    return value if value == "balanced" else weights(value)


ClassWeights = Annotated[
    dict[Category, float],
    WrapValidator(_class_weights, json_schema_input_type=dict[str, float] | Literal["balanced"]),
    PlainSerializer(lambda value: value, return_type=dict[str, float] | Literal["balanced"]),
]


def delimiter(value: Any, key: str = "data.delimiter") -> Any:
    """Validate a delimiter: one character; ``tab`` and ``\\t`` mean a tab.

    Raises:
        ValueError: it is anything else; the line names ``key``.
    """
    value = {"\\t": "\t", "tab": "\t"}.get(value, value) if isinstance(value, str) else value
    if isinstance(value, str) and (len(value.encode()) != 1 or value in '"\n\r'):
        raise ValueError(f"{key} is {value!r}; it must be one character, such as ';', or tab")
    return value


Delimiter = Annotated[str, BeforeValidator(delimiter)]


def _as_days(value: Any) -> Any:
    """Convert a date to days since 1970, as columns of dates are; other values stay."""
    with suppress(ValueError):
        if isinstance(value, str):
            return float((date.fromisoformat(value) - date(1970, 1, 1)).days)
    return value


Bound = Annotated[float, BeforeValidator(_as_days, json_schema_input_type=float | str)]


def check_bounds(key: str, pair: Sequence[float]) -> None:
    """Raise ValueError unless ``pair`` is [low, high] with low below high."""
    if len(pair) != 2 or not pair[0] < pair[1]:
        raise ValueError(f"{key} is {pair}; it must be [low, high] with low below high")


def check_categories(categories: Mapping[str, Sequence[object]]) -> None:
    """Raise ValueError for a column without categories, or with one twice."""
    for column, names in categories.items():
        if not names:
            raise ValueError(f"data.categories.{column} is empty; name its categories")
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"data.categories.{column} has {twice!r} twice")


def check_uses(uses: Mapping[str, Sequence[str]]) -> None:
    """Raise ValueError for a column that two keys name, if these exclude each other."""
    for one, others in _CLASHES.items():
        for other in others:
            named = uses.get(other, ())
            both = next((column for column in uses.get(one, ()) if column in named), None)
            if both is not None:
                raise ValueError(f"data.{one} and data.{other} both name {both!r}; keep one")


class DataConfig(Options):
    """Which records, and who holds what of them."""

    name: str = "digits"
    """A data set of `vertizo list datasets`; ``table`` is a file of your own, ``frame`` the data
    given to a scikit-learn estimator."""
    root: Path | None = None
    """Folder of data files. Default: the environment variable VERTIZO_DATA, else a cache."""
    parties: PositiveInt | None = None
    """Number of clients. Default: what the split gives; 4 for images, one for each view."""
    split: SplitName | None = None
    """How features are split among clients. Default: rows of pixels for images, named columns for
    tables, segments for texts, single views for views."""
    sizes: list[PositiveInt] | None = Field(default=None, min_length=1)
    """How much of it each client gets, in place of equal parts: values (split even, the default
    with sizes for images and tables), rows of pixels, tokens or views, such as [100, 200, 50, 300,
    134] of 784 pixels."""
    columns: dict[str, list[str]] | None = None
    """For tables: party name → column names."""
    label_holder: str | None = None
    """The party of the split that holds the labels; its features enter the server model and
    `server.final_head` directly, or the latter alone where server.model is sum."""
    exclude_parties: list[str] = Field(default_factory=list)
    """Clients of the split that take no part, as if nobody had their columns (`vertizo worth`)."""
    validation: float = Field(default=0.1, ge=0, lt=1)
    """Share of the training records that is set aside to select the best model."""
    limit: int | None = Field(default=None, ge=2)
    """Use at most so many training records."""
    test_limit: PositiveInt | None = None
    """Use at most so many test records, the same ones in every run."""
    test: float | None = Field(default=None, gt=0, lt=1)
    """Share of the records for testing, if the data set has no test records. Default: 0.2."""
    stratify: bool = False
    """Whether test and validation records are the same share of each class. Everybody then learns
    something about labels from who trains: not where labels are to be private."""
    time: str | None = None
    """For tables of your own: a column of dates or numbers. The newest records test, the next
    newest validate; `limit` takes the newest of the others. Not a feature, unless `columns` lists
    it. Over a network it is the label holder's."""

    path: Path | None = None
    """For ``table``: a CSV, Excel (.xlsx) or Parquet file of the training records, or of all."""
    test_path: Path | None = None
    """For ``table``: a file of the test records. Default: a share of `path`."""
    delimiter: Delimiter = ","
    """For ``table``: the character between the values of a CSV file."""
    encoding: Encoding = "utf-8"
    """For ``table``: of a CSV file; gb18030 reads GBK and GB2312 as well, cp1252
    Latin-1."""
    label: str | list[str] | None = None
    """For ``table``: the column to predict, or a list of columns of two values each (no and yes),
    which are predicted together."""
    id: str | None = None
    """For tables: the column that identifies the record of a row; it is not a feature."""
    task: Literal["classification", "regression"] | None = None
    """For ``table``. Default: classification for text and for at most 20 different whole numbers,
    else regression."""
    classes: list[Category] | None = None
    """For ``table``: the classes, as public knowledge. Default: those that occur, which reveals
    them."""
    positive: Category | None = None
    """Of two classes, the one that AUC, precision, recall and the like are about. Default: the
    second one, in the order of `classes`, else of numbers or the alphabet."""
    loss: Literal["squared", "huber", "quantile"] = "squared"
    """For a regression: what training makes small. huber: as squared, but for errors beyond
    `huber_delta`, which count by their size; quantile: predictions are the labels' `quantile`."""
    huber_delta: float = Field(default=1.0, gt=0)
    """For ``huber``: in standard deviations of the training labels, or halves of `label_range`."""
    quantile: float = Field(default=0.5, gt=0, lt=1)
    """For ``quantile``: the share of labels that is to lie below their predictions."""
    label_range: list[float] | None = None
    """For a regression: [low, high], public bounds that labels are scaled by. Default: the training
    labels' mean and standard deviation."""
    class_weights: ClassWeights | None = None
    """For classes: class → how much a record of it counts in training, from public knowledge; 1
    for those it leaves out. balanced: 1 over the number of classes times the class's share."""
    class_shares: dict[Category, float] | None = None
    """For balanced weights: class → its share of the records, from public knowledge. Default:
    counted from the training labels, which no ε would cover."""
    weight: str | None = None
    """For ``table``: the label holder's column of how much each record counts in training; it is
    no feature."""
    person: str | None = None
    """For ``table``: the label holder's column that names the person of a record; it is no feature.
    ε is then stated for a person as well."""
    records_per_person: PositiveInt | None = None
    """Training records of one person at most, from public knowledge, of which `person` or `id` is
    held to: ε is stated for a person of so many. Default: the most that are counted by those, or
    that have the same features."""
    drop: list[str] = Field(default_factory=list)
    """For tables: columns to leave out."""
    categorical: list[str] = Field(default_factory=list)
    """For tables: numeric columns to treat as categories."""
    ranges: dict[str, list[Bound]] = Field(default_factory=dict)
    """For tables: column → [low, high], public bounds to scale by instead of fitted statistics;
    dates for dates."""
    categories: dict[str, list[Category]] = Field(default_factory=dict)
    """For tables: column → its categories, public, instead of those that occur in training."""

    tokenizer: str | None = None
    """For texts: how they are split into tokens: ``hash``, or as a checkpoint does. Default: as
    data.encoder does, else hash."""
    length: PositiveInt = 128
    """For texts: number of tokens of a record."""
    vocabulary: PositiveInt = 8192
    """For texts: number of different tokens."""
    encoder: str | None = None
    """For texts: a checkpoint, such as ``minilm``, that makes one vector of each party's tokens,
    frozen and once for all; features are then these numbers. Default: tokens."""

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The columns that are predicted."""
        label = self.label
        return () if label is None else (label,) if isinstance(label, str) else tuple(label)

    @property
    def title(self) -> str:
        """The title of runs on it: the data set's name, or that of a table's file."""
        return short(self.name) if self.path is None else self.path.stem

    @property
    def files(self) -> tuple[Path, ...]:
        """The user's own files; empty for a named data set."""
        return tuple(path for path in (self.path, self.test_path) if path is not None)

    @property
    def has_several_labels(self) -> bool:
        """Whether a record has more labels than one."""
        return isinstance(self.label, list)

    def _first_set(self, *keys: str) -> str | None:
        return next((key for key in keys if getattr(self, key) is not None), None)

    @model_validator(mode="after")
    def _own_file(self) -> DataConfig:
        if self.sizes is not None and self.parties not in (None, len(self.sizes)):
            raise ValueError(
                f"data.parties is {self.parties} but data.sizes has {len(self.sizes)}; leave "
                "data.parties out"
            )
        if self.name == "table":
            for key, meaning in (
                ("path", "a CSV, Excel or Parquet file"),
                ("label", "a column of it"),
            ):
                if getattr(self, key) is None:
                    raise ValueError(f"data.name is 'table', which needs data.{key}, {meaning}")
            if self.test is not None and self.test_path is not None:
                raise ValueError(
                    f"data.test is {self.test} but data.test_path has the test records; "
                    "leave one of them out"
                )
        elif self.name == "frame":
            if unfit := self._first_set("path", "test_path", "test", "test_limit", "id"):
                raise ValueError(
                    f"data.{unfit} is set but data.name is 'frame', records given in Python, "
                    "all of which are for training"
                )
        elif unfit := self._first_set(
            *("path", "test_path", "label", "id", "task", "classes"),
            *("weight", "person", "time"),
        ):
            raise ValueError(
                f"data.{unfit} is set but data.name is {self.name!r}; "
                "a file of your own is data.name 'table'"
            )
        return self

    @model_validator(mode="after")
    def _one_choice(self) -> DataConfig:
        if not self.stratify:
            return self
        if self.time is not None:
            raise ValueError(
                f"data.stratify is true but data.time is {self.time!r}, by which records are "
                "chosen; keep one"
            )
        if self.task == "regression" or self.label_range is not None or self.loss != "squared":
            raise ValueError("data.stratify is true but the task is a regression, without classes")
        return self

    @model_validator(mode="after")
    def _reads_its_tokens(self) -> DataConfig:
        if self.encoder == "random":
            raise ValueError("data.encoder is 'random', which knows nothing; name a checkpoint")
        if self.encoder is not None and self.tokenizer == "hash":
            raise ValueError(
                f"data.tokenizer is 'hash' but data.encoder is {self.encoder!r}, which reads "
                "tokens of its own; leave data.tokenizer out"
            )
        return self

    @model_validator(mode="after")
    def _bounds(self) -> DataConfig:
        bounds = {f"data.ranges.{column}": pair for column, pair in self.ranges.items()}
        if self.label_range is not None:
            bounds["data.label_range"] = self.label_range
            if self.task == "classification":
                raise ValueError("data.label_range is set but data.task is 'classification'")
        if self.classes is not None:
            if self.task == "regression" or self.label_range is not None:
                raise ValueError("data.classes is set but the task is a regression")
            if len(set(self.classes)) < max(2, len(self.classes)):
                raise ValueError(
                    f"data.classes is {self.classes}; it must name two different classes at least"
                )
        if self.loss != "squared" and (self.task == "classification" or self.classes is not None):
            raise ValueError(f"data.loss is {self.loss!r} but the task is a classification")
        if self.positive is not None and (self.task == "regression" or self.label_range):
            raise ValueError(f"data.positive is {self.positive!r} but the task is a regression")
        for key, pair in bounds.items():
            check_bounds(key, pair)
        check_categories(self.categories)
        return self

    @model_validator(mode="after")
    def _weighs(self) -> DataConfig:
        weights.check_classes(self)
        return self

    @model_validator(mode="after")
    def _several_labels(self) -> DataConfig:
        if not self.has_several_labels:
            return self
        names = self.label_columns
        if len(names) < 2:
            raise ValueError(
                f"data.label is {list(names)}; give one column as its name, not a list"
            )
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"data.label names {twice!r} twice")
        regression = self.task == "regression" or self.loss != "squared"
        if regression or self.label_range is not None:
            raise ValueError(
                "data.label is a list, which is for labels of two values; the task is a regression"
            )
        if self.classes is not None and len(self.classes) != 2:
            raise ValueError(
                f"data.label is a list but data.classes is {self.classes}; give the two values of "
                "each label, such as ['no', 'yes']"
            )
        if self.positive is not None:
            raise ValueError(
                f"data.positive is {self.positive!r} but data.label is a list; give data.classes, "
                "the two values of each label, of which the second is the positive one"
            )
        for key in ("class_weights", "stratify"):
            if getattr(self, key):
                raise ValueError(f"data.{key} is set but data.label is a list; it is for one label")
        return self

    @model_validator(mode="after")
    def _one_use_of_a_column(self) -> DataConfig:
        owned = [column for wanted in (self.columns or {}).values() for column in wanted]
        uses: dict[str, list[str]] = {
            "id": [] if self.id is None else [self.id],
            "time": [] if self.time is None else [self.time],
            "weight": [] if self.weight is None else [self.weight],
            "person": [] if self.person is None else [self.person],
            "drop": self.drop,
            "columns": owned,
            "ranges": list(self.ranges),
            "categories": list(self.categories),
            "categorical": self.categorical,
        }
        for key, named in uses.items():
            own = next((label for label in self.label_columns if label in named), None)
            if own is not None:
                raise ValueError(f"data.{key} names {own!r}, which is data.label")
        check_uses(uses)
        return self


class OwnTable(Options):
    """A feature holder's table."""

    path: Path | None = None
    """A CSV, Excel (.xlsx) or Parquet file. Leave it out for a named data set, of which each party
    takes its part."""
    test_path: Path | None = None
    """A file of the test records. Default: a share of ``path``, as the label holder says."""
    id: str | None = None
    """The column of keys: the same people have the same keys at all parties."""
    delimiter: Delimiter = ","
    """The character between the values of a CSV file."""
    encoding: Encoding = "utf-8"
    """Of a CSV file; gb18030 reads GBK and GB2312 as well, cp1252 Latin-1."""
    columns: list[str] | None = None
    """The features. Default: all columns but ``id`` and ``drop``."""
    drop: list[str] = Field(default_factory=list)
    """Columns to leave out."""
    categorical: list[str] = Field(default_factory=list)
    """Numeric columns to treat as categories."""
    ranges: dict[str, list[Bound]] = Field(default_factory=dict)
    """Column → [low, high], public bounds to scale by instead of fitted statistics; dates for
    dates."""
    categories: dict[str, list[Category]] = Field(default_factory=dict)
    """Column → its categories, public, instead of those that occur in training."""
    root: Path | None = None
    """Folder of a named data set's files. Default: the environment variable VERTIZO_DATA."""

    @model_validator(mode="after")
    def _whole(self) -> OwnTable:
        if self.path is not None and self.id is None:
            raise ValueError("data.path is set, which needs data.id, the column of keys")
        for column, pair in self.ranges.items():
            check_bounds(f"data.ranges.{column}", pair)
        check_categories(self.categories)
        check_uses(
            {
                "id": [] if self.id is None else [self.id],
                "drop": self.drop,
                "columns": self.columns or [],
                "ranges": list(self.ranges),
                "categories": list(self.categories),
                "categorical": self.categorical,
            }
        )
        return self
