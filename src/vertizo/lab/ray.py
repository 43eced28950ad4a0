"""Make many calls of one function on a Ray cluster.

The cluster is one trusted party: its machines see whatever a call is given, which for a simulated
federation is everybody's records. It makes experiments quicker and is no deployment between
parties that do not trust each other (`vertizo.network.transport.grpc`, `vertizo.ops.flare.job`).
"""

from __future__ import annotations

import io
import logging
import os
import socket
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Set
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from itertools import islice
from typing import Any, TextIO, cast

from vertizo.core.errors import ConfigError, RunError
from vertizo.lab.processes import KILLED

LOCAL = "local"
"""Address for a cluster of this machine alone, which ends with the calls."""
AGAIN = "the same command goes on with what is not finished"
PATIENCE = 15.0
"""Seconds that a cluster's head may be silent."""
LOOK = 3.0
"""Seconds between two checks whether the head answers."""


def gather(
    function: Callable[..., Any],
    calls: Iterator[tuple[Any, ...]],
    *,
    cpus: int,
    address: str | None = None,
    at_once: int | None = None,
    runs_per_card: int | None = None,
    lost: Callable[[int, str], None] = lambda place, why: None,
) -> Generator[tuple[int, Any] | None, None, None]:
    """Call a function on a cluster, each time in a process of its own.

    Yields (place among the calls, result) of each call as it ends, and None about twice a second.
    Closing the iterator cancels the running calls. A call whose process or machine is lost is made
    once more, from its beginning. If that one is lost too, or the process took too much memory, the
    result is a RunError.

    Args:
        function: importable on every machine of the cluster.
        calls: the arguments of each call, taken from the iterator only when there is room, so that
            whoever makes them can stop.
        cpus: number of cores reserved for each call.
        address: address of the cluster; None for that in the environment variable RAY_ADDRESS, or
            else a cluster of this machine that is started now.
        at_once: most calls at a time; None for as many as the cluster has room for.
        runs_per_card: calls at a time on each graphics card; None for calls that need none.
        lost: called with the place of a call that is made once more, and the reason.

    Raises:
        ConfigError: Ray is not installed, or no machine has so many cores, or a card.
        RunError: there is no such cluster, its head is lost, or vertizo is not installed there.
    """
    numbered = enumerate(calls)
    waiting: deque[tuple[int, tuple[Any, ...]]] = deque()  # those that are made once more
    repeated: set[int] = set()
    with connected(address) as ray:
        room = _room(ray, cpus, runs_per_card)
        head = _Head(ray, address)
        share = 1 / runs_per_card if runs_per_card else 0
        once = ray.remote(num_cpus=cpus, num_gpus=share, max_calls=1, max_retries=0)
        remote = once(function)
        going: dict[Any, tuple[int, tuple[Any, ...]]] = {}
        try:
            while True:
                free = max(0, min(room, at_once or room) - len(going))
                for place, arguments in islice(_both(waiting, numbered), free):
                    going[remote.remote(*arguments)] = place, arguments
                if not going:
                    return
                done, _ = ray.wait(list(going), timeout=0.5)
                for reference in done:
                    place, arguments = going.pop(reference)
                    try:
                        result = _result(ray, reference)
                    except _LostError as error:
                        if place not in repeated:
                            repeated.add(place)
                            waiting.append((place, arguments))
                            lost(place, str(error))
                            continue
                        result = RunError(f"{error} twice; {AGAIN}")
                    yield place, result
                if head.answers_now() and repeated:
                    room = _room(ray, cpus, runs_per_card)  # a machine that is gone had cores
                yield None
        finally:
            for reference in going:
                with suppress(ray.exceptions.RayError):
                    ray.cancel(reference, force=True)


def _both(first: deque[Any], then: Iterator[Any]) -> Iterator[Any]:
    while first:
        yield first.popleft()
    yield from then


@contextmanager
def connected(address: str | None, cpus: int | None = None) -> Iterator[Any]:
    """Yield Ray, connected to a cluster; an existing connection of the process is used again.

    A cluster that is started now has ``cpus`` cores, or all; address and errors are as of `gather`.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing is reported to anybody
    if os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH"):
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # Ray would not send it
    try:
        import ray
    except ImportError:
        raise ConfigError("--engine ray needs Ray; pip install 'vertizo[ray]'") from None
    if ray.is_initialized():
        yield ray
        return
    wanted = _wanted(address)
    with ExitStack() as stack:
        own: dict[str, Any] = {}
        if wanted == LOCAL:
            stack.enter_context(_own_folder())
            own = {"include_dashboard": False, "num_cpus": cpus}
        elif place := _place(wanted):
            _check_answers(wanted, place)
        before = {*threading.enumerate()}
        with _kept_from_terminal() as said:
            try:
                ray.init(wanted, log_to_driver=False, logging_level=logging.ERROR, **own)
            except (
                *(ConnectionError, TimeoutError, OSError, RuntimeError, ValueError),
                ray.exceptions.RayError,
            ) as error:
                raise RunError(_refusal(wanted, f"{error}\n{said()}")) from None
        rays = {*threading.enumerate()} - before
        try:
            with redirect_stdout(cast(TextIO, _WithoutRay(sys.stdout, rays))):
                yield ray
        finally:
            with redirect_stdout(io.StringIO()):  # where it would print what it held back
                ray.shutdown()


@contextmanager
def _own_folder() -> Iterator[None]:
    """Let Ray keep its files in a temporary folder, which is removed afterwards."""
    before = os.environ.get("RAY_TMPDIR")
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as scratch:
        os.environ["RAY_TMPDIR"] = scratch
        try:
            yield
        finally:
            del os.environ["RAY_TMPDIR"]
            if before is not None:
                os.environ["RAY_TMPDIR"] = before


class _WithoutRay:
    """Standard output without what Ray's threads print about a lost process, for want of an option.

    We report that ourselves, in one line, and ``--json`` prints its result here.
    """

    def __init__(self, stream: TextIO, rays: Set[threading.Thread]) -> None:
        self._stream, self._rays = stream, rays

    def write(self, text: str) -> int:
        return len(text) if threading.current_thread() in self._rays else self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _wanted(address: str | None) -> str:
    return address or os.environ.get("RAY_ADDRESS") or LOCAL


def _place(address: str) -> tuple[str, int] | None:
    """Parse host and port; None for another address, such as auto, which Ray resolves itself."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    return (host.strip("[]"), int(port)) if host and port.isdigit() else None


def _check_answers(address: str, place: tuple[str, int]) -> None:
    """Raise a `RunError` for an address where nobody answers, which Ray would try for minutes."""
    try:
        socket.create_connection(place, timeout=10).close()
    except (OSError, OverflowError) as error:
        raise RunError(f"--ray-address {address} cannot be reached: {error}") from None


@contextmanager
def _kept_from_terminal() -> Iterator[Callable[[], str]]:
    """Capture Ray's compiled part's standard error; yield a function that returns it."""
    with tempfile.TemporaryFile() as kept:

        def said() -> str:
            kept.seek(0)
            return kept.read().decode(errors="replace")

        before = os.dup(2)
        os.dup2(kept.fileno(), 2)
        try:
            yield said
        finally:
            os.dup2(before, 2)
            os.close(before)


def _refusal(address: str, said: str) -> str:
    """Write in a line why there is no connection."""
    if "InvalidAuthToken" in said or "AuthenticationError" in said or "auth-token" in said:
        return (
            f"--ray-address {address} refuses this machine's token; set RAY_AUTH_TOKEN to what "
            "`ray get-auth-token` prints where the cluster was started"
        )
    if "Version mismatch" in said:
        words = " ".join(said.partition("Version mismatch:")[2].split())
        return f"--ray-address {address} has another version of Python or Ray: {words}"
    first = next(filter(None, said.splitlines()), "")
    if address == LOCAL:
        return f"Ray cannot be started on this machine: {first}"
    return f"--ray-address {address} cannot be reached: {first}"


class _Head:
    """The head node of a cluster, without which nothing goes on."""

    def __init__(self, ray: Any, address: str | None) -> None:
        self._place = _place(_wanted(address)) or _place(ray.get_runtime_context().gcs_address)
        self._heard = self._looked = time.monotonic()

    def answers_now(self) -> bool:
        """Whether the head was asked just now and answered; it is asked every `LOOK` seconds.

        RunError after `PATIENCE` seconds of silence. Ray itself would wait, and end the process.
        """
        now = time.monotonic()
        if self._place is None or now - self._looked < LOOK:
            return False
        self._looked = now
        try:
            socket.create_connection(self._place, timeout=2).close()
            self._heard = now
            return True
        except OSError:
            if now - self._heard <= PATIENCE:
                return False
        host, port = self._place
        raise RunError(
            f"the head of the Ray cluster, {host}:{port}, has not answered for"
            f" {now - self._heard:.0f} seconds; {AGAIN}"
        )


def _room(ray: Any, cpus: int, runs_per_card: int | None) -> int:
    """Count the calls for which the machines have room; ConfigError if there is room for none."""
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cores = [int(machine.get("CPU", 0)) for machine in machines]
    if not any(each // cpus for each in cores):
        raise ConfigError(
            f"threads is {cpus} but no machine of the cluster has more cores than "
            f"{max(cores, default=0)}"
        )
    rooms = [each // cpus for each in cores]
    if runs_per_card is not None:
        cards = (int(machine.get("GPU", 0)) * runs_per_card for machine in machines)
        rooms = [*map(min, rooms, cards)]
    if not sum(rooms):
        raise ConfigError("device is 'cuda', but no machine of the cluster has a graphics card")
    return sum(rooms)


class _LostError(Exception):
    """A call's process or machine was lost; the message says which."""


def _result(ray: Any, reference: Any) -> Any:
    """Return a call's result, or raise its error."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if "failed to import" in str(error) or isinstance(error.cause, ImportError):
            last = str(error).strip().splitlines()[-1]
            raise RunError(
                f"the cluster's machines need vertizo and all that it needs: {last}"
            ) from None
        raise
    except ray.exceptions.NodeDiedError:
        raise _LostError("its machine was lost") from None
    except ray.exceptions.WorkerCrashedError:
        raise _LostError("its process was killed") from None
    except ray.exceptions.OutOfMemoryError as error:
        return RunError(f"{KILLED} ({_first(error)})")
    except ray.exceptions.LocalRayletDiedError:
        raise RunError(f"this machine's node of the Ray cluster was lost; {AGAIN}") from None
    except ray.exceptions.RayError as error:
        words = f"{type(error).__name__}: {_first(error)}"
        raise RunError(f"the Ray cluster lost a run ({words}); {AGAIN}") from None


def _first(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0]
