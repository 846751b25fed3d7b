"""Parse the head of an HTTP request that a program sends, in one strict spelling only.

The bridge and the proxy both stand between a program and something that it must not reach. If two
parsers could read a head in two ways, a program could get around them. Examples are a second
length, a folded line, a line feed without a carriage return, or a control character. All of these
are refused here, before anything is done with the request. The caller limits the length of a head
before it calls this module.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_REQUEST = re.compile(rb"([A-Z]{1,16}) ([!-~]{1,8000}) HTTP/1\.([01])")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}):[ \t]*([\x20-\x7e\x80-\xff\t]*)")
_LENGTH = re.compile(rb"[0-9]{1,15}")


class MalformedHead(Exception):
    """The head is not in the one spelling that is accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHead:
    """A request line and its headers: names in lower case, values without surrounding space."""

    method: str
    target: str
    is_http_1_1: bool
    headers: tuple[tuple[bytes, bytes], ...]

    def values(self, name: bytes) -> list[bytes]:
        """Return every value of a header, whose name is in lower case; empty if it is absent."""
        return [value for each, value in self.headers if each == name]

    def length(self) -> int | None:
        """Return the length of the body from Content-Length, None without that header.

        Raise `MalformedHead` if the header occurs twice, or is not a number of at most 15 digits.
        """
        given = self.values(b"content-length")
        if not given:
            return None
        if len(given) > 1 or _LENGTH.fullmatch(given[0]) is None:
            raise MalformedHead("Content-Length: once, and a number")
        return int(given[0])


def read_request_head(raw: bytes) -> RequestHead:
    """Parse a head, without the empty line that ends it. Raise `MalformedHead` for any other."""
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
