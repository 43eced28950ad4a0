"""Monitoring of a party from outside: figures for Prometheus and gRPC's health, each at a port."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from importlib import import_module
from typing import Any

from vertizo.core.errors import ConfigError, RunError
from vertizo.network.transport.grpc_channel import (
    address,
    aged,
    bounded,
    grpc_module,
    why_not_listening,
)
from vertizo.ops.figures import Figure, ServedFigures, joined_figures

SERVICE = "vertizo.Parties"
"""The `grpc.health.v1` service that says whether this party can do its part now.

The service of the empty name says whether its process lives.
"""
MOST_SCRAPES = 32
"""Connections for figures at a time."""
EVERY = 0.5
"""Seconds between two checks of whether it can."""
IDLE_SECONDS = 5.0
"""Seconds after which a connection that asks nothing is closed."""


def _needed(module: str, package: str, key: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise ConfigError(
            f"federation.{key} needs {package}: pip install 'vertizo[metrics]'"
        ) from None


def figures_at(listen: str, figures: Callable[[], Iterable[Figure]]) -> AbstractContextManager[int]:
    """Answer Prometheus at an address inside; yield the port. RunError if it cannot listen."""
    prometheus = _needed("prometheus_client", "prometheus-client", "metrics")
    _needed("uvicorn", "uvicorn", "metrics")
    from vertizo.network.transport import http_server

    core = import_module("prometheus_client.core")

    class Collected:
        """Collects the figures that Prometheus asks for."""

        def collect(self) -> Iterator[Any]:
            families: dict[str, Any] = {}
            for figure in figures():
                family = families.get(figure.name)
                if family is None:
                    counts = figure.name.endswith("_total")
                    kind = core.CounterMetricFamily if counts else core.GaugeMetricFamily
                    family = kind(figure.name, figure.help, labels=list(figure.labels))
                    families[figure.name] = family
                family.add_metric(list(figure.labels.values()), float(figure.value))
            yield from families.values()

    registry = prometheus.CollectorRegistry()
    registry.register(Collected())
    app = prometheus.make_asgi_app(registry)
    limits = http_server.Limits.of_files(MOST_SCRAPES)
    return http_server.http_at("federation.metrics", listen, app, limits)


def served_at(listen: str, *subject: Any) -> AbstractContextManager[int]:
    """Serve a job's figures at its label holder; ``subject`` is what `ServedFigures` takes."""
    return figures_at(listen, ServedFigures(*subject))


def joined_at(listen: str, *subject: Any) -> AbstractContextManager[int]:
    """Serve a job's figures at a member; ``subject`` is what `joined_figures` takes."""
    return figures_at(listen, partial(joined_figures, *subject))


@contextmanager
def health_at(listen: str, is_ready: Callable[[], bool]) -> Iterator[int]:
    """Answer `grpc.health.v1` at an address inside; yield the port. RunError if it cannot listen.

    It is not encrypted, since a cluster's probes have no certificate.
    """
    grpc = grpc_module()
    health = _needed("grpc_health.v1.health", "grpcio-health-checking", "health")
    messages = import_module("grpc_health.v1.health_pb2")
    stubs = import_module("grpc_health.v1.health_pb2_grpc")
    address("federation.health", listen)
    kinds = messages.HealthCheckResponse
    with ThreadPoolExecutor(2) as pool, ThreadPoolExecutor(2) as watchers:
        answers = health.HealthServicer(
            experimental_non_blocking=True, experimental_thread_pool=watchers
        )
        limits = [*bounded(), *aged(IDLE_SECONDS)]
        server = grpc.server(pool, options=[("grpc.so_reuseport", 0), *limits])
        stubs.add_HealthServicer_to_server(answers, server)
        try:
            port = server.add_insecure_port(listen)
        except RuntimeError:
            why = why_not_listening(listen)
            raise RunError(f"federation.health: cannot listen on {listen}: {why}") from None
        stopped = threading.Event()

        def look() -> None:
            while True:
                ready = is_ready()
                answers.set(SERVICE, kinds.SERVING if ready else kinds.NOT_SERVING)
                if stopped.wait(EVERY):
                    return

        answers.set("", kinds.SERVING)
        looker = threading.Thread(target=look, name="vertizo-health", daemon=True)
        looker.start()
        server.start()
        try:
            yield port
        finally:
            stopped.set()
            looker.join()
            answers.enter_graceful_shutdown()
            server.stop(0.5).wait()
