"""Small federations for checks, and ways to run them and to compare all that they hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from vertizo.config.schema import ExperimentConfig, parse
from vertizo.core.errors import ConflictError
from vertizo.data.vertical import VerticalData
from vertizo.methods.base import Method
from vertizo.models.losses import Classification
from vertizo.protocol import wire
from vertizo.protocol.codecs.base import Codec
from vertizo.protocol.codecs.none import NoCompression
from vertizo.protocol.messages import Message, Query, Reply
from vertizo.run.loop.federation import Federation
from vertizo.run.loop.federation import build as build_federation
from vertizo.testing.demands import demand, path_of

Named: TypeAlias = str | type[Method]
"""A method: its name or import path, or a class, found in its module by its name."""
CODEC = NoCompression()
HARDLY_ANY = {"privacy.mechanism": "gaussian", "privacy.clip": 1e9, "privacy.noise_std": 1e-9}
"""A mechanism that changes no float32: noise far too small, and a clip that none reaches."""
GAUSSIAN = {"privacy.mechanism": "gaussian", "privacy.clip": 0.5, "privacy.noise_std": 0.3}
EMBEDDING_NOISE = {**GAUSSIAN, "privacy.mechanism": "embedding-noise"}
PLANS: dict[str, dict[str, Any]] = {
    "none": {},
    "gaussian": GAUSSIAN,
    "embedding-noise": EMBEDDING_NOISE,
}

CLASSES, COLUMNS, DIM, HIDDEN = 3, 4, 3, 5
"""Number of classes, columns of each client, sizes of its embedding and the server's layer."""

SMALL = {
    "batch_size": 8,
    "epochs": 2,
    "client.model": {"name": "mlp", "outputs": DIM},
    "client.optimizer.learning_rate": 0.05,
    "client.optimizer.momentum": 0.0,
    "server.model": {"name": "mlp", "hidden": [HIDDEN]},
    "server.optimizer.learning_rate": 0.1,
    "server.optimizer.momentum": 0.0,
    "server.embedding_bound": 1000.0,
}


def data(
    records: int = 29,
    parties: int = 3,
    *,
    held_out: int = 11,
    seed: int = 0,
    sides: tuple[int, ...] = (),
) -> VerticalData:
    """Make data of normal features and labels by a linear rule; ``sides`` makes them images."""
    generator = torch.Generator().manual_seed(seed)
    shape = sides or (COLUMNS,)
    rule = torch.randn(parties * torch.Size(shape).numel(), CLASSES, generator=generator)
    features: list[dict[Any, Tensor]] = [{} for _ in range(parties)]
    labels: dict[Any, Tensor] = {}
    for purpose, rows in (("train", records), ("validation", held_out), ("test", held_out)):
        values = torch.randn(parties, rows, *shape, generator=generator)
        for party, own in zip(features, values, strict=True):
            party[purpose] = own.contiguous()
        labels[purpose] = (torch.cat([v.flatten(1) for v in values], 1) @ rule).argmax(1)
    return VerticalData(
        name="made up",
        task=Classification(CLASSES),
        parties=tuple(f"party{index}" for index in range(parties)),
        features=tuple(features),
        labels=labels,
        fitted_scaling=False,
    )


def two_bits(records: int) -> VerticalData:
    """Make data in which each of two clients' features decide one bit of the label, linearly."""
    generator = torch.Generator().manual_seed(0)
    lines = torch.tensor([[1.0, -1.0, 1.0, -1.0], [1.0, 1.0, -1.0, -1.0]])
    features: tuple[dict[Any, Tensor], ...] = ({}, {})
    labels: dict[Any, Tensor] = {}
    for purpose, rows in (("train", records), ("validation", 4), ("test", 400)):
        values = torch.randn(2, rows, 4, generator=generator)
        sides = [(own @ line > 0).long() for own, line in zip(values, lines, strict=True)]
        labels[purpose] = 2 * sides[0] + sides[1]
        for party, own in zip(features, values, strict=True):
            party[purpose] = own.contiguous()
    return VerticalData("two bits", Classification(4), ("a", "b"), features, labels, False)


def config(
    method: Named = "dpzv", timing: str | None = None, changes: Mapping[str, Any] | None = None
) -> ExperimentConfig:
    """Make a small configuration; ``changes`` has dotted keys."""
    tree: dict[str, Any] = {}
    own: dict[str, Any] = {"method.name": path_of(method), "seed": 0}
    if timing is not None:
        own["simulation.timing"] = timing
    for key, value in {**SMALL, **own, **(changes or {})}.items():
        *folders, last = key.split(".")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[last] = deepcopy(value)  # which the next key may add to
    return parse(tree)


def build(
    method: Named = "dpzv",
    timing: str | None = None,
    changes: Mapping[str, Any] | None = None,
    *,
    of: VerticalData | None = None,
    observer: Callable[[float, Any, int, bytes], None] | None = None,
) -> Federation:
    """Build a small federation that has not started."""
    return build_federation(
        config(method, timing, changes), of if of is not None else data(), observer=observer
    )


@dataclass
class Tape:
    """An observer that records frames as (virtual time, way, client, frame)."""

    up: Codec = CODEC
    down: Codec = CODEC
    seen: list[tuple[float, str, int, bytes]] = field(default_factory=list)

    def __call__(self, now: float, way: str, client: int, frame: bytes) -> None:
        """Record a frame; AssertionError after 100,000, for a run that does not end."""
        demand(len(self.seen) < 100_000, "a run does not end")
        self.seen.append((now, way, client, bytes(frame)))

    def messages(self) -> list[tuple[float, str, int, Message]]:
        """All frames, decoded."""
        codecs = {"up": self.up, "down": self.down}
        return [(now, way, m, wire.decode(frame, codecs[way])) for now, way, m, frame in self.seen]

    def queries(self) -> list[Query]:
        """Every query that was answered, once, in the order of the first replies."""
        taken: dict[tuple[int, int], Query] = {}
        sent: dict[tuple[int, int], Query] = {}
        for _, _, _, message in self.messages():
            if isinstance(message, Query):
                sent[message.client, message.number] = message
            elif isinstance(message, Reply):
                key = message.client, message.number
                taken.setdefault(key, sent[key])
        return list(taken.values())


def ran(
    method: Named = "dpzv",
    timing: str | None = None,
    changes: Mapping[str, Any] | None = None,
    *,
    of: VerticalData | None = None,
    rounds: int | None = None,
) -> tuple[Federation, Tape]:
    """Run a federation for ``rounds`` server steps, or to its end, and record its frames."""
    codecs = config(method, timing, changes).codecs
    tape = Tape(codecs.up, codecs.down)
    federation = build(method, timing, changes, of=of, observer=tape)
    federation.start(upload_table=False)
    go_on(federation, rounds)
    return federation, tape


def go_on(federation: Federation, rounds: int | None = None) -> None:
    """Continue a run for so many server steps, or to its end."""
    while rounds is None or rounds > 0:
        if not federation.simulator.step():
            break
        rounds = None if rounds is None else rounds - 1


def ask(federation: Federation, client: int) -> bytes:
    """The frame of a client's open query, which is made if there is none."""
    party, server = federation.clients[client], federation.server
    try:
        announcement = server.announce(client)
    except ConflictError:  # asynchronous: clients choose their batches
        announcement = None
    return bytes(party.ask(announcement))


def converse(federation: Federation, clients: list[int]) -> None:
    """Let each of the clients ask in turn, and pass replies on as they come."""
    for client in clients:
        for receiver, reply in federation.server.receive(ask(federation, client)):
            federation.clients[receiver].tell(reply)


def query(frame: bytes, codec: Codec = CODEC) -> Query:
    """Decode the frame of a query."""
    return cast(Query, wire.decode(frame, codec))


def reply(frame: bytes) -> Reply:
    """Decode the frame of a reply."""
    return cast(Reply, wire.decode(frame, CODEC))


def encoded(message: Message, codec: Codec = CODEC) -> bytes:
    """Encode a message to a frame."""
    return bytes(wire.encode(message, codec))


def client_holds(federation: Federation, client: int) -> dict[str, Any]:
    """Copy everything that a client keeps."""
    held = {
        "party": federation.clients[client].state(),
        "parameters": federation.models[client].parameters,
        "optimizer": federation.optimizers[client].state(),
    }
    return {key: copied(part) for key, part in held.items()}


def restore_client(federation: Federation, client: int, held: Mapping[str, Any]) -> None:
    """Restore what `client_holds` returned, perhaps into another federation."""
    held = copied(held)
    federation.clients[client].load(held["party"])
    federation.models[client].parameters.copy_(held["parameters"])
    federation.optimizers[client].load(held["optimizer"])


def copied(value: Any) -> Any:
    """A deep copy of a state, which shares no memory with it."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [copied(item) for item in value]
    return value


def differences(a: Any, b: Any, path: str = "") -> list[str]:
    """Paths at which two states differ, bit for bit; empty where they are equal."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        same = a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)
        return [] if same else [path]
    if isinstance(a, Mapping) and isinstance(b, Mapping) and a.keys() == b.keys():
        return [found for key in a for found in differences(a[key], b[key], f"{path}/{key}")]
    if isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        pairs = enumerate(zip(a, b, strict=True))
        return [found for i, (x, y) in pairs for found in differences(x, y, f"{path}/{i}")]
    if isinstance(a, bytes | bytearray | memoryview):
        return [] if bytes(a) == bytes(b) else [path]
    return [] if repr(a) == repr(b) else [f"{path}: {a!r} {b!r}"]


def bits(array: Tensor) -> bytes:
    """An array's bytes, in which NaN equals itself and −0 differs from 0."""
    return array.detach().cpu().contiguous().numpy().tobytes()


def alike(one: Any, other: Any, words: str) -> None:
    """Raise AssertionError unless two states are equal, bit for bit."""
    lines = differences(copied(one), copied(other))
    demand(not lines, f"{words} differs at {', '.join(lines[:3])}")
