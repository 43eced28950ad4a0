"""Scores over gRPC, as `scoring.proto` beside this file describes them.

The messages are made from `MESSAGES` below when the process starts, so that no generated code is
tied to a version of protobuf; a test compares them with the file, which is for callers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from vertizo.core.errors import ConfigError, RunError
from vertizo.network.serving.options import ScoringOptions
from vertizo.network.transport.grpc_channel import (
    address,
    aged,
    bounded,
    grpc_module,
    why_not_listening,
)
from vertizo.ops.scoring.scorer import ID, LONGEST_ID, NotScoredError, Reason, Scorer, Scores

PACKAGE, FILE = "vertizo.scoring.v1", "vertizo/scoring/v1/scoring.proto"
METHOD = f"/{PACKAGE}.Scoring/Score"
THREADS, SLOW = 16, 4
"""Threads for requests; how many of these may wait because of wrong keys."""
IDLE_SECONDS = 60.0
"""Seconds after which a connection without a request is closed."""
CLOSING_SECONDS = 2.0
"""Seconds for requests that are being answered when the server closes."""
CODES: dict[Reason, str] = {
    "unknown": "UNAUTHENTICATED",
    "limited": "RESOURCE_EXHAUSTED",
    "invalid": "INVALID_ARGUMENT",
    "unavailable": "UNAVAILABLE",
}
MESSAGES: dict[str, tuple[tuple[str, str, bool], ...]] = {
    "ScoreRequest": (("ids", "string", True),),
    "ScoreResponse": (
        ("job", "string", False),
        ("ids", "string", True),
        ("columns", "Column", True),
        ("missing", "Missing", True),
    ),
    "Column": (("name", "string", False), ("numbers", "double", True), ("texts", "string", True)),
    "Missing": (("id", "string", False), ("parties", "string", True)),
}
"""Message → its fields in order: name, type, and whether it is repeated."""


def described() -> descriptor_pb2.FileDescriptorProto:
    """Make the file descriptor that the protocol compiler makes of `scoring.proto`."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name=FILE, package=PACKAGE, syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, (field, kind, repeated) in enumerate(fields, 1):
            label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=label, json_name=field)
            if kind in MESSAGES:
                added.type, added.type_name = kinds.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
            else:
                added.type = kinds.TYPE_DOUBLE if kind == "double" else kinds.TYPE_STRING
    asked, answered = f".{PACKAGE}.ScoreRequest", f".{PACKAGE}.ScoreResponse"
    file.service.add(name="Scoring").method.add(
        name="Score", input_type=asked, output_type=answered
    )
    return file


def messages() -> dict[str, Any]:
    """Make the classes of messages, by name."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(described().SerializeToString())
    found = message_factory.GetMessageClassesForFiles([FILE], pool)
    return {name.rpartition(".")[2]: kind for name, kind in found.items()}


@contextmanager
def grpc_at(options: ScoringOptions, scorer: Scorer) -> Iterator[int]:
    """Answer at ``scoring.grpc`` inside; yield the port, 0 if none is wanted.

    RunError if it cannot listen there, ConfigError if the certificate cannot be used.
    """
    if options.grpc is None:
        yield 0
        return
    grpc, kinds, slow = grpc_module(), messages(), threading.Semaphore(SLOW)
    address("scoring.grpc", options.grpc)

    def score(request: Any, context: Any) -> Any:
        given = dict(context.invocation_metadata()).get("authorization", "")
        kind, _, key = given.partition(" ")
        try:
            bearer = key.strip() if kind.lower() == "bearer" else None
            found = scorer.score(bearer, list(request.ids), "grpc")
        except NotScoredError as error:
            if error.reason == "unknown":
                wait = scorer.wrong_keys.wait(_host(context.peer()))
                if wait and slow.acquire(blocking=False):
                    try:
                        time.sleep(wait)
                    finally:
                        slow.release()
            context.abort(grpc.StatusCode[CODES[error.reason]], str(error))
        return _response(kinds, found)

    handler = grpc.unary_unary_rpc_method_handler(
        score,
        request_deserializer=kinds["ScoreRequest"].FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )
    service, method = METHOD.strip("/").split("/")
    largest = 1000 + options.most * (4 * LONGEST_ID + 4)
    with ThreadPoolExecutor(THREADS) as pool:
        limits = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", largest)]
        server = grpc.server(pool, options=[*limits, *bounded(), *aged(IDLE_SECONDS)])
        generic = grpc.method_handlers_generic_handler(service, {method: handler})
        server.add_generic_rpc_handlers((generic,))
        try:
            if options.certificate is None or options.key is None:
                port = server.add_insecure_port(options.grpc)
            else:
                pair = _pair(options.key, options.certificate)
                port = server.add_secure_port(options.grpc, grpc.ssl_server_credentials([pair]))
        except RuntimeError:
            why = why_not_listening(options.grpc)
            raise RunError(f"scoring.grpc: cannot listen on {options.grpc}: {why}") from None
        server.start()
        try:
            yield port
        finally:
            server.stop(CLOSING_SECONDS).wait()


def _host(peer: str) -> str:
    """The host of ``ipv4:127.0.0.1:80`` or ``ipv6:[::1]:80``, where gRPC may write %5B for [."""
    return unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]")


def _pair(key: Path, certificate: Path) -> tuple[bytes, bytes]:
    try:
        return key.read_bytes(), certificate.read_bytes()
    except OSError as error:
        raise ConfigError(f"scoring.certificate {certificate} cannot be used: {error}") from None


def _response(kinds: dict[str, Any], found: Scores) -> Any:
    columns = []
    for column in found.frame.drop(ID):
        values = "numbers" if column.dtype.is_numeric() else "texts"
        columns.append(kinds["Column"](name=column.name, **{values: column.to_list()}))
    missing = [kinds["Missing"](id=key, parties=names) for key, names in found.missing.items()]
    ids = found.frame[ID].to_list()
    return kinds["ScoreResponse"](job=found.job, ids=ids, columns=columns, missing=missing)
