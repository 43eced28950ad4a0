"""Trained models of a finished job, which each party loads from its own folder to predict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from vertizo.core.errors import RefusedError, RunError
from vertizo.core.names import Head
from vertizo.core.randomness import Stream
from vertizo.data.tabular.preprocessing import Preprocessing
from vertizo.data.vertical import Holding, VerticalData
from vertizo.models.base import State
from vertizo.models.losses import Task, blank_labels
from vertizo.network.serving import frames
from vertizo.network.serving.client_folder import ClientFolder
from vertizo.network.serving.frames import Ready, Terms
from vertizo.network.serving.options import ServeConfig
from vertizo.party.server import ServerParty
from vertizo.protocol.messages import Purpose
from vertizo.run.build.client import MadeClient, embedding_noise, make_client
from vertizo.run.build.server import make_server
from vertizo.run.results.folder import RunFolder
from vertizo.run.trained.prediction import STAND_INS, for_predicting, in_place_of_tests, raw_head_of

REPLACED = Stream.from_seed(0)
"""Randomness of first parameters, which trained ones replace."""


class LabelHolderModel:
    """The label holder's part of a trained federation.

    ``head`` says which of the job's heads predicts; None for that of its figures. RunError if the
    job is not over, has no such head, or was not about a table.
    """

    def __init__(self, config: ServeConfig, head: Head | None = None) -> None:
        served = config.federation
        self._folder = folder = RunFolder(served.folder)
        self.name = str(served.folder)
        """The job's name in messages: its folder."""
        self.members = tuple(served.members)
        if (summary := folder.summary()) is None:
            raise RunError(f"{served.folder}: the job is not over; `vertizo serve` continues it")
        if head == "private" and folder.config().is_label_free:
            raise RunError(f"{self.name} trains nothing but its raw head; predict with --head raw")
        self.head: Head = head or folder.config().predicts_by
        self.raw_head = raw_head_of(folder, folder.config()) if self.head == "raw" else None
        if (preparation := folder.preparation()) is None:
            raise RunError(f"{served.folder} holds no table's job; there are no new records for it")
        self.privacy = summary["privacy"]
        self.task: Task = preparation.task
        self.class_names = preparation.class_names
        self.job = folder.run_name()
        self.own: Preprocessing | None = next(iter(preparation.parties.values()), None)
        """The preparation of the label holder's own columns; None if it has none."""
        state = folder.load("last", "state")["state"]
        with folder.going_on_from("last"):
            self.dims = [frames.expect(frame, Ready).embedding_dim for frame in state["ready"]]
            self._parameters: State = state["course"]["parameters"]
        if summary["model"] == "best":
            self._parameters = folder.load("best", "server")["server"]

    def check(self, client: int, ready: Ready) -> None:
        """Raise RefusedError unless a member's folder is of this job and its model of that size."""
        name, dim = self.members[client], self.dims[client]
        if ready.job != self.job:
            raise RefusedError(f"the folder of {name} is of another job than the label holder's")
        if ready.embedding_dim != dim:
            raise RefusedError(
                f"the model of {name} has {ready.embedding_dim} outputs, and had {dim} in the job"
            )

    def party(self, features: Mapping[Purpose, Tensor] | None, count: int) -> ServerParty:
        """Make the trained party for ``count`` new records, with its own features of them.

        RunError if the folder's parameters are another model's.
        """
        config = self._folder.config()
        own = None
        if self.own is not None:
            assert features is not None, "of its own columns"
            own = Holding(self.name, features, self.own.cardinalities)
        data = VerticalData(
            name=config.data.name,
            task=self.task,
            parties=self.members,
            features=(),
            labels=in_place_of_tests(blank_labels(self.task, count)),
            fitted_scaling=False,
            own=own,
        )
        shared = [REPLACED] * len(self.members)
        made = make_server(for_predicting(config), data, self.dims, REPLACED, shared, REPLACED)
        problem = f"{self.name}: its checkpoint is of another model than config.yaml"
        _load(made.side.model.load, self._parameters, problem)
        return made


class MemberModel:
    """A member's part of a trained federation; RunError if the job is not over or had no table."""

    def __init__(self, path: Path) -> None:
        self._folder = folder = ClientFolder(path)
        self._settings = for_predicting(folder.settings())
        self._parameters = folder.model()
        self.preparation = folder.preparation()

    def party(self, terms: Terms, features: Mapping[Purpose, Tensor]) -> MadeClient:
        """Make the trained party for new records.

        RunError if the folder is of another job, or its parameters are another model's.
        """
        self._folder.check_job(terms.job, terms.index)
        made = make_client(
            self._settings,
            terms.index,
            features,
            REPLACED,
            clients=len(terms.members),
            cardinalities=self.preparation.cardinalities,
            shared=REPLACED,
            public=REPLACED,
            noise=embedding_noise(self._settings, STAND_INS),
        )
        problem = f"{self._folder.path}: its model is another one than its settings make"
        _load(made.model.load, self._parameters, problem)
        return made


def terms_of(job: str, members: tuple[str, ...], client: int) -> Terms:
    """The terms that tell a member which finished job is meant."""
    return Terms(
        job=job,
        index=client,
        members=members,
        settings="{}",
        own_tables=True,
        choice=0,
        shared=bytes(32),
        trial=False,
    )


def _load(load: Callable[[State], None], parameters: State, problem: str) -> None:
    try:
        load(parameters)
    except (KeyError, TypeError, ValueError):
        raise RunError(problem) from None
