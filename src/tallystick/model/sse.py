"""Server-sent events out of bytes, however these are cut into pieces, within bounds.

Lines end with LF, CR or CRLF. Comments and fields other than `event` and `data` are dropped. An
event that the end of the stream cuts is none, as the standard has it.
"""

from __future__ import annotations

from typing import NamedTuple

from tallystick.model import failures

__all__ = ["SseDecoder", "SseEvent"]

_EVENT_BYTES_MAX = 2 * 1024 * 1024
_LINE_BYTES = 40
_BOM = b"\xef\xbb\xbf"


class SseEvent(NamedTuple):
    """One event. `event` is empty where the server named none."""

    event: bytes
    data: bytes


class SseDecoder:
    """Takes pieces of a stream and gives the events that are whole."""

    __slots__ = ("_after_cr", "_data", "_event", "_first", "_partial", "_partial_bytes", "_size")

    def __init__(self) -> None:
        self._partial: list[bytes] = []
        self._partial_bytes = 0
        self._event = b""
        self._data: list[bytes] = []
        self._size = 0
        self._after_cr = False
        self._first = True

    def feed(self, piece: bytes) -> list[SseEvent]:
        """Take the next bytes. Raises `ModelError` for an event that is too long."""
        if self._after_cr and piece:
            # A CR ended the last line at once; its LF, if it has one, belongs to it.
            self._after_cr = False
            piece = piece.removeprefix(b"\n")
        lines = piece.splitlines(keepends=True)
        if not lines:
            return []
        rest = b""
        if not lines[-1].endswith((b"\n", b"\r")):
            rest = lines.pop()
        self._after_cr = piece.endswith(b"\r")
        events: list[SseEvent] = []
        for line in lines:
            if self._partial:
                line = b"".join((*self._partial, line))
                self._partial.clear()
                self._partial_bytes = 0
            self._take(line.rstrip(b"\r\n"), events)
        if rest:
            self._partial.append(rest)
            self._partial_bytes += len(rest)
            self._check(self._partial_bytes)
        return events

    def _take(self, line: bytes, events: list[SseEvent]) -> None:
        if self._first:
            self._first = False
            line = line.removeprefix(_BOM)
        if not line:
            if self._data:
                events.append(SseEvent(self._event, b"\n".join(self._data)))
            self._event, self._size = b"", 0
            self._data.clear()
            return
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            # An empty line of data costs memory too.
            self._size += len(value) + _LINE_BYTES
            self._check(self._size)
            self._data.append(value)
        elif field == b"event":
            self._event = value

    def _check(self, size: int) -> None:
        if size > _EVENT_BYTES_MAX:
            raise failures.huge(f"an event of more than {_EVENT_BYTES_MAX:,} bytes")
