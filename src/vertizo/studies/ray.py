"""Many calls of one function over a Ray cluster.

The cluster is one trusted party: its machines see whatever a call is given, which for a simulated
federation is everybody's records. It makes experiments quicker and is no deployment between
parties that do not trust each other (`vertizo.network.grpc`, `vertizo.network.flare.job`).
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import islice
from tempfile import TemporaryDirectory
from typing import Any

from vertizo.core.errors import ConfigError, RunError
from vertizo.studies.processes import KILLED

LOCAL = "local"
"""In place of an address: a cluster of this machine alone, which ends with the calls."""


def gather(
    function: Callable[..., Any],
    calls: Iterator[tuple[Any, ...]],
    *,
    cpus: int,
    address: str | None = None,
    at_once: int | None = None,
) -> Generator[tuple[int, Any] | None, None, None]:
    """Call a function on a cluster, each time in a process of its own.

    Yields (place among the calls, result) of each call as it ends, and None about twice a second.
    What is still going when the iterator is closed is cancelled.

    Args:
        function: importable on every machine of the cluster.
        calls: the arguments of each call; the next is asked for when there is room for it and no
            sooner, so that whoever makes them can stop.
        cpus: cores that are set aside for each call.
        address: of a cluster; None for that of the environment variable RAY_ADDRESS, or else
            one of this machine that is started now.
        at_once: most calls at a time; None for as many as the cluster has cores for.

    Raises:
        ConfigError: Ray is not installed, or no machine has so many cores.
        RunError: there is no such cluster, a process was killed, or vertizo is not installed there.
    """
    numbered = enumerate(calls)
    with connected(address) as ray:
        room = _room(ray, cpus)
        # No second try: a process that ran out of memory would run out of it again.
        remote = ray.remote(num_cpus=cpus, max_calls=1, max_retries=0)(function)
        going: dict[Any, int] = {}
        try:
            while True:
                for place, arguments in islice(numbered, min(room, at_once or room) - len(going)):
                    going[remote.remote(*arguments)] = place
                if not going:
                    return
                done, _ = ray.wait(list(going), timeout=0.5)
                for reference in done:
                    yield going.pop(reference), _result(ray, reference)
                yield None
        finally:
            for reference in going:
                ray.cancel(reference, force=True)


@contextmanager
def connected(address: str | None, cpus: int | None = None) -> Iterator[Any]:
    """Ray, connected: to what the process is connected to already, or for as long as this lasts.

    A cluster that is started now has so many ``cpus``; None for all cores of this machine. Of the
    address and of errors see `gather`.
    """
    try:
        import ray
    except ImportError:
        raise ConfigError("--engine ray needs Ray; pip install 'vertizo[ray]'") from None
    if ray.is_initialized():
        yield ray
        return
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing is reported to anybody
    wanted = address or os.environ.get("RAY_ADDRESS") or LOCAL
    with TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as scratch:
        own: dict[str, Any] = {}
        if wanted == LOCAL:
            own = {"include_dashboard": False, "_temp_dir": scratch, "num_cpus": cpus}
        else:
            _check_answers(wanted)
        try:
            ray.init(wanted, log_to_driver=False, logging_level=logging.ERROR, **own)
        except (ConnectionError, TimeoutError, OSError, RuntimeError, ValueError) as error:
            first = (str(error).splitlines() or [""])[0]
            raise RunError(f"--ray-address {wanted} cannot be reached: {first}") from None
        try:
            yield ray
        finally:
            ray.shutdown()


def _check_answers(address: str) -> None:
    """Refuse an address where nobody answers, which Ray would try for minutes."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if not host or not port.isdigit():
        return  # such as auto: Ray knows where to look
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise RunError(f"--ray-address {address} cannot be reached: {error}") from None


def _room(ray: Any, cpus: int) -> int:
    """How many calls the machines have cores for, which must be one at least."""
    cores = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    room = sum(each // cpus for each in cores)
    if not room:
        raise ConfigError(
            f"threads is {cpus} but no machine of the cluster has more cores than "
            f"{max(cores, default=0)}"
        )
    return room


def _result(ray: Any, reference: Any) -> Any:
    """What a call returned; what it raised is raised here."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if "failed to import" in str(error) or isinstance(error.cause, ImportError):
            last = str(error).strip().splitlines()[-1]
            raise RunError(
                f"the cluster's machines need vertizo and all that it needs: {last}"
            ) from None
        raise
    except ray.exceptions.RayError as error:
        first = (str(error).splitlines() or [""])[0]
        raise RunError(f"{KILLED} ({type(error).__name__}: {first})") from None
