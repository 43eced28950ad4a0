"""Predictions of a finished run, from its folder alone.

They come from the same parties that were scored: clients embed, clip where the run has noise on
embeddings, and encode; the server decodes, joins and predicts. The training file is not needed:
`preparation.json` says how new records are prepared. Where the scale of a codec spans several
records, as that of ``uniform`` does, a prediction depends a little on the records beside it, as it
does in the run's own scores.

A prediction shows what the models have learnt. The run's guarantee covers it only in so far as it
covers the server model: what is computed from noised releases needs no further noise. Where the
run's statement is ``none``, or the raw head predicts, nothing protects the training records from
somebody who sees predictions on them.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError, DataError, RefusedError, RunError
from vertizo.core.names import PRIVATE, Head
from vertizo.data.prepared import Preparation
from vertizo.data.tabular.category_text import in_seconds
from vertizo.data.tabular.columns import unlike
from vertizo.data.tabular.frames import Place, row
from vertizo.data.vertical import Holding, VerticalData
from vertizo.models.base import State
from vertizo.models.losses import MultiLabel, Regression, Task, blank_labels
from vertizo.party.metrics import Scores, scores
from vertizo.party.server import ServerParty
from vertizo.privacy.epsilon_text import bound_text, is_bounded
from vertizo.privacy.options import ON_LABELS, PrivacyConfig
from vertizo.protocol.messages import Purpose
from vertizo.run.build.label_free import controlled
from vertizo.run.experiment import Experiment
from vertizo.run.loop.evaluation import HEAD
from vertizo.run.loop.federation import Federation, build
from vertizo.run.results import checkpoint
from vertizo.run.results.folder import RunFolder

if TYPE_CHECKING:
    import polars as pl

STAND_INS = 8
"""Training records, all zeros, that parties get which only predict; their values do not matter."""
RAW = (
    "nothing covers these predictions: the raw head learnt from the raw labels, and they must stay "
    "with the label holder as it must"
)
PREDICTION = "prediction"
"""Name of the column, or beginning of the names of those of several labels."""


@dataclass(frozen=True)
class Predictions:
    """Predictions for some records."""

    frame: pl.DataFrame
    """The record's own ID or its number from 1, the predicted class by its name and a probability
    of each class, or the predicted value in the label's units."""
    scores: Scores | None
    """Scores on the records whose label is known; None if no label is."""
    scored: int
    """Number of records whose label is known."""
    notes: tuple[str, ...] = ()
    """Notes for users on odd records, as on unknown categories, a line each."""


@dataclass(frozen=True)
class Predictor:
    """The models of a finished run: the best where it has validation records, else the last."""

    config: ExperimentConfig
    summary: Mapping[str, Any]
    preparation: Preparation | None
    parameters: Mapping[str, Any]
    """The states of all models, as `Federation.parameters` has them."""
    run: str = "this run"
    """The run's name in messages."""
    raw_head: State | None = None
    """The raw head's state, if it predicts in place of the server's model; else None."""

    def __post_init__(self) -> None:
        if self.config.is_label_free and self.raw_head is None:
            raise RunError(f"{self.run} trains nothing but its raw head; predict with --head raw")

    @classmethod
    def load(cls, run: Path, head: Head | None = None) -> Predictor:
        """Load a run's folder, by default with the head that the run's figures are of.

        RunError if it holds no finished run, or no such head.
        """
        folder = RunFolder(run)
        config, summary = folder.config(), folder.summary()
        if summary is None:
            raise RunError(f"{run} holds an unfinished run; finish it with --resume {run}")
        preparation = folder.preparation()
        if summary.get("model") not in ("best", "last"):
            raise RunError(f"{folder.summary_file}: model is {summary.get('model')!r}")
        state = folder.load(summary["model"])
        raw = raw_head_of(folder, config) if (head or config.predicts_by) == "raw" else None
        return cls(config, summary, preparation, state.get("parameters", state), str(run), raw)

    @property
    def head(self) -> Head:
        """The head that predicts."""
        return "private" if self.raw_head is None else "raw"

    def test(self) -> Predictions:
        """Predict the test records of the run's own data set.

        Raises:
            UserError: the data set is missing, or not what the run was tested on any more.
        """
        data = Experiment(self.config).data()
        logits = self._logits(data)
        frame = frame_of(data.task, data.class_names, logits, None)
        measured = scores(data.task, logits, data.labels["test"])
        section = self.summary if self.raw_head is None else self.summary[HEAD]
        for name, value in measured.items():
            known = section.get(f"test_{name}")
            if known is not None and not math.isclose(value, known, rel_tol=1e-3, abs_tol=1e-6):
                raise RunError(
                    f"the test records of {data.name} are not those that {self.run} was tested "
                    f"on: the {name} is {value:.6g}, in its summary.json {known:.6g}; give records "
                    "with --data"
                )
        return Predictions(frame, measured, len(logits))

    def predict(
        self,
        records: pl.DataFrame,
        *,
        id_column: str | None = None,
        name: str = "the table",
        place: Place = row,
        written: pl.DataFrame | None = None,
    ) -> Predictions:
        """Predict new records, with every party's columns in any order; ``id_column`` is kept.

        Other columns are ignored, except the label's, by which predictions are then scored.
        Messages call the table ``name``, and a row of it as ``place`` says. ``written`` has the
        same rows as their file has them; identifiers are taken from it, letter for letter.

        Raises:
            RunError: the run's records were no rows of a table.
            DataError: a column is missing or holds values of another kind than in training.
        """
        preparation = self.preparation
        if preparation is None:
            raise RunError(
                f"{self.run} was trained on {self.summary['dataset']}, whose records are no rows "
                "of a table (there is no preparation.json); it predicts its own test records only: "
                "leave --data out"
            )
        carried = None
        if id_column is not None:
            carried = names_of(records if written is None else written, id_column, name)
        known = preparation.labels(records, name=name, place=place)
        logits = self._logits_of(preparation, records, name, place)
        frame = frame_of(preparation.task, preparation.class_names, logits, carried)
        notes = tuple(preparation.unknown(records, name=name))
        if known is None:
            return Predictions(frame, None, 0, notes)
        rows, labels = known
        found = scores(preparation.task, logits[rows], labels)
        return Predictions(frame, found, len(rows), notes)

    def outputs(self, records: pl.DataFrame, *, name: str = "the table") -> Tensor:
        """Probabilities [rows, classes] in the order of their names, or values [rows]."""
        preparation = self.preparation
        assert preparation is not None, "of records in a frame"
        return predicted(preparation.task, self._logits_of(preparation, records, name, row))

    def _logits_of(
        self, preparation: Preparation, records: pl.DataFrame, name: str, place: Place
    ) -> Tensor:
        features = preparation.features(records, name=name, place=place)
        return self._logits(_without_training(preparation, features, self.config))

    def _logits(self, data: VerticalData) -> Tensor:
        """Logits of the test records, [rows, outputs]; without any, no party is made."""
        if not len(data.labels["test"]):
            return torch.empty(0, data.task.outputs)
        torch.set_num_threads(self.config.threads)
        federation = self.parties(data)
        try:
            federation.simulator.upload("test", data.labels["test"].shape[0])
            return logits_of(federation.server, self.raw_head, self.run)
        except RefusedError as error:
            raise DataError(f"the server takes no embeddings of these records: {error}") from None

    def parties(self, data: VerticalData | None = None) -> Federation:
        """Make all parties, with the trained parameters, for records of the shape of ``data``.

        Without ``data`` they are for zeros of the shape that `preparation.json` says, or else for
        the run's own data set. RunError if the parameters do not fit.
        """
        if data is None and self.preparation is not None:
            known = self.preparation.parties.items()
            shapes = {name: torch.zeros(STAND_INS, own.width) for name, own in known}
            data = _without_training(self.preparation, shapes, self.config)
        data = data or Experiment(self.config).data()
        federation = build(for_predicting(self.config), data)
        try:
            federation.parameters = self.parameters
        except (RuntimeError, ValueError, KeyError, TypeError):
            raise RunError(
                f"{self.run}: its checkpoint has parameters of other models than config.yaml and "
                "the data make"
            ) from None
        return federation


def raw_head_of(folder: RunFolder, config: ExperimentConfig) -> State:
    """The state of a finished run's raw head; RunError if it has none."""
    kind = controlled(config).server.final_head
    if kind == "private":
        raise RunError(
            f"{folder.path} has no raw head: its server.final_head is 'private'; predict with "
            "--head private, or train again with another server.final_head"
        )
    if not folder.has(HEAD):
        else_ = "run it again" if config.is_label_free else "predict with --head private"
        raise RunError(
            f"{folder.path} kept no raw head, which a member was silent for or an older version "
            f"made; {else_}"
        )
    head: State = folder.load(HEAD, "head")["head"]
    return head


def logits_of(server: ServerParty, raw_head: State | None, run: str) -> Tensor:
    """Logits of the uploaded test records, by the raw head if its state is given."""
    if raw_head is None:
        return server.logits("test")
    assert server.head is not None, "the configuration names one"
    try:
        server.head.load(raw_head)
        return server.logits("test", "raw")
    except (IndexError, KeyError, TypeError, ValueError):
        raise RunError(f"{run}: its raw head is of another run than config.yaml") from None


def coverage_of(privacy: Mapping[str, Any], head: Head = "private") -> str:
    """A sentence on how a run's guarantee (``privacy`` of its summary) covers predictions."""
    if head == "raw":
        return RAW
    learnt, guarantee = "predictions show what the models have learnt", privacy["guarantee"]
    if not is_bounded(privacy):
        return (
            f"{learnt}; this run's statement is {guarantee!r}, so that no guarantee covers them, "
            "least of all on training records"
        )
    simulated = ", if that noise were secret," if guarantee == "simulated" else ""
    return (
        f"{learnt}; the server model was trained through noise, so that{simulated} "
        f"ε {bound_text(privacy['epsilon'], 3)}, δ {privacy['delta']:g} for labels of training "
        "records holds with them as well, and for nothing else: a prediction is made of its "
        "record's columns"
    )


def predict(
    run: Path, records: pl.DataFrame, *, id_column: str | None = None, head: Head | None = None
) -> pl.DataFrame:
    """Predict records by the run in a folder; arguments and errors as of `Predictor`."""
    return Predictor.load(run, head).predict(records, id_column=id_column).frame


def names_of(records: pl.DataFrame, column: str, name: str) -> pl.Series:
    """The column of the table ``name`` that identifies its records, or DataError."""
    if column not in records.columns:
        raise DataError(
            f"--id names the column {column!r}, which {name} does not have"
            f"{unlike(column, records.columns)}"
        )
    carried = in_seconds(records[column])
    if carried.dtype.is_nested() or str(carried.dtype) in ("Binary", "Object"):
        raise DataError(f"--id names the column {column!r} of {name}, which holds {carried.dtype}")
    return carried


def predicted(task: Task, logits: Tensor) -> Tensor:
    """`Task.predict`, [records, outputs]; RunError if a number is not finite."""
    outputs = task.predict(logits)
    for numbers in (logits, outputs):
        wrong = ~numbers.isfinite()
        if bool(wrong.any()):
            at = int(wrong.reshape(len(numbers), -1).any(1).nonzero()[0, 0])
            raise RunError(
                f"the score of record {at + 1} of {len(numbers)} is {numbers[wrong][0]:g}, which "
                "is no finite number; the record or the model's parameters are beyond what can be "
                "computed with"
            )
    return outputs


def frame_of(
    task: Task, class_names: Sequence[str] | None, logits: Tensor, carried: pl.Series | None
) -> pl.DataFrame:
    """Make `Predictions.frame` from logits [records, outputs].

    DataError if a column would be there twice, RunError if a number is not finite.
    """
    import polars as pl

    first = carried
    if first is None:
        first = pl.Series("row", range(1, len(logits) + 1), dtype=pl.Int64)
    outputs = predicted(task, logits)
    if isinstance(task, Regression):
        columns = [pl.Series(PREDICTION, outputs.numpy())]
    elif isinstance(task, MultiLabel):
        no_and_yes = class_names or ("0", "1")
        columns = []
        for name, likely in zip(task.names, outputs.numpy().T, strict=True):
            holds = [no_and_yes[int(each > 0.5)] for each in likely]
            columns.append(pl.Series(f"{PREDICTION}_{name}", holds, dtype=pl.String))
            columns.append(pl.Series(f"probability_{name}", likely))
    else:
        names = class_names or [str(number) for number in range(task.outputs)]
        likeliest = outputs.numpy().argmax(1)  # among equals the first, as in the accuracy
        columns = [pl.Series(PREDICTION, [names[place] for place in likeliest], dtype=pl.String)]
        columns += [
            pl.Series(f"probability_{name}", outputs[:, place].numpy())
            for place, name in enumerate(names)
        ]
    if first.name in (column.name for column in columns):
        raise DataError(f"--id names the column {first.name!r}, which predictions have themselves")
    return pl.DataFrame([first, *columns])


def check_file(out: Path) -> None:
    """Raise ConfigError for a path that predictions cannot be written to."""
    if out.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"--out {out} must end in .csv or .parquet")
    if out.is_dir():
        raise ConfigError(f"--out {out} is a folder; name a file")
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: there is no folder {out.parent}")


def write_file(frame: pl.DataFrame, out: Path) -> None:
    """Write predictions, whole or not at all, in the format of the file's ending; or RunError."""
    content = io.BytesIO()
    (frame.write_parquet if out.suffix == ".parquet" else frame.write_csv)(content)
    checkpoint.write_atomically(out, content.getvalue())


def _without_training(
    preparation: Preparation, features: Mapping[str, Tensor], config: ExperimentConfig
) -> VerticalData:
    """Vertical data with new records as test records, and zeros as training records."""
    holdings = {
        name: Holding(name, in_place_of_tests(x), preparation.parties[name].cardinalities)
        for name, x in features.items()
    }
    rows = len(next(iter(features.values())))
    holder = config.data.label_holder
    own = None if holder is None else holdings.pop(holder, None)
    clients = list(holdings.values())
    cardinalities = tuple(client.cardinalities for client in clients)
    return VerticalData(
        name=config.data.name,
        task=preparation.task,
        parties=tuple(holdings),
        features=tuple(client.values for client in clients),
        labels=in_place_of_tests(blank_labels(preparation.task, rows)),
        fitted_scaling=False,
        cardinalities=cardinalities if any(cardinalities) else (),
        own=own,
    )


def in_place_of_tests(values: Tensor) -> dict[Purpose, Tensor]:
    """One tensor's partitions: new records as test records, zeros as training records."""
    training = values.new_zeros((STAND_INS, *values.shape[1:]))
    return {"train": training, "validation": training[:0], "test": values}


def for_predicting(config: ExperimentConfig) -> ExperimentConfig:
    """The configuration of parties that only predict: on the processor, no noise on replies.

    Noise on embeddings stays, for its clip.
    """
    server = config.server.model_copy(update={"device": "cpu"})
    changes: dict[str, object] = {
        "batch_size": min(config.batch_size, STAND_INS),
        "client": config.client.model_copy(update={"device": "cpu"}),
        "server": server,
        "data": config.data.model_copy(update={"class_weights": None}),  # classes are nameless here
    }
    if config.privacy.mechanism in ("gaussian", *ON_LABELS):
        changes["privacy"] = PrivacyConfig()
        if config.server.update in PRIVATE:
            changes["server"] = server.model_copy(update={"update": "sgd"})
    return config.model_copy(update=changes)
