"""What is an address of a party, and what is said where a proxy of the environment fails."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.rows import each

from vertizo.core.errors import ConfigError, RunError
from vertizo.network.serving.options import load_join
from vertizo.network.transport import addresses, grpc_channel
from vertizo.network.transport.addresses import is_loopback, parsed, proxy_trouble
from vertizo.network.transport.authority import issue
from vertizo.network.transport.certificates import Credentials
from vertizo.network.transport.grpc_channel import GrpcChannel

RIGHT = {
    "bank.example:7443": ("bank.example", 7443),
    "LOCALHOST:1": ("LOCALHOST", 1),
    "bank_1.intern.:65535": ("bank_1.intern.", 65535),
    "10.0.0.3:7443": ("10.0.0.3", 7443),
    "[::1]:17454": ("::1", 17454),
    "[fe80::1%eth0]:7443": ("fe80::1%eth0", 7443),
}
WRONG = [
    ("::1:17454", "an IPv6 address in brackets and quotes, such as '[::1]:17454'"),
    ("2001:db8::5:7443", "an IPv6 address in brackets and quotes, such as '[2001:db8::5]:7443'"),
    ("::1", "an IPv6 address in brackets and quotes, such as '[::1]:7443'"),
    ("a:b:7443", "an IPv6 address in brackets and quotes, such as '[::1]:7443'"),
    ("[::1]", "write host:port"),
    ("[bank]:7443", "only an IPv6 address has brackets"),
    ("[10.0.0.3]:7443", "only an IPv6 address has brackets"),
    ("bank.example", "write host:port"),
    ("bank.example:", "with a port of 1 to 65535"),
    ("bank.example:https", "with a port of 1 to 65535"),
    ("bank.example:99999", "with a port of 1 to 65535"),
    ("bank.example:-1", "with a port of 1 to 65535"),
    ("bank.example:7²", "with a port of 1 to 65535"),
    ("bank.example: 7443", "with a port of 1 to 65535"),
    ("bank.example:0", "port 0"),
    (":7443", "write host:port"),
    (
        "https://bank.example:7443",
        "leave out 'https://': write host:port, such as bank.example:7443",
    ),
    ("http://other.example:1/", "leave out 'http://': write host:port, such as other.example:1"),
    ("https://bank.example", "leave out 'https://': write host:port"),
    ("other.example:1/", "leave out '/': write host:port, such as other.example:1"),
    ("bank.example:1/path", "with a port of 1 to 65535"),
    ("bank example:7443", "'bank example' is neither a host name nor an IP address"),
    (" bank.example:7443", "is neither a host name nor an IP address"),
    ("bank..example:7443", "is neither a host name nor an IP address"),
    ("me@bank.example:7443", "is neither a host name nor an IP address"),
    ("10.0.0.300:7443", "'10.0.0.300' is neither a host name nor an IP address"),
    ("10.0.3:7443", "is neither a host name nor an IP address"),
    ("*:7443", "is neither a host name nor an IP address"),
]


@each("text", RIGHT)
def test_what_is_an_address(text: str) -> None:
    assert parsed(text, reached=True) == RIGHT[text]
    assert parsed("bank.example:0", reached=False) == ("bank.example", 0)


@each("text, words", WRONG)
def test_what_is_none_is_refused_at_once(tmp_path: Path, text: str, words: str) -> None:
    """In a line, in a file as in Python, before anything is tried."""
    with pytest.raises(ValueError, match="is no address") as error:
        parsed(text, reached=True)
    path = tmp_path / "lab.yaml"
    path.write_text(f"federation: {{name: f, server: {text!r}, certificates: c, folder: f}}\n")
    with pytest.raises(ConfigError) as told:
        load_join(path)
    assert str(told.value).startswith(f"{path}: server {text!r} is no address")
    for line in (str(error.value), str(told.value)):
        assert words in line
        assert "\n" not in line


@each(
    "host, own",
    [
        *((host, True) for host in ("localhost", "LOCALHOST", "LocalHost.", "127.0.0.1", "::1")),
        *((host, True) for host in ("127.8.9.1", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1")),
        *((host, False) for host in ("localhost.example", "10.0.0.1", "::2", "bank", "0.0.0.0")),
    ],
)
def test_which_hosts_are_this_machine(host: str, own: bool) -> None:
    assert is_loopback(host) is own


def refusing() -> int:
    """A port that nobody listens at."""
    with closing(socket.socket()) as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


@contextmanager
def answering(words: str) -> Iterator[int]:
    """A proxy that answers each tunnel alike."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    came, _ = server.accept()
                except OSError:
                    return
                with came:
                    came.recv(4096)
                    came.sendall(f"HTTP/1.1 {words}\r\n\r\n".encode())

        threading.Thread(target=serve, daemon=True).start()
        yield int(server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Credentials:
    for name in (*addresses.VARIABLES, "no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(grpc_channel, "LONGEST_PAUSE", 0.01)
    issue(tmp_path, "holder", ["bank"], ["holder.example"], 1)
    return Credentials.load(tmp_path / "bank")


def told(member: Credentials, server: str, patience: float = 600.0) -> tuple[str, list[str]]:
    """How an ask ends, long before its patience does, and what was told before."""
    lines: list[str] = []
    mine = GrpcChannel(server, member, patience=patience, on_trouble=lines.append)
    with closing(mine), pytest.raises(RunError) as error:
        mine.ask(b"x")
    assert "\n" not in str(error.value)
    return str(error.value), lines


def test_a_dead_proxy_is_named_and_not_waited_for(
    member: Credentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = refusing()
    for variable in addresses.VARIABLES:
        with monkeypatch.context() as inside:
            inside.setenv(variable, f"http://me:secret@localhost:{port}")
            line, lines = told(member, "holder.example:17454")
        proxy = f"the proxy localhost:{port}, which {variable} names, cannot be reached: nobody"
        assert line.startswith(f"holder.example:17454: {proxy} listens there; correct {variable}")
        assert line.endswith("or name holder.example in no_proxy")
        assert proxy in lines[0]
        assert "secret" not in line + lines[0]


def test_a_proxy_that_does_not_let_us_through_is_named(
    member: Credentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words, part in (
        ("407 Proxy Authentication Required", "answers 407 and does not connect to .*a password"),
        ("403 Forbidden", "answers 403 and does not connect to 10.1.2.3:7443; correct https_proxy"),
    ):
        with answering(words) as port, monkeypatch.context() as inside:
            inside.setenv("https_proxy", f"http://127.0.0.1:{port}")
            line, _ = told(member, "10.1.2.3:7443")
            refused_by = f"the proxy 127.0.0.1:{port}, which https_proxy names, "
            assert refused_by in line
            assert re.search(part, line)


def test_behind_a_proxy_a_server_that_is_away_is_waited_for(
    member: Credentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering("502 Bad Gateway") as port:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
        line, _ = told(member, "10.1.2.3:7443", patience=0.5)
    assert "could not be reached for 0 seconds" in line
    assert f"the proxy 127.0.0.1:{port}, which https_proxy names, answers 502" in line


def test_no_proxy_stands_before_this_machine(
    member: Credentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor before what no_proxy names, by gRPC's rules."""
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{refusing()}")
    own = refusing()
    for server in (f"LOCALHOST:{own}", f"127.0.0.2:{own}"):
        line, _ = told(member, server, patience=0.2)
        assert line.endswith("seconds: nobody listens there")
    monkeypatch.setattr(grpc_channel, "is_loopback", lambda host: False)
    for named in ("127.0.0.0/8", "127.0.0.2", ".0.0.2"):
        monkeypatch.setenv("no_proxy", f"bank.example,{named}")
        line, _ = told(member, f"127.0.0.2:{own}", patience=0.2)
        assert line.endswith("seconds: nobody listens there")


def test_a_failure_behind_a_proxy_is_not_the_proxys(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in addresses.VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    details = "failed to connect; last error: UNKNOWN: ipv6:%5B::1%5D:3128: Connection refused"
    assert proxy_trouble(details, "why", "holder.example:1") is None
    for value, found in (
        ("http://[::1]:3128", True),
        ("http://[::1]:3129", False),
        ("http://[::2]:3128", False),
        ("[::1]:3128", False),
        ("https://[::1]:3128", False),
        ("http://[::1]:port", False),
    ):
        monkeypatch.setenv("https_proxy", value)
        assert (proxy_trouble(details, "why", "holder.example:1") is not None) is found
    monkeypatch.setenv("https_proxy", "http://No.Such.Proxy:3128")
    details = "errors resolving no.such.proxy:3128: [field:hostname lookup error]"
    trouble = proxy_trouble(details, "the host name is not known", "holder.example:1")
    assert trouble is not None
    proxy = "the proxy no.such.proxy:3128, which https_proxy names"
    assert trouble[0] == "dead"
    assert trouble[1].partition(";")[0] == (
        f"{proxy}, cannot be reached: the host name is not known"
    )
