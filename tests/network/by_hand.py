"""Members that are made by hand, for tests that need no real party; and a way there over gRPC."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import torch
from tests import deployments as dep
from tests.lazy import Lazy

from vertizo.data.tabular.csv_lines import CsvFormat
from vertizo.network.serving import frames
from vertizo.network.serving.joining import Member
from vertizo.network.serving.options import JoinConfig, ServeConfig
from vertizo.network.serving.predicting import NewRecords, PredictingService, help_predict
from vertizo.network.serving.serving import FederationService
from vertizo.network.transport.authority import issue
from vertizo.network.transport.certificates import Credentials
from vertizo.network.transport.grpc import GrpcServer
from vertizo.network.transport.grpc_channel import GrpcChannel
from vertizo.protocol import wire
from vertizo.protocol.codecs.none import NoCompression
from vertizo.protocol.messages import Query, Reply, Upload, WirePurpose
from vertizo.run.loop.job_state import JobState

sklearn_datasets = Lazy("sklearn.datasets")

CODEC = NoCompression()
POINTS, DIM = 2, 4


def ready(service: FederationService, dim: int = DIM) -> bytes:
    counts = service._archive.records.counts
    return frames.encode(frames.Ready(service._archive.run, dim, counts, b"", False, False))


def begin(service: FederationService, dim: int = DIM) -> None:
    """All members say that they are ready."""
    for member in dep.MEMBERS:
        service.ask(member, ready(service, dim), lambda answer: None)


def upload_all(service: FederationService) -> None:
    """And upload their tables."""
    rows = service._archive.records.counts[0]
    for client, member in enumerate(dep.MEMBERS):
        answer_to(service, member, table(client, rows))
        sent = frames.Sent(service._archive.run, WirePurpose.train, 0)
        service.ask(member, frames.encode(sent), lambda answer: None)


def table(client: int, rows: int) -> bytes:
    values = torch.ones(1, rows, DIM)
    return wire.encode(Upload(client, "train", torch.arange(rows), values), CODEC)


def query(client: int, number: int, first: int = 0, count: int = 32) -> bytes:
    ids = torch.arange(first, first + count)
    generator = torch.Generator().manual_seed(100 * client + number)
    values = torch.randn(POINTS, count, DIM, generator=generator)
    return wire.encode(Query(client, number, ids, values), CODEC)


def answer_to(service: FederationService, member: str, frame: bytes) -> bytes:
    answers: list[bytes] = []
    service.ask(member, frame, answers.append)
    return next(frames.split(answers[0])) if answers else b""


def refused(service: FederationService, member: str, frame: bytes) -> str:
    found = frames.decode(answer_to(service, member, frame))
    assert isinstance(found, frames.Refusal)
    return found.words


def replied(service: FederationService, member: str, frame: bytes) -> Reply:
    found = wire.decode(answer_to(service, member, frame), CODEC)
    assert isinstance(found, Reply)
    return found


def live(service: FederationService) -> JobState:
    """The state of a job that has begun."""
    assert service.state is not None
    return service.state


def state_of(service: FederationService) -> tuple[Any, ...]:
    """Round, parameters, and the bytes that the journal has."""
    party, journal = live(service).job.party, service._archive._store._journal
    assert journal is not None
    return party.round, party.side.model.parameters.tolist(), journal.size


def leave(party: FederationService | Member) -> None:
    """End as a killed process does: nothing is saved, files and locks are let go."""
    if isinstance(party, FederationService):
        party._archive.close()
    else:
        party._store.close()
        party._exit.close()


@contextmanager
def over_grpc(folder: Path, service: Any) -> Iterator[Callable[[str], GrpcChannel]]:
    """Each member's channel to a service, over loopback with mutual TLS."""
    issue(folder / "certs", "bank", list(service.members), ["localhost"], 1)
    bank = Credentials.load(folder / "certs" / "bank")
    with ExitStack() as stack:
        net = stack.enter_context(GrpcServer(service, listen="localhost:0", credentials=bank))

        def channel(member: str) -> GrpcChannel:
            mine = Credentials.load(folder / "certs" / member)
            made = GrpcChannel(f"localhost:{net.port}", mine, patience=30.0)
            return stack.enter_context(closing(made))

        yield channel


# Parties with tables of their own.

CLASSES = ["benign", "malignant"]
NAMES = ("lab", "clinic")
"""The members of `holder_config`."""


def write_tables(folder: Path, own: Mapping[str, Sequence[str]], known: int) -> None:
    """Parties' tables of the same people, each in an order of its own, and of new people."""
    whole = sklearn_datasets.load_breast_cancer()
    frame = pl.DataFrame(whole.data, schema=[f"x{n}" for n in range(30)]).with_columns(
        pl.Series("key", range(1000, 1000 + len(whole.target))),
        pl.Series("diagnosis", [CLASSES[int(y == 0)] for y in whole.target]),
    )
    for seed, (party, columns) in enumerate(own.items()):
        halves = frame[:known], frame[known:]
        old, new = (half.sample(fraction=1.0, shuffle=True, seed=seed) for half in halves)
        old.select("key", *columns).write_csv(folder / f"{party}.csv")
        new.select("key", *columns).drop("diagnosis", strict=False).write_csv(
            folder / f"{party}.new.csv"
        )


def holder(tables: Path, folder: Path, federation: dict[str, Any], **keys: Any) -> ServeConfig:
    """The configuration of the label holder of such tables."""
    here = {"name": "t", "members": ["lab", "clinic"], "certificates": folder}
    data = {"name": "table", "path": tables / "bank.csv", "id": "key", "label": "diagnosis"}
    tree = {
        "federation": {**here, "folder": folder / "run", **federation},
        "data": {**data, "classes": CLASSES},
        **keys,
    }
    return ServeConfig.model_validate(tree)


def member(tables: Path, folder: Path, name: str, **federation: Any) -> JoinConfig:
    """The configuration of a member that has one of such tables."""
    here = {"name": "t", "server": "h:1", "certificates": folder, "folder": folder / name}
    data = {"path": tables / f"{name}.csv", "id": "key"}
    return JoinConfig.model_validate({"federation": {**here, **federation}, "data": data})


def new_records(tables: Path, name: str) -> NewRecords:
    """A party's new people."""
    return NewRecords(tables / f"{name}.new.csv", "key", CsvFormat(), "t")


def predicted_together(service: PredictingService, tables: Path, folder: Path) -> torch.Tensor:
    """The logits of all new people, to which every member gives its part."""

    def work(name: str) -> int:
        channel = dep.DirectChannel(service, name)
        return help_predict(member(tables, folder, name), new_records(tables, name), channel)

    assert dep.together([partial(work, name) for name in NAMES]) == [69, 69]
    assert service.finished.wait(120)
    return service.logits()


def holder_config(
    tables: Path, folder: Path, *, scoring: dict[str, Any] | None = None, **federation: Any
) -> ServeConfig:
    """The configuration of the label holder of the fixture ``tables``, with two heads."""
    keys = {**dep.IN_STEP, "server": {"final_head": "boosting"}, "client": {"pretrain": "splines"}}
    more = {} if scoring is None else {"scoring": scoring}
    return holder(tables, folder, federation, epochs=24, batch_size=64, **keys, **more)
