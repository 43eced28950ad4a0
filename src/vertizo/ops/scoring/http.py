"""Scores over HTTP with JSON; `/openapi.json` describes it for programs.

The key is checked before anything else is read. `scorer` decides what is answered, and what is
refused and why.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from vertizo.core.version import VERSION
from vertizo.network.serving.options import ScoringOptions
from vertizo.network.transport import http_server
from vertizo.ops.scoring.scorer import LONGEST_ID, NotScoredError, Reason, Scorer

STATUS: dict[Reason, int] = {"unknown": 401, "limited": 429, "invalid": 400, "unavailable": 503}
HEADERS: dict[Reason, dict[str, str]] = {
    "unknown": {"WWW-Authenticate": "Bearer"},
    "limited": {"Retry-After": "1"},
    "unavailable": {"Retry-After": "1"},
}
MOST_CONNECTIONS = 1000
"""Most open connections; a quarter of the files that the process may open, if less."""
STRINGS = {"type": "array", "items": {"type": "string"}}
ASKED = {
    "type": "object",
    "required": ["ids"],
    "properties": {"ids": {**STRINGS, "minItems": 1, "maxItems": 1000}},
}
ANSWERED = {
    "type": "object",
    "required": ["job", "scores", "missing"],
    "properties": {
        "job": {"type": "string", "description": "That trained the model."},
        "scores": {
            "type": "array",
            "items": {"type": "object", "required": ["id"], "additionalProperties": True},
            "description": "id, and what columns of `vertizo predict` are called.",
        },
        "missing": {
            "type": "object",
            "additionalProperties": STRINGS,
            "description": "Records without a score, and the parties that lack them.",
        },
    },
}
REFUSED = {"type": "object", "properties": {"error": {"type": "string"}}}


class _Asked(msgspec.Struct):
    ids: list[str]


def application(scorer: Scorer, most: int) -> FastAPI:
    """Make the HTTP application; a request may have ``most`` records."""
    app = FastAPI(title="Vertizo scores", version=VERSION, docs_url=None, redoc_url=None)
    largest = 1000 + most * (6 * LONGEST_ID + 4)  # a character may be an escape of six bytes
    decoder = msgspec.json.Decoder(_Asked)

    async def body_of(request: Request) -> bytes:
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > largest:
                raise NotScoredError("invalid", f"more than {largest:,} bytes")
            parts.append(part)
        return b"".join(parts)

    about: dict[str, Any] = {
        "requestBody": {"required": True, "content": {"application/json": {"schema": ASKED}}},
        "security": [{"key": []}],
    }
    answers: dict[int | str, dict[str, Any]] = {
        200: {"content": {"application/json": {"schema": ANSWERED}}},
        **{
            code: {"description": why, "content": {"application/json": {"schema": REFUSED}}}
            for why, code in STATUS.items()
        },
    }

    @app.post("/v1/score", responses=answers, openapi_extra=about, response_class=Response)
    async def score(request: Request) -> Response:
        """Scores of records by their ids."""
        try:
            kind, _, key = request.headers.get("authorization", "").partition(" ")
            given = key.strip() if kind.lower() == "bearer" else None
            try:
                scorer.check(given)
            except NotScoredError as error:
                if error.reason == "unknown" and request.client is not None:
                    await asyncio.sleep(scorer.wrong_keys.wait(request.client.host))
                raise
            ids, wrong = [], None
            try:
                ids = decoder.decode(await body_of(request)).ids
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                wrong = NotScoredError("invalid", f'{error}; write {{"ids": ["…", "…"]}}')
            except NotScoredError as error:  # it is too long, and counts as the others do
                wrong = error
            except ClientDisconnect:  # or it was too slow; as above
                wrong = NotScoredError("invalid", "the connection ended before the request did")
            if wrong is None and not request.state.connection.hold():
                wrong = NotScoredError("unavailable", "too many requests at a time")
            found = await run_in_threadpool(scorer.score, given, ids, "http", wrong)
        except NotScoredError as error:
            content = json.dumps({"error": str(error)}, ensure_ascii=False)
            status, headers = STATUS[error.reason], HEADERS.get(error.reason)
            return Response(content, status, headers, "application/json")
        job, missing = json.dumps(found.job), json.dumps(found.missing, ensure_ascii=False)
        whole = f'{{"job": {job}, "scores": {found.frame.write_json()}, "missing": {missing}}}'
        return Response(whole.encode(), media_type="application/json")

    @app.get("/health", responses={200: {"description": "The process lives."}})
    async def health() -> dict[str, str]:
        """Whether the process lives."""
        return {"status": "alive"}

    @app.get("/ready", response_class=Response)
    async def ready() -> Response:
        """Whether all members are connected, so that records can be scored."""
        return Response(status_code=200 if scorer.is_ready else 503)

    def described() -> dict[str, Any]:
        if not app.openapi_schema:
            schema = FastAPI.openapi(app)
            parts = schema.setdefault("components", {})
            parts["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]
    return app


def http_at(options: ScoringOptions, scorer: Scorer) -> AbstractContextManager[int]:
    """Answer at ``scoring.http`` inside; yield the port, 0 if none is wanted.

    RunError if it cannot listen there, ConfigError if the certificate cannot be used.
    """
    if options.http is None:
        return nullcontext(0)
    app, limits = application(scorer, options.most), http_server.Limits.of_files(MOST_CONNECTIONS)
    files = options.certificate, options.key
    return http_server.http_at("scoring.http", options.http, app, limits, *files)
