"""Documents as bytes: searched in windows, never held as one text, by work that is counted.

A document may be longer than memory, and an answer is not worth an hour of looking. So every look
costs the bytes it went through, of one sum for all documents; when that is spent, `TooMuch` is
raised. What is found follows from the bytes alone: there is no clock here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

__all__ = ["SPAN_BYTES_MAX", "Document", "Documents", "TooMuch"]

_WINDOW_BYTES = 8 * 1024 * 1024
# What is searched for is at most so long: windows overlap by this much.
SPAN_BYTES_MAX = 65_536
# About four seconds of looking.
_LOOKED_BYTES_MAX = 2 * 1024 * 1024 * 1024
# A look costs at least this: there may be ten thousand documents.
_LOOK_BYTES_LEAST = 4_096
# As far as this a line is looked through for its beginning.
_LINE_BYTES_MAX = 10_000
# The bytes of a character after its first.
_CONTINUED = bytes(range(0x80, 0xC0))


class Document(Protocol):
    """Bytes that can be read in parts."""

    def __len__(self) -> int: ...

    def read_raw(self, start: int, stop: int) -> bytes:
        """The bytes between two offsets, as far as there are any."""
        ...


class TooMuch(Exception):
    """More would have to be looked through than an answer is worth."""


class Documents:
    """Documents by name, and how much may still be looked through."""

    def __init__(
        self, held: Mapping[str, Document], *, looked_bytes_max: int = _LOOKED_BYTES_MAX
    ) -> None:
        self._held = held
        self._left = looked_bytes_max
        # The window that was read last: most is looked for where the last was.
        self._window: tuple[str, int, bytes] = ("", -1, b"")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._held)

    def size(self, name: str) -> int:
        return len(self._held[name])

    def read(self, name: str, start: int, stop: int) -> bytes:
        """The bytes between two offsets, as far as there are any."""
        start, stop = max(0, start), max(0, start, min(stop, self.size(name)))
        held, low, window = self._window
        if held == name and 0 <= low <= start and stop <= low + len(window):
            return window[start - low : stop - low]
        return self._held[name].read_raw(start, stop)

    def spend(self, count: int) -> None:
        """Count work that was done with what was read."""
        self._left -= count
        if self._left < 0:
            raise TooMuch

    # -- looking -------------------------------------------------------------------------------

    def find(self, name: str, needle: bytes, start: int = 0, stop: int | None = None) -> int:
        """Where a text stands first between two offsets, -1 if it does not."""
        if len(needle) > SPAN_BYTES_MAX:
            return -1
        for low, window, begin, end in self._windows(name, start, stop, len(needle)):
            at = window.find(needle, begin, end)
            self.spend((at if at >= 0 else end) - begin)
            if at >= 0:
                return low + at
        return -1

    def breaks(self, name: str, start: int, stop: int) -> int:
        """The line ends between two offsets."""
        total = 0
        for _, window, begin, end in self._windows(name, start, stop, 1):
            total += window.count(b"\n", begin, end)
            self.spend((end - begin) // 4)
        return total

    # -- lines ---------------------------------------------------------------------------------

    def line_of(self, name: str, offset: int) -> int:
        """The number of the line that a byte is in, from one."""
        return self.breaks(name, 0, offset) + 1

    def lines(self, name: str) -> int:
        """How many lines there are. What follows the last line end is one if there is anything."""
        size = self.size(name)
        whole = self.breaks(name, 0, size)
        return whole + (size > 0 and self.read(name, size - 1, size) != b"\n")

    def line_span(self, name: str, first: int, last: int) -> tuple[int, int] | None:
        """The bytes of some lines, without the last one's end; None if there are none such."""
        low = self._line_start(name, first)
        if low is None or low >= self.size(name):
            return None
        after = self._line_start(name, last + 1, known=(first, low))
        if after is None:
            # The last line may have no end.
            lines = self.lines(name)
            return (low, self.size(name)) if lines == last else None
        return low, after - 1

    def line_low(self, name: str, offset: int) -> int:
        """Where the line of a byte begins; in a very long one, where a part of it does."""
        least = max(0, offset - _LINE_BYTES_MAX)
        at = self.read(name, least, offset).rfind(b"\n")
        if at >= 0:
            return least + at + 1
        if least == 0:
            return 0
        part = offset - offset % _LINE_BYTES_MAX
        # Not in the middle of a character.
        head = self.read(name, part, min(offset, part + 3))
        return part + len(head) - len(head.lstrip(_CONTINUED))

    def _line_start(self, name: str, line: int, known: tuple[int, int] = (1, 0)) -> int | None:
        """Where a line begins, None if there are fewer line ends. `known` is one before it."""
        number, start = known
        for low, window, begin, end in self._windows(name, start, None, 1):
            inside = window.count(b"\n", begin, end)
            self.spend((end - begin) // 4)
            if number + inside < line:
                number += inside
                continue
            return low + _after_breaks(window, line - number, begin, end)
        return start if number == line else None

    # -- windows -------------------------------------------------------------------------------

    def _windows(
        self, name: str, start: int, stop: int | None, length: int
    ) -> Iterator[tuple[int, bytes, int, int]]:
        """The windows of a document: where each begins, and what of it is to be looked at.

        What begins in a window and has the length may end behind it.
        """
        size = self.size(name)
        stop = size if stop is None else min(stop, size)
        if start >= stop:
            return
        for low in range(start - start % _WINDOW_BYTES, stop, _WINDOW_BYTES):
            window = self._read_window(name, low)
            end = min(stop - low, _WINDOW_BYTES + length - 1)
            yield low, window, max(0, start - low), end

    def _read_window(self, name: str, low: int) -> bytes:
        self.spend(_LOOK_BYTES_LEAST)
        held, at, window = self._window
        if held != name or at != low:
            window = self._held[name].read_raw(low, low + _WINDOW_BYTES + SPAN_BYTES_MAX)
            self._window = (name, low, window)
        return window


def _after_breaks(window: bytes, count: int, begin: int, end: int) -> int:
    """Where the line behind so many line ends begins. There are that many."""
    while end - begin > _LINE_BYTES_MAX:
        middle = (begin + end) // 2
        inside = window.count(b"\n", begin, middle)
        if inside >= count:
            end = middle
        else:
            begin, count = middle, count - inside
    for _ in range(count):
        begin = window.index(b"\n", begin, end) + 1
    return begin
