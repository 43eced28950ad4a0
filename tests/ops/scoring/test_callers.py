"""Who may ask, how often, and what is kept of it; over HTTP and gRPC as well."""

from __future__ import annotations

import http.client
import json
import logging
import os
import socket
import ssl
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from tests.lazy import Lazy
from tests.network.by_hand import holder_config
from tests.ops.scoring.parties import Scoring, predicted
from tests.refusals import refused
from tests.rows import each
from tests.waiting import until

from vertizo.core.errors import ConfigError, RunError
from vertizo.network.serving.options import ScoringOptions
from vertizo.network.transport.authority import issue
from vertizo.ops.scoring import callers, rpc
from vertizo.ops.scoring.rpc import grpc_at
from vertizo.ops.scoring.scorer import NotScoredError, WrongKeys

web = Lazy("vertizo.ops.scoring.http")

Make = Callable[..., Scoring]


def reason(made: Scoring, key: str | None, ids: list[str]) -> tuple[str, str]:
    with pytest.raises(NotScoredError) as found:
        made.scorer.score(key, ids, "http")
    return found.value.reason, str(found.value)


def log_of(made: Scoring) -> list[dict[str, Any]]:
    assert made.options.log is not None
    return [json.loads(line) for line in made.options.log.read_text().splitlines()]


@pytest.mark.full
def test_requests_are_refused_for_what_is_wrong_with_them_and_kept(scoring: Make) -> None:
    made = scoring(most=5, deadline=1.0)
    key, few = made.key, made.keys[:2]
    for wrong in (None, "", "vertizo_guess", callers.digest(key)):
        assert reason(made, wrong, few)[0] == "unknown"
    assert reason(made, key, []) == ("invalid", "0 ids; 1 to 5 are answered at a time")
    assert reason(made, key, ["1"] * 6) == ("invalid", "6 ids; 1 to 5 are answered at a time")
    for wrong in ("", "  ", "x" * 201):
        assert reason(made, key, [*few, wrong])[0] == "invalid"
    why = reason(made, key, few)
    assert why == ("unavailable", "lab, clinic did not answer within 1 s")
    with made.members():
        found = made.scorer.score(key, [*few, f" {few[0]} ", f"{few[0]}.0", "nobody"], "grpc")
    assert found.frame["id"].to_list() == few
    assert found.missing == {"nobody": ["", "lab", "clinic"]}
    lines = log_of(made)  # nothing of those who have no key
    assert [line["outcome"] for line in lines] == ["invalid"] * 5 + ["unavailable", "scored"]
    last = lines[-1]
    assert (last["caller"], last["via"], last["records"], last["scored"]) == ("crm", "grpc", 5, 2)
    assert last["ids"] == [*few, f" {few[0]} ", f"{few[0]}.0", "nobody"]
    assert made.scorer.counts[""].outcomes == {"unknown": 4}
    assert made.scorer.counts["crm"].records == 2


@pytest.mark.full
def test_the_log_is_private_and_may_leave_ids_out(scoring: Make) -> None:
    made = scoring(log_ids=False)
    with made.members():
        made.scorer.score(made.key, made.keys[:2], "http")
    assert made.options.log is not None
    assert stat.S_IMODE(made.options.log.stat().st_mode) == 0o600
    (line,) = log_of(made)
    assert "ids" not in line


@each("makes", [None, 0o644, 0o666])
def test_the_log_is_private_after_each_rotation(makes: int | None, scoring: Make) -> None:
    """Whether the rotation leaves the making of the file to us, or makes it for everybody."""
    made = scoring(deadline=0.01)
    log = made.options.log
    assert log is not None
    before = os.umask(0o022)
    try:
        for count in range(1, 3):
            with suppress(NotScoredError):
                made.scorer.score(made.key, made.keys[:count], "http")
            assert [line["records"] for line in log_of(made)] == [count]
            assert stat.S_IMODE(log.stat().st_mode) == 0o600
            log.rename(log.with_suffix(f".{count}"))
            assert stat.S_IMODE(log.with_suffix(f".{count}").stat().st_mode) == 0o600
            if makes is not None:
                log.touch()
                log.chmod(makes)
    finally:
        os.umask(before)


@pytest.mark.full
def test_what_cannot_be_logged_is_not_answered(scoring: Make, tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("there is no /dev/full")
    made = scoring(log=full)
    with made.members():
        assert reason(made, made.key, made.keys[:2]) == (
            "unavailable",
            "the log of queries cannot be written",
        )
    assert "No space left" in made.notices[-1]
    assert made.scorer.counts["crm"].outcomes == {"unavailable": 1}
    with pytest.raises(ConfigError, match=r"scoring\.log .* cannot be written"):
        scoring(log=tmp_path / "nowhere" / "log")


@pytest.mark.full
def test_rates_are_each_callers_own(scoring: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made, now = scoring(), 1e9
    monkeypatch.setattr("time.time", lambda: now)  # the clock that rates are counted by
    assert made.options.callers is not None
    few = callers.add(made.options.callers, "few", 3, 1000)
    small = callers.add(made.options.callers, "small", 1000, 10)
    with made.members():
        for _ in range(3):
            made.scorer.score(few, made.keys[:1], "http")
        why = reason(made, few, made.keys[:1])
        assert why == ("limited", "few may ask for 3 requests a second")
        now += 2
        invalid = [reason(made, few, ["x" * 1000] * 999)[0] for _ in range(20)]
        assert invalid == ["invalid"] * 3 + ["limited"] * 17  # what is invalid is a request as well
        assert all("ids" not in line for line in log_of(made)[-20:])
        assert reason(made, small, made.keys[:11])[0] == "invalid"
        made.scorer.score(small, made.keys[:6], "http")
        why = reason(made, small, made.keys[:6])
        assert why == ("limited", "small may ask for 10 records a second")
        made.scorer.score(made.key, made.keys[:6], "http")  # others go on


def test_a_caller_that_is_taken_away_is_shut_out_at_once(scoring: Make) -> None:
    made = scoring()
    file = made.options.callers
    assert file is not None
    with made.members():
        made.scorer.score(made.key, made.keys[:1], "http")
        new = callers.add(file, "crm", 100, 100, replace=True)
        assert reason(made, made.key, made.keys[:1])[0] == "unknown"
        made.scorer.score(new, made.keys[:1], "http")
        whole = file.read_text()
        for broken in ("callers: [1]", "callers: {crm: {key: abc}}", "{"):
            file.write_text(broken)  # nobody is served by what may be an older list
            assert reason(made, new, made.keys[:1])[0] == "unavailable", broken
        assert "nobody is served until it is mended" in made.notices[-1]
        file.unlink()
        assert reason(made, new, made.keys[:1])[0] == "unavailable"
        file.write_text(whole)
        made.scorer.score(new, made.keys[:1], "http")


def test_files_of_callers(tmp_path: Path) -> None:
    file = tmp_path / "callers.yaml"
    key = callers.add(file, "crm", 5, 50)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert key not in file.read_text()
    assert key != callers.add(file, "web", 5, 50)
    assert callers.load(file).callers.keys() == {"crm", "web"}
    refused("again", ConfigError, callers.add, file, "crm", 5, 50, match="--replace gives it a new")
    refused("name", ConfigError, callers.add, file, "c r m", 5, 50, match="is no name")
    digest = callers.digest(key)
    file.write_text(f"callers: {{a: {{key: {digest}}}, b: {{key: {digest}}}}}")
    refused("same", ConfigError, callers.load, file, match="'a' and 'b' have the same key")


def test_wrong_keys_wait_longer_each_time_and_only_those_of_their_address() -> None:
    now = [0.0]
    seen = WrongKeys(lambda: now[0])
    assert [seen.wait("10.0.0.1") for _ in range(5)] == pytest.approx([0, 0, 0, 0.1, 0.2])
    assert max(seen.wait("10.0.0.1") for _ in range(500)) == seen.LONGEST
    assert seen.wait("10.0.0.2") == 0
    assert [seen.wait(f"2001:db8::{n:x}") for n in range(5)][-1] > 0  # of one network
    assert seen.wait("2001:db8:1::1") == 0
    assert seen.wait("a proxy's word") == 0
    for number in range(20_000):
        seen.wait(str(ip_address(number)))
    assert len(seen._seen) <= 10_000
    now[0] = 61.0
    assert seen.wait("10.0.0.1") == 0


def test_addresses_that_would_send_keys_in_clear_are_refused(tables: Path, tmp_path: Path) -> None:
    rows: list[tuple[dict[str, Any], str]] = [
        ({"callers": "c"}, "scoring.http and scoring.grpc are not set"),
        ({"http": "127.0.0.1:1"}, "scoring.callers is not set"),
        ({"http": "0.0.0.0:1", "callers": "c"}, "would travel in clear"),
        ({"grpc": "bank.example:1", "callers": "c"}, "would travel in clear"),
        ({"http": "[::]:1", "callers": "c"}, "would travel in clear"),
        ({"http": "bank:1", "callers": "c", "key": "k"}, "belong together"),
        ({"http": "nowhere", "callers": "c"}, "write host:port"),
    ]
    for keys, words in rows:
        refused(keys, ValueError, ScoringOptions.model_validate, keys, match=words)
    for place in ("localhost:1", "127.0.0.1:1", "[::1]:1"):
        ScoringOptions.model_validate({"http": place, "callers": "c"})
    section = {"http": "bank:1", "callers": "c", "certificate": "a", "key": "b"}
    config = holder_config(tables, tmp_path, scoring=section)
    assert "scoring" not in config.experiment().model_dump()


# Over HTTP.


@contextmanager
def asking(made: Scoring, context: ssl.SSLContext | None = None) -> Iterator[Callable[..., Any]]:
    """Makes requests; gives status, headers and content."""
    with web.http_at(made.options, made.scorer) as port:

        def ask(
            path: str = "/v1/score", body: Any = None, key: str | None = None, method: str = "POST"
        ) -> tuple[int, dict[str, str], Any]:
            kind = http.client.HTTPConnection if context is None else http.client.HTTPSConnection
            more = {} if context is None else {"context": context}
            link = kind("localhost", port, timeout=30, **more)
            headers = {} if key is None else {"Authorization": f"Bearer {key}"}
            content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            link.request(method, path, content, headers)
            answer = link.getresponse()
            found = answer.read()
            link.close()
            try:
                said = json.loads(found) if found else None
            except ValueError:
                said = found
            return answer.status, dict(answer.getheaders()), said

        ask.port = port  # type: ignore[attr-defined]
        yield ask


def test_scores_over_http(scoring: Make, tables: Path, trained: Path) -> None:
    made, truth = scoring(most=60), predicted(tables, trained)
    with asking(made) as ask:
        assert ask("/ready", method="GET")[0] == 503
        assert ask("/health", method="GET")[::2] == (200, {"status": "alive"})
        with made.members():
            keys = made.keys[:50]
            status, headers, said = ask(body={"ids": [*keys, "nobody"]}, key=made.key)
            assert status == 200
            assert headers["content-type"] == "application/json"
            assert ask("/ready", method="GET")[0] == 200
        assert said["job"] == made.service.model.job
        assert said["missing"] == {"nobody": ["", "lab", "clinic"]}
        assert [row["id"] for row in said["scores"]] == keys
        likely = torch.softmax(torch.stack([truth[key] for key in keys]), 1)
        for row, (benign, malignant) in zip(said["scores"], likely.tolist(), strict=True):
            assert row["probability_benign"] == pytest.approx(benign, abs=1e-5)
            assert row["probability_malignant"] == pytest.approx(malignant, abs=1e-5)
            assert row["prediction"] == ("benign" if benign >= malignant else "malignant")


def test_requests_over_http_that_are_refused(scoring: Make) -> None:
    made = scoring(most=3, deadline=0.05)
    rows: list[tuple[Any, str | None, int, str]] = [
        ({"ids": ["1"]}, None, 401, "a key is needed"),
        ({"ids": ["1"]}, "guess", 401, "a key is needed"),
        (bytes(10_000_000), None, 401, "a key is needed"),
        (bytes(10_000_000), made.key, 400, "more than 4,612 bytes"),
        (b"no json", made.key, 400, "JSON is malformed"),
        (b'{"ids":["a"],"x":' + b"[" * 4000, made.key, 400, "write {"),
        ({"ids": 3}, made.key, 400, "Expected `array`, got `int` - at `$.ids`"),
        ({"ids": [3]}, made.key, 400, "Expected `str`, got `int`"),
        (b'{"ids": ["\\ud800"]}', made.key, 400, "write {"),
        ({"ids": ["\0"]}, made.key, 503, "did not answer"),
        ({}, made.key, 400, "missing required field `ids`"),
        ({"ids": ["1", "2", "3", "4"]}, made.key, 400, "1 to 3 are answered"),
        ({"ids": ["1"]}, made.key, 503, "lab, clinic did not answer"),
    ]
    with asking(made) as ask:
        for body, key, status, words in rows:
            try:
                found, headers, said = ask(body=body, key=key)
            except (BrokenPipeError, ConnectionResetError):  # it was answered before it was read
                assert isinstance(body, bytes)
                continue
            assert found == status, (body, said)
            assert words in said["error"]
            assert ("www-authenticate" in headers) is (status == 401)
        assert ask("/v2", method="GET")[0] == 404
        lines = log_of(made)
        known = sum(key == made.key for _, key, *_ in rows)
        assert known - 1 <= len(lines) <= known  # the answer to the longest may have come early
        assert {line["outcome"] for line in lines} == {"invalid", "unavailable"}
        about = ask("/openapi.json", method="GET")[2]
        operation = about["paths"]["/v1/score"]["post"]
        assert operation["security"] == [{"key": []}]
        assert set(operation["responses"]) >= {"200", "400", "401", "429", "503"}
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            place = f"127.0.0.1:{taken.getsockname()[1]}"
            options = made.options.model_copy(update={"http": place, "grpc": place})
            for at in (web.http_at, grpc_at):
                with pytest.raises(RunError, match="is in use"), at(options, made.scorer):
                    pass


def test_a_body_that_breaks_off_is_a_request_and_no_crash(
    scoring: Make, caplog: pytest.LogCaptureFixture
) -> None:
    made = scoring()
    head = f"POST /v1/score HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {made.key}\r\n"
    rows = [
        head + 'Content-Length: 100\r\n\r\n{"ids"',
        head + "Content-Length: 100\r\n\r\n",
        head + "Transfer-Encoding: chunked\r\n\r\n5\r\n{",
        head + "Transfer-Encoding: chunked\r\n\r\nno chunk\r\n",
    ]
    with caplog.at_level(logging.WARNING), web.http_at(made.options, made.scorer) as port:
        for count, content in enumerate(rows, 1):
            with socket.create_connection(("127.0.0.1", port), 30) as link:
                link.sendall(content.encode())
            assert until(lambda n=count: len(log_of(made)) == n)  # type: ignore[misc]
    assert [line["outcome"] for line in log_of(made)] == ["invalid"] * len(rows)
    assert not [one for one in caplog.records if one.exc_info or one.levelno >= logging.ERROR]


def test_half_sent_bodies_of_a_known_caller_make_room_too(
    scoring: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And requests that are too many at a time are lines of the log as the others."""
    made = scoring(deadline=0.01)
    monkeypatch.setattr("vertizo.ops.scoring.http.MOST_CONNECTIONS", 8)
    head = f"POST /v1/score HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {made.key}\r\n"
    with ExitStack() as stack, asking(made) as ask:
        port = ask.port  # type: ignore[attr-defined]
        for _ in range(30):
            link = stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
            link.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        status, _, said = ask(body={"ids": ["1"]}, key=made.key)
        assert (status, "did not answer" in said["error"]) == (503, True)
        monkeypatch.setattr(
            "vertizo.network.transport.http_server.Connection.hold", lambda self: False
        )
        status, _, said = ask(body={"ids": ["1"]}, key=made.key)
        assert (status, said["error"]) == (503, "too many requests at a time")
        outcomes = [line["outcome"] for line in log_of(made)]
        assert outcomes.count("unavailable") == 2


def test_wrong_keys_are_slowed_down_and_right_ones_are_not(
    scoring: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, waits = scoring(deadline=0.01, grpc="127.0.0.1:0"), list[float]()
    first = made.scorer.wrong_keys.wait

    def wait(host: str) -> float:
        waits.append(first(host))
        return waits[-1] / 100

    monkeypatch.setattr(made.scorer.wrong_keys, "wait", wait)
    with asking(made) as ask:
        assert [ask(body={"ids": ["1"]}, key="guess")[0] for _ in range(5)] == [401] * 5
        assert waits == pytest.approx([0, 0, 0, 0.1, 0.2])
        assert ask(body={"ids": ["1"]}, key=made.key)[0] == 503  # without its members
        assert ask(body={"ids": ["1"]})[0] == 401
    assert len(waits) == 6
    with (
        grpc_at(made.options, made.scorer) as port,
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        call = channel.unary_unary(rpc.METHOD)
        for key, code in (("x", "UNAUTHENTICATED"), (made.key, "INVALID_ARGUMENT")):
            with pytest.raises(grpc.RpcError) as found:
                call(b"", metadata=[("authorization", f"Bearer {key}")], timeout=20)
            assert found.value.code().name == code
    assert waits[5:] == pytest.approx([0.3, 0.4])  # the address is the same


@pytest.mark.full
def test_many_ask_over_http_at_once(scoring: Make, tables: Path, trained: Path) -> None:
    made, truth = scoring(cache=0.0), predicted(tables, trained)
    wrong: list[Any] = []

    def caller(ask: Callable[..., Any], key: str) -> None:
        for _ in range(10):
            status, _, said = ask(body={"ids": [key]}, key=made.key)
            likely = torch.softmax(truth[key], 0)[0].item()
            if status != 200 or abs(said["scores"][0]["probability_benign"] - likely) > 1e-5:
                wrong.append((key, status, said))

    with asking(made) as ask, made.members():
        threads = [threading.Thread(target=caller, args=(ask, key)) for key in made.keys[:16]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


# Over gRPC, and with certificates.


@pytest.mark.full
def test_scores_over_grpc(scoring: Make, tables: Path, trained: Path) -> None:
    made, truth = scoring(grpc="127.0.0.1:0", deadline=1.0), predicted(tables, trained)
    kinds = rpc.messages()
    with (
        grpc_at(made.options, made.scorer) as port,
        grpc.insecure_channel(f"localhost:{port}") as c,
    ):
        call = c.unary_unary(
            rpc.METHOD,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=kinds["ScoreResponse"].FromString,
        )
        keys = made.keys[:20]
        asked = kinds["ScoreRequest"](ids=[*keys, "nobody"])
        mine = [("authorization", f"Bearer {made.key}")]
        for given, request, code in (
            ([], asked, grpc.StatusCode.UNAUTHENTICATED),
            ([("authorization", "Bearer x")], asked, grpc.StatusCode.UNAUTHENTICATED),
            (mine, kinds["ScoreRequest"](), grpc.StatusCode.INVALID_ARGUMENT),
            (mine, asked, grpc.StatusCode.UNAVAILABLE),
        ):
            with pytest.raises(grpc.RpcError) as found:
                call(request, metadata=given, timeout=20)
            assert found.value.code() is code
        with made.members():
            made.service.logits(keys, 20.0)
            said = call(asked, metadata=mine, timeout=20)
    assert list(said.ids) == keys
    columns = {column.name: column for column in said.columns}
    likely = torch.softmax(torch.stack([truth[key] for key in keys]), 1)
    for place, name in enumerate(("probability_benign", "probability_malignant")):
        assert list(columns[name].numbers) == pytest.approx(likely[:, place].tolist(), abs=1e-5)
    assert set(columns["prediction"].texts) <= {"benign", "malignant"}
    assert [(one.id, list(one.parties)) for one in said.missing] == [
        ("nobody", ["", "lab", "clinic"])
    ]


def test_the_file_for_callers_describes_the_same_messages(tmp_path: Path) -> None:
    from google.protobuf import descriptor_pb2

    compiler = pytest.importorskip("grpc_tools.protoc")
    folder, out = Path(rpc.__file__).parent, tmp_path / "set"
    flags = [f"-I{folder}", f"--descriptor_set_out={out}", str(folder / "scoring.proto")]
    assert compiler.main(["protoc", *flags]) == 0
    (found,) = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    found.name = rpc.FILE
    assert found == rpc.described()


def test_callers_see_the_certificate_that_is_set(scoring: Make, tmp_path: Path) -> None:
    issue(tmp_path / "certs", "bank", ["lab"], ["localhost"], 1)
    folder = tmp_path / "certs" / "bank"
    files = {"certificate": folder / "certificate.pem", "key": folder / "key.pem"}
    made = scoring(http="localhost:0", grpc="localhost:0", **files)
    authority = folder / "authority.pem"
    with asking(made, ssl.create_default_context(cafile=str(authority))) as ask:
        assert ask(body={"ids": ["1"]})[0] == 401
    with grpc_at(made.options, made.scorer) as port:
        shown = grpc.ssl_channel_credentials(authority.read_bytes())
        with grpc.secure_channel(f"localhost:{port}", shown) as channel:
            call = channel.unary_unary(rpc.METHOD)
            with pytest.raises(grpc.RpcError) as found:
                call(b"", timeout=20)
            assert found.value.code() is grpc.StatusCode.UNAUTHENTICATED
    (folder / "key.pem").write_text("no key")
    for at, error in ((web.http_at, ConfigError), (grpc_at, RunError)):
        with pytest.raises(error), at(made.options, made.scorer):
            pass
    (folder / "key.pem").unlink()
    for at in (web.http_at, grpc_at):
        with pytest.raises(ConfigError, match="cannot be used"), at(made.options, made.scorer):
            pass
