"""The head of an HTTP request that a program sends: read in one spelling, refused in any other.

The bridge and the proxy both stand between a program and something it must not reach. Whatever two
readers could take in two ways is a way around them: a second length, a folded line, a line feed
without its return, a control character. All of it is refused here, before anybody acts on it. How
long a head may be is the caller's to limit, before it is read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_REQUEST = re.compile(rb"([A-Z]{1,16}) ([!-~]{1,8000}) HTTP/1\.([01])")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}):[ \t]*([\x20-\x7e\x80-\xff\t]*)")
_LENGTH = re.compile(rb"[0-9]{1,15}")


class MalformedHead(Exception):
    """The head is not in the one spelling that is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHead:
    """A request line and its headers: names in small letters, values without space around them."""

    method: str
    target: str
    is_http_1_1: bool
    headers: tuple[tuple[bytes, bytes], ...]

    def values(self, name: bytes) -> list[bytes]:
        """Return what is given for a header, each time it is."""
        return [value for each, value in self.headers if each == name]

    def length(self) -> int | None:
        """Return the length of the body, None if there is none. Two lengths are malformed."""
        given = self.values(b"content-length")
        if not given:
            return None
        if len(given) > 1 or _LENGTH.fullmatch(given[0]) is None:
            raise MalformedHead("Content-Length: once, and a number")
        return int(given[0])


def read_request_head(raw: bytes) -> RequestHead:
    """Read a head, without the empty line that ends it."""
    first, *lines = raw.split(b"\r\n")
    request = _REQUEST.fullmatch(first)
    if request is None:
        raise MalformedHead("the request line is malformed")
    return RequestHead(
        method=request[1].decode(),
        target=request[2].decode(),
        is_http_1_1=request[3] == b"1",
        headers=tuple(_header(line) for line in lines),
    )


def _header(line: bytes) -> tuple[bytes, bytes]:
    found = _HEADER.fullmatch(line)
    if found is None:
        raise MalformedHead("a header is malformed")
    return found[1].lower(), found[2].strip()
