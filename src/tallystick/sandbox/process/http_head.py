"""The head of a request to the proxy, read in the one spelling that it takes."""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass

__all__ = ["BadRequest", "Head", "parse_head", "read_head"]

_BYTES_MAX = 16_384
_REQUEST = re.compile(rb"([A-Z]{1,16}) ([!-~]{1,8000}) HTTP/1\.[01]")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}):[ \t]*([\x20-\x7e\x80-\xff\t]*)")
_AUTHORITY = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]{1,253})(?::([0-9]{1,5}))?")
_NOT_PASSED_ON = frozenset(
    {b"connection", b"host", b"keep-alive", b"proxy-authorization", b"proxy-connection", b"te",
     b"trailer", b"upgrade"}
)  # fmt: skip
_BODY_BYTES_MAX = 1 << 40


class BadRequest(Exception):
    """The request is not one that the proxy takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Where a request goes, and what is sent there in its place."""

    method: str
    host: str
    port: int
    forwarded: bytes = b""
    body_bytes: int = 0


def read_head(client: socket.socket) -> tuple[Head, bytes]:
    """Read the head of a request. Returns it and what came after it."""
    data = b""
    while b"\r\n\r\n" not in data:
        if len(data) > _BYTES_MAX:
            raise BadRequest("the head of the request is too long")
        try:
            more = client.recv(4_096)
        except TimeoutError:
            raise BadRequest("the request did not come") from None
        if not more:
            raise BadRequest("the request ended early")
        data += more
    head, _, rest = data.partition(b"\r\n\r\n")
    if len(head) > _BYTES_MAX:
        raise BadRequest("the head of the request is too long")
    return parse_head(head), rest


def parse_head(head: bytes) -> Head:
    """Read a head: a CONNECT, or a request for a whole http URL."""
    first, *lines = head.split(b"\r\n")
    request = _REQUEST.fullmatch(first)
    if request is None:
        raise BadRequest("the request line is malformed")
    method, target = request[1].decode(), request[2].decode()
    headers = [_header(line) for line in lines]
    if method == "CONNECT":
        host, port = _authority(target, None)
        return Head(method=method, host=host, port=port)
    scheme, slashes, rest = target.partition("://")
    if scheme.lower() != "http" or not slashes:
        raise BadRequest("a proxy is asked for a whole http URL, or with CONNECT")
    where, slash, path = rest.partition("/")
    if "?" in where or "#" in target:
        raise BadRequest("the URL is malformed")
    host, port = _authority(where, 80)
    names = [name for name, _ in headers]
    if b"transfer-encoding" in names or names.count(b"content-length") > 1:
        raise BadRequest("the length of the body must be given once, as a number")
    length = dict(headers).get(b"content-length", b"0")
    if not re.fullmatch(rb"[0-9]{1,13}", length) or int(length) > _BODY_BYTES_MAX:
        raise BadRequest("the length of the body must be given once, as a number")
    kept = b"".join(
        name + b": " + value + b"\r\n" for name, value in headers if name not in _NOT_PASSED_ON
    )
    sent = f"{method} {slash or '/'}{path} HTTP/1.1\r\nhost: {where}\r\nconnection: close\r\n"
    return Head(
        method=method,
        host=host,
        port=port,
        forwarded=sent.encode() + kept + b"\r\n",
        body_bytes=int(length),
    )


def _header(line: bytes) -> tuple[bytes, bytes]:
    found = _HEADER.fullmatch(line)
    if found is None:
        raise BadRequest("a header is malformed")
    return found[1].lower(), found[2].strip()


def _authority(text: str, port: int | None) -> tuple[str, int]:
    """Host and port of `host:port`. A name is in small letters and without a last dot."""
    found = _AUTHORITY.fullmatch(text)
    if found is None:
        raise BadRequest("the host is malformed")
    given = found[2]
    if given is None and port is None:
        raise BadRequest("the port is missing")
    number = int(given) if given is not None else int(port or 0)
    if not 0 < number < 65_536:
        raise BadRequest("the port is none")
    host = found[1].lower().removesuffix(".")
    if host.startswith("["):
        try:
            return str(ipaddress.IPv6Address(host[1:-1])), number
        except ValueError:
            raise BadRequest("the address is malformed") from None
    if not host or ".." in host or host.startswith("."):
        raise BadRequest("the host is malformed")
    return host, number
