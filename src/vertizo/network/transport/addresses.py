"""Parse party addresses of the form ``host:port``, and explain failures of HTTP proxies."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Literal
from urllib.parse import urlsplit

EXAMPLE = "bank.example:7443"
WRITE = f"write host:port, such as {EXAMPLE}"
HOST = re.compile(r"(?!-)[\w-]+(\.[\w-]+)*\.?")
PORT = re.compile(r"[0-9]{1,5}")


def parsed(text: str, *, reached: bool) -> tuple[str, int]:
    """Split an address into its host, without brackets, and its port.

    Port 0 (any free port) is allowed for listening only; not for an address to be ``reached``.
    ValueError, in one line, names the address and what would be right.
    """

    def no(advice: str) -> ValueError:
        return ValueError(f"{text!r} is no address; {advice}")

    scheme, given, rest = text.rpartition("://")
    if given:
        return _without(text, f"{scheme}://", rest.rstrip("/"))
    if text.endswith("/") and text.count("/") == 1:
        return _without(text, "/", text[:-1])
    host, colon, port = text.rpartition(":")
    if _is_ip(text, 6) or (":" in host and not host.startswith("[")):
        whole = f"[{host}]:{port}" if _is_ip(host, 6) else f"[{text}]:7443"
        shown = whole if _is_ip(host, 6) or _is_ip(text, 6) else "[::1]:7443"
        raise no(f"write host:port, an IPv6 address in brackets and quotes, such as '{shown}'")
    if not colon or not host or text.endswith("]"):
        raise no(WRITE)
    if not PORT.fullmatch(port) or int(port) > 65535:
        raise no(f"{WRITE}, with a port of {'1' if reached else '0'} to 65535")
    if reached and int(port) == 0:
        raise no(f"nobody can be reached at port 0; {WRITE}")
    if host.startswith("["):
        inner = host[1:-1]
        if not host.endswith("]") or not _is_ip(inner, 6):
            raise no("only an IPv6 address has brackets; write host:port, such as '[::1]:7443'")
        return inner, int(port)
    last = host.rstrip(".").rpartition(".")[2]
    if not HOST.fullmatch(host) or (last.isdecimal() and not _is_ip(host, 4)):
        raise no(f"{host!r} is neither a host name nor an IP address; {WRITE}")
    return host, int(port)


def _without(text: str, part: str, rest: str) -> tuple[str, int]:
    """Raise a `ValueError` for a superfluous part; suggest the address without it if valid."""
    try:
        parsed(rest, reached=True)
    except ValueError:
        rest = EXAMPLE
    raise ValueError(f"{text!r} is no address; leave out {part!r}: write host:port, such as {rest}")


def _is_ip(host: str, version: int) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).version == version
    return False


def is_loopback(host: str) -> bool:
    """Whether a host, without brackets, is ``localhost`` or a loopback IP address."""
    if host.lower().removesuffix(".") == "localhost":
        return True
    with suppress(ValueError):
        found = ipaddress.ip_address(host)
        mapped = getattr(found, "ipv4_mapped", None)
        return (mapped or found).is_loopback
    return False


# gRPC takes its proxy from the first of these variables that is set, unless no_proxy names the
# server: by the end of its host name, or by a network that holds its IP address. gRPC does not read
# the variables in capitals.

VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
DENIED = re.compile(r"HTTP proxy returned response code (\d+)")
TRIED = re.compile(r"ipv[46]:(\S+):(\d+): ")
UNKNOWN_NAME = re.compile(r"errors resolving (\S+): ")
LASTING = ("400", "401", "403", "405", "407", "501")
"""HTTP status codes with which a proxy refuses for good; another try does not change them."""


def proxies() -> Iterator[tuple[str, str, int]]:
    """Yield the variable, host and port of each proxy that the environment sets for gRPC."""
    for variable in VARIABLES:
        with suppress(ValueError):  # no port: gRPC does not use it
            parts = urlsplit(os.environ.get(variable, ""))
            if parts.scheme == "http" and parts.hostname:
                yield variable, parts.hostname, parts.port or 443


def proxy_trouble(
    details: str, why: str, server: str
) -> tuple[Literal["dead", "denied", "waits"], str] | None:
    """Classify gRPC's error text as a failure of a proxy, with a line for people; else None.

    dead: the proxy cannot be reached. denied: it refuses to connect to the server. waits: it finds
    nobody at the server's address, which may pass. ``why`` is the reason that is reported where no
    proxy is involved. A password in a variable is not repeated.
    """
    denied, tried = DENIED.search(details), TRIED.search(details)
    unknown = UNKNOWN_NAME.search(details)
    for variable, host, port in proxies():
        shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        at = tried is not None and int(tried[2]) == port and _ip(tried[1]) in _ips(host, port)
        if not at and not (unknown is not None and unknown[1].lower() == shown):
            continue
        proxy = f"the proxy {shown}, which {variable} names,"
        host_of_server = server.rpartition(":")[0].strip("[]")
        advice = f"correct {variable}, or name {host_of_server} in no_proxy"
        if denied is not None:
            known = "; it asks for a name and a password" if denied[1] == "407" else ""
            line = f"{proxy} answers {denied[1]} and does not connect to {server}{known}"
            if denied[1] in LASTING:
                return "denied", f"{line}; {advice}"
            return "waits", f"{line}: nobody may listen there"
        return "dead", f"{proxy} cannot be reached: {why}; {advice}"
    return None


def _ip(text: str) -> str:
    """Convert an IP address from the form in gRPC's error texts to its usual form."""
    return text.replace("%5B", "").replace("%5D", "").strip("[]").partition("%25")[0]


def _ips(host: str, port: int) -> set[str]:
    if _is_ip(host, 4) or _is_ip(host, 6):
        return {host}
    with suppress(OSError):
        return {str(found[4][0]) for found in socket.getaddrinfo(host, port)}
    return set()
