"""Jobs of real parties for tests: one label holder, several members, small data."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from vertizo.network.joining import Joined, Member
from vertizo.network.options import JoinConfig, ServeConfig
from vertizo.network.serving import FederationService
from vertizo.network.transport import Channel, Service

MEMBERS = ("north", "east", "south", "west")

SMALL: dict[str, Any] = {
    "epochs": 2,
    "batch_size": 32,
    "data": {"name": "digits", "limit": 200, "test_limit": 60},
    "client": {"model": {"hidden": [8], "outputs": 4}},
    "server": {"model": {"hidden": [8]}},
}


class DirectChannel:
    """A member in the service's own process, which asks again every ``patience`` seconds."""

    def __init__(self, service: Service, member: str, patience: float = 1.0) -> None:
        self._service = service
        self._member = member
        self._patience = patience

    def ask(self, frame: bytes) -> bytes:
        while True:
            answers: Queue[bytes] = Queue()
            rest = self._service.ask(self._member, frame, answers.put)
            if rest is not None:
                rest()
            with suppress(Empty):
                return answers.get(timeout=self._patience)

    def close(self) -> None:
        self._service.gone(self._member)


def serve_config(folder: Path, *, federation: dict[str, Any] | None = None, **keys: Any) -> Any:
    """A label holder's configuration; ``keys`` replace those of `SMALL`."""
    served = {
        "name": "test",
        "members": list(MEMBERS),
        "certificates": folder / "certs",
        "folder": folder / "server",
        "trial": True,
        "patience": 5.0,
    }
    tree = {**SMALL, **keys, "federation": {**served, **(federation or {})}}
    return ServeConfig.model_validate(tree)


def join_config(folder: Path, member: str, *, trial: bool = True, **keys: Any) -> JoinConfig:
    """A member's configuration."""
    federation = {
        "name": "test",
        "server": "localhost:1",
        "certificates": folder / "certs" / member,
        "folder": folder / member,
        "trial": trial,
        "patience": 30.0,
    }
    return JoinConfig.model_validate({"federation": federation, **keys})


@contextmanager
def ticking(service: FederationService) -> Iterator[list[Exception]]:
    """A driver's thread; what ``tick`` raised is in the list."""
    stop, raised = threading.Event(), []

    def drive() -> None:
        try:
            while not stop.wait(0.02):
                service.tick()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=drive)
    thread.start()
    try:
        yield raised
    finally:
        stop.set()
        thread.join()


def joined(
    configs: Sequence[JoinConfig], channels: Callable[[str], Channel], seconds: float = 60.0
) -> list[Joined]:
    """All members run to the end, each in a thread; raises what the first of them raised."""
    results: dict[int, Joined] = {}
    errors: list[BaseException] = []

    def work(place: int, config: JoinConfig) -> None:
        try:
            with Member(config, channels(config.federation.folder.name)) as member:
                results[place] = member.run()
        except BaseException as error:
            errors.append(error)

    # Not a pool, which would wait at the end of the tests for a thread that hangs.
    each = [threading.Thread(target=work, args=a, daemon=True) for a in enumerate(configs)]
    for thread in each:
        thread.start()
    for thread in each:
        thread.join(seconds)
        if errors:
            raise errors[0]
    assert len(results) == len(configs), "somebody did not finish"
    return [results[place] for place in sorted(results)]


def direct(service: FederationService) -> Callable[[str], Channel]:
    """Channels within this process."""
    return lambda member: DirectChannel(service, member, patience=5.0)
