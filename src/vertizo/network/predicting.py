"""Predictions of a trained federation for new records, with all parties at work.

The label holder asks every member for the embeddings of records that all of them have; each embeds
its own columns with the model it ended the job with. Only embeddings travel, and only once all
parties found that they mean the same records in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from vertizo.core.errors import DataError, MalformedError, RefusedError, RunError, WireError
from vertizo.core.names import Head
from vertizo.core.notices import Alarm
from vertizo.core.randomness import Stream
from vertizo.core.version import VERSION
from vertizo.data.alignment import align_table, fingerprint, in_order, keys_of
from vertizo.data.tabular import frames as files
from vertizo.data.tabular.csv_lines import CsvFormat
from vertizo.data.tabular.prepared import raw_matrix
from vertizo.data.tabular.preprocessing import Preprocessing
from vertizo.data.vertical import Holding, VerticalData
from vertizo.models.base import State
from vertizo.models.losses import Task, blank_labels
from vertizo.network import frames
from vertizo.network.client_folder import ClientFolder
from vertizo.network.frames import Done, Hello, Noted, Ready, Refusal, Send, Sent, Terms
from vertizo.network.options import JoinConfig, ServeConfig
from vertizo.network.service import MemberService
from vertizo.network.transport import Answer, Channel
from vertizo.party.server import ServerParty
from vertizo.protocol.messages import Purpose, WirePurpose
from vertizo.run.build_parties import embedding_noise, make_client, make_server
from vertizo.run.folder import RunFolder
from vertizo.run.prediction import (
    STAND_INS,
    for_predicting,
    in_place_of_tests,
    logits_of,
    raw_head_of,
)
from vertizo.run.traffic import UPLOAD_BYTES

WORDS = "These are predictions; the guarantee of the job is in its summary."
REPLACED = Stream.from_seed(0)
"""Of first parameters, which are replaced."""


class NewRecords:
    """A party's new records in a CSV, Excel or Parquet file, in the order of their keys.

    The federation's name keys the fingerprint. Raises a DataError of one line that names the file
    and what is wrong.
    """

    def __init__(self, path: Path, column: str, form: CsvFormat, federation: str) -> None:
        frame = files.read(path, form)
        self.name = str(path)
        keys = keys_of(frame, column, self.name, files.place_in(path, form))
        self.keys = in_order(keys)
        self.frame = align_table(frame, column, self.keys, self.name)
        self.fingerprint = fingerprint(federation, self.keys)

    def features(self, prepare: Preprocessing) -> dict[Purpose, Tensor]:
        """As the party's model takes test records, float32 [records, width]."""
        matrix = raw_matrix(self.frame, prepare.columns, prepare.levels, name=self.name)
        return in_place_of_tests(prepare(matrix))


class PredictingService(MemberService):
    """The label holder's side; a `vertizo.network.transport.Service`.

    ``head`` says which of the job's heads predicts.

    Raises:
        RunError: the job is not over, or has no such head, or the folder is of another.
        DataError: the new records lack a column.
    """

    largest_ask = 2 * UPLOAD_BYTES

    def __init__(
        self,
        config: ServeConfig,
        records: NewRecords,
        notice: Callable[[str], None] = lambda line: None,
        head: Head = "private",
    ) -> None:
        served = config.federation
        super().__init__(served, notice)
        self._folder = served.folder
        folder = RunFolder(served.folder)
        if (summary := folder.summary()) is None:
            raise RunError(f"{served.folder}: the job is not over; `vertizo serve` continues it")
        self._raw_head = raw_head_of(folder, folder.config()) if head == "raw" else None
        if (preparation := folder.preparation()) is None:
            raise RunError(f"{served.folder} holds no table's job; there are no new records for it")
        self.records = records
        self.privacy = summary["privacy"]
        """The section of the job's summary."""
        self.task: Task = preparation.task
        self.class_names = preparation.class_names
        self._federation = served.name
        self._job = folder.run_name()
        self._dims, parameters = _dims_and_parameters(folder)
        if summary["model"] == "best":
            parameters = folder.load("best", "server")["server"]
        holdings = [
            Holding(name, records.features(prepare), prepare.cardinalities)
            for name, prepare in preparation.parties.items()
        ]
        self._party = self._make_party(folder, holdings[0] if holdings else None)
        problem = f"{served.folder}: its checkpoint is of another model than config.yaml"
        _load(self._party.side.model.load, parameters, problem)
        self._ready: set[int] = set()
        self._sent: set[int] = set()
        self._refusals: dict[int, str] = {}

    def _make_party(self, folder: RunFolder, own: Holding | None) -> ServerParty:
        config, count = folder.config(), len(self.records.keys)
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
        return make_server(for_predicting(config), data, self._dims, REPLACED, shared, REPLACED)

    def missing(self) -> list[str]:
        """Members that are waited for."""
        done = self._told if self._is_complete else self._sent
        return [name for client, name in enumerate(self.members) if client not in done]

    @property
    def _is_complete(self) -> bool:
        """Whether all embeddings are there."""
        return len(self._sent) == len(self.members)

    def logits(self) -> Tensor:
        """Of the new records in the order of keys, [records, outputs]; RefusedError if early."""
        return logits_of(self._party, self._raw_head, str(self._folder))

    def ask(self, member: str, frame: bytes, answer: Answer) -> None:
        """As of a `vertizo.network.transport.Service`."""
        with self._lock:
            client = self.members.index(member)
            self._hear(client)
            self._pending[client] = answer
            try:
                self._take(client, frame)
            except (WireError, RefusedError) as error:
                self._refuse(client, str(error))
                return
            for other in list(self._pending):
                self._offer(other)

    def _refuse(self, client: int, words: str) -> None:
        """Tell a member why not, and people, once for each reason on end."""
        self._refused[client] += 1
        if self._refusals.get(client) != words:
            self._refusals[client] = words
            member = self.members[client]
            self._notice(
                Alarm(f"{member} was refused: {words}; waiting for it to be started again")
            )
        self._answer(client, Refusal(words))

    def tick(self) -> None:
        """Name members that are silent; for the driver to call about once a second."""
        with self._lock:
            _, names = self._silent(map(self.members.index, self.missing()))
        if names:
            self._notice(Alarm(f"silent: {names}; waiting for them"))

    def _take(self, client: int, frame: bytes) -> None:
        if frames.is_party_frame(frame):
            if client not in self._ready or self._is_complete:
                raise RefusedError("no embeddings are wanted now")
            self._party.receive_upload(frame, client)
            self._answer(client, Noted())
            return
        ask = frames.decode(frame)
        if isinstance(ask, Hello):
            self._greet(client, ask)
        elif isinstance(ask, Ready):
            self._check(client, ask)
            self._ready.add(client)
        elif isinstance(ask, Sent):
            if self._party.has_uploaded(client, "test"):
                self._sent.add(client)
        else:
            raise MalformedError(f"a {type(ask).__name__}, which is no ask here")

    def _greet(self, client: int, hello: Hello) -> None:
        self._meet(client, hello, self._federation)
        terms = Terms(
            job=self._job,
            index=client,
            members=self.members,
            settings="{}",
            own_tables=True,
            choice=0,
            shared=bytes(32),
            trial=False,
        )
        self._answer(client, terms)

    def _check(self, client: int, ready: Ready) -> None:
        name, rows = self.members[client], len(self.records.keys)
        if ready.job != self._job:
            raise RefusedError(f"the folder of {name} is of another job than the label holder's")
        if ready.embedding_dim != self._dims[client]:
            raise RefusedError(
                f"the model of {name} has {ready.embedding_dim} outputs, and had "
                f"{self._dims[client]} in the job"
            )
        if ready.fingerprint != self.records.fingerprint:
            raise RefusedError(
                f"{name} has {ready.records[2]:,} new records and the label holder {rows:,}, or "
                "not the same ones; run `vertizo align` on both tables first"
            )

    def _offer(self, client: int) -> None:
        if len(self._ready) < len(self.members):
            return
        if client not in self._sent:
            self._answer(client, Send(WirePurpose.test, 0, "best"))
        elif self._is_complete:
            self._answer(client, Done(WORDS, None))
            self._tell_end(client)


def _load(load: Callable[[State], None], parameters: State, problem: str) -> None:
    try:
        load(parameters)
    except (KeyError, TypeError, ValueError):
        raise RunError(problem) from None


def _dims_and_parameters(folder: RunFolder) -> tuple[list[int], State]:
    """The members' embedding sizes, and the server's last parameters."""
    state = folder.load("last", "state")["state"]
    with folder.going_on_from("last"):
        dims = [frames.expect(frame, Ready).embedding_dim for frame in state["ready"]]
        return dims, state["course"]["parameters"]


def help_predict(
    config: JoinConfig,
    records: NewRecords,
    channel: Channel,
    progress: Callable[[float], None] = lambda share: None,
) -> int:
    """A member's side: embed its new records for the label holder; how many there were.

    ``progress`` hears the share that is sent.

    Raises:
        RunError: the job is not over here, or the label holder refuses.
        DataError: the records lack a column.
    """
    folder = ClientFolder(config.federation.folder)
    settings = folder.settings()
    parameters, prepare = folder.model(), folder.preparation()
    hello = Hello(frames.PROTOCOL, config.federation.name, VERSION)
    terms = frames.expect(channel.ask(frames.encode(hello)), Terms)
    folder.check_job(terms.job, terms.index)
    few = for_predicting(settings)
    made = make_client(
        few,
        terms.index,
        records.features(prepare),
        REPLACED,
        clients=len(terms.members),
        cardinalities=prepare.cardinalities,
        shared=REPLACED,
        public=REPLACED,
        noise=embedding_noise(few, STAND_INS),
    )
    problem = f"{folder.path}: its model is another one than its settings make"
    _load(made.model.load, parameters, problem)
    rows = len(records.keys)
    ask: frames.Ask = Ready(
        terms.job, made.embedding_dim, (0, 0, rows), records.fingerprint, False, False
    )
    while True:
        todo = frames.expect(channel.ask(frames.encode(ask)), Send, Done)
        if isinstance(todo, Done):
            return rows
        if todo.purpose is not WirePurpose.test:
            raise DataError(f"the label holder wants {todo.purpose.name!r} records, not new ones")
        frames.upload(channel.ask, made, "test", rows, progress)
        ask = Sent(terms.job, todo.purpose, todo.number)
