"""Text that stays on the host: programs read slices of it, and search it, through this module.

Programs use character positions; the data are bytes. Text that is all ASCII needs no index. For
other text, the number of characters before each block of 64 KiB is kept. Blocks begin at a
character, so a slice decodes only the blocks that it touches. Bytes that are not UTF-8 become
U+FFFD, exactly as if the whole text were decoded at once: no byte sequence, valid or broken,
crosses the beginning of a block.

Patterns come from a model. They run in RE2, whose time is linear in the text for any pattern. The
search goes window by window, and checks between two windows if it has to stop. A match may have up
to `MATCH_BYTES_MAX` bytes. Windows overlap by that much, so no match is missed at a boundary.
"""

from __future__ import annotations

import bisect
import itertools
import mmap
import os
import re
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tallystick.core.errors import UsageError
from tallystick.core.patterns import Pattern, compile_pattern, required_text
from tallystick.sandbox import scheduling
from tallystick.storage import system

# A pattern of up to this many instructions of RE2 is searched for in larger pieces.
PATTERN_SMALL = 100
_BLOCK_BYTES = 65_536
_BLOCKS_TOGETHER = 16
_WINDOW_BYTES = 8 * 1024 * 1024
# Work without a pattern goes in pieces of this size. Python's interpreter lock is held for one
# piece, a fraction of a millisecond, so the event loop and other programs keep running.
_PIECE_BYTES = 256 * 1024
# Below this size, loading the engine of `utf8` takes longer than decoding.
_COUNTED_BYTES_MIN = 8 * 1024 * 1024
MATCH_BYTES_MAX = 1024 * 1024
_MATCHES_MAX = 10_000
_SLICE_BYTES_MAX = 32 * 1024 * 1024
_MATCH_TEXT_BYTES_MAX = 4_096
# `grep` looks for the ends of a line at most this far from a match.
_LINE_BYTES_MAX = 65_536
# The bytes of one character, or the bytes that a decoder replaces by one U+FFFD: at least one, and
# then as many as could still have become a character.
_CHARACTER = re.compile(
    rb"[\x00-\x7f]|[\xc2-\xdf][\x80-\xbf]?"
    rb"|[\xe1-\xec\xee\xef][\x80-\xbf]{0,2}"
    rb"|\xe0(?:[\xa0-\xbf][\x80-\xbf]?)?|\xed(?:[\x80-\x9f][\x80-\xbf]?)?"
    rb"|\xf0(?:[\x90-\xbf][\x80-\xbf]{0,2})?|[\xf1-\xf3][\x80-\xbf]{0,3}"
    rb"|\xf4(?:[\x80-\x8f][\x80-\xbf]{0,2})?|[\x80-\xff]"
)


class HostText:
    """Bytes on the host, read as UTF-8 text.

    Positions are characters from 0, unless a method says bytes. The methods for programs raise
    `UsageError` for text that is not a `str`, and for a slice of over 32 MiB. They also raise it
    for a position that is negative or not a whole number. In long work, `scheduling.check` may
    raise to stop it.
    """

    def __init__(self, data: bytes | mmap.mmap) -> None:
        self._data = data
        self._size = len(data)
        self._lock = threading.Lock()
        self._ascii: bool | None = None
        self._starts = array("Q")  # byte offset at which each block begins
        self._before = array("Q")  # characters before each block
        self._chars = 0

    @classmethod
    def of(cls, text: str) -> HostText:
        """Return a text on the host with the content of a `str`.

        Raise `UnicodeEncodeError` for half of a surrogate pair.
        """
        return cls(text.encode("utf-8"))

    @classmethod
    def open(cls, path: Path) -> HostText:
        """Map a file into memory. Its bytes are read when they are first used.

        Raise `OSError` if it cannot be opened. If the file is truncated later, a read beyond its
        end kills this process.
        """
        descriptor = os.open(path, os.O_RDONLY | system.CLOEXEC)
        try:
            if os.fstat(descriptor).st_size == 0:
                return cls(b"")
            return cls(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
        finally:
            os.close(descriptor)

    def __len__(self) -> int:
        """Return the size in bytes."""
        return self._size

    def close(self) -> None:
        """Close the file of a mapped text, which cannot be read afterwards."""
        if isinstance(self._data, mmap.mmap):
            self._data.close()

    # -- by characters ---------------------------------------------------------------------------

    def length(self) -> int:
        """Return the number of characters."""
        return self._size if self._is_ascii() else self._index_blocks()

    def slice(self, start: int, stop: int) -> str:
        """Return the characters from `start` up to `stop`, or up to the end of the text."""
        start, stop = _whole(start), _whole(stop)
        if self._is_ascii():
            return self._bytes(start, min(stop, self._size)).decode("ascii")
        stop = min(stop, self._index_blocks())
        if start >= stop:
            return ""
        first = bisect.bisect_right(self._before, start) - 1
        last = bisect.bisect_left(self._before, stop)
        _check_slice(self._block_start(last) - self._starts[first])
        text = "".join(self._decode_block(block) for block in range(first, last))
        return text[start - self._before[first] : stop - self._before[first]]

    def find(self, needle: str, start: int) -> int:
        """Return the character position of `needle` at or after `start`, or -1."""
        at = self._find_bytes(
            required_text(needle).encode("utf-8", "surrogatepass"), self._to_byte(start)
        )
        return -1 if at < 0 else self._to_char(at)

    def search(self, pattern: str | Pattern, start: int, limit: int) -> list[tuple[int, int, str]]:
        """Find a pattern from `start` on; return (start, end, text) of up to `limit` matches.

        At most 10,000 matches are returned, each with at most 4,096 bytes of its text. Raise
        `UsageError` for a bad pattern, and for a match of over 1 MiB.
        """
        found = self.search_bytes(pattern, self._to_byte(start), limit)
        if self._is_ascii():
            return found
        positions = _Positions(self)
        return [(positions.at(low), positions.at(high), text) for low, high, text in found]

    def count(self, needle: str) -> int:
        """Return how often `needle` occurs, without overlaps, as `str.count` does.

        An empty needle occurs once more than there are characters.
        """
        raw = required_text(needle).encode("utf-8", "surrogatepass")
        if not raw:
            return self.length() + 1
        return self._count_bytes(raw, 0, self._size)

    def grep(self, pattern: str | Pattern, limit: int) -> list[tuple[int, str]]:
        """Return (number, line) of up to `limit` lines with a match; numbers start at 1.

        At most 10,000 lines are returned, each with at most 4,096 bytes of its text. Of a line that
        begins over 64 KiB before the match, the text begins 64 KiB before the match, except in the
        first line. A line with matches over 64 KiB apart is returned again. Raise `UsageError` as
        `search` does.
        """
        limit = min(_whole(limit), _MATCHES_MAX)
        found: list[tuple[int, str]] = []
        number, counted, line_end = 1, 0, -1
        if not limit:
            return found
        for low, _ in self._matches(compile_pattern(pattern), 0):
            if low <= line_end:
                continue
            number += self._breaks(counted, low)
            counted = low
            start = self._data.rfind(b"\n", max(0, low - _LINE_BYTES_MAX), low) + 1
            if not start and number > 1:
                # The line begins further back. To look for that from each of its matches would
                # take time in the square of its length.
                start = self._first_character(low - _LINE_BYTES_MAX, low)
            line_end = self._data.find(b"\n", low, min(self._size, low + _LINE_BYTES_MAX))
            if line_end < 0:
                line_end = min(self._size, low + _LINE_BYTES_MAX)
            shown = bytes(self._data[start : min(line_end, start + _MATCH_TEXT_BYTES_MAX)])
            found.append((number, shown.decode("utf-8", "replace").removesuffix("\r")))
            if len(found) == limit:
                break
        return found

    def _first_character(self, start: int, stop: int) -> int:
        """Return the offset of the first character that begins at or after `start`, or `stop`."""
        while start < stop and self._data[start] & 0xC0 == 0x80:
            start += 1
        return start

    def _breaks(self, start: int, stop: int) -> int:
        return self._count_bytes(b"\n", start, stop)

    def _count_bytes(self, needle: bytes, start: int, stop: int) -> int:
        """Count the bytes `needle` between two offsets, from the left and without overlaps."""
        found, position = 0, start
        while position + len(needle) <= stop:
            scheduling.check()
            # An occurrence that begins in a piece may end after it.
            reach = min(stop, position + max(_PIECE_BYTES, len(needle)) + len(needle) - 1)
            piece = bytes(self._data[position:reach])
            count = piece.count(needle)
            found += count
            behind = _end_of_last(piece, needle) if count and reach < stop else 0
            position += max(behind, len(piece) - len(needle) + 1)
        return found

    # -- by bytes --------------------------------------------------------------------------------

    def read_bytes(self, start: int, stop: int) -> str:
        """Return the text between two byte offsets, without a character that either end cuts."""
        start, stop = _whole(start), min(_whole(stop), self._size)
        data = self._bytes(start, stop)
        low = 0
        while low < min(3, len(data)) and start > 0 and data[low] & 0xC0 == 0x80:
            low += 1
        high = len(data)
        if stop < self._size:
            high -= _cut_tail(data)
        return data[low:high].decode("utf-8", "replace")

    def read_raw(self, start: int, stop: int) -> bytes:
        """Return the bytes between two byte offsets, undecoded; for the host, not for programs.

        Raise `UsageError` for over 32 MiB. The offsets are whole numbers from 0; that is not
        checked.
        """
        return self._bytes(start, min(stop, self._size))

    def search_bytes(
        self, pattern: str | Pattern, start: int, limit: int
    ) -> list[tuple[int, int, str]]:
        """Find a pattern as `search` does, with byte offsets as positions, also for `start`."""
        limit = min(_whole(limit), _MATCHES_MAX)
        found = []
        if limit:
            for low, high in self._matches(compile_pattern(pattern), _whole(start)):
                shown = bytes(self._data[low : min(high, low + _MATCH_TEXT_BYTES_MAX)])
                found.append((low, high, shown.decode("utf-8", "replace")))
                if len(found) == limit:
                    break
        return found

    def _matches(self, pattern: Pattern, start: int) -> Iterator[tuple[int, int]]:
        """Yield the byte offsets of matches, window by window.

        Windows overlap, and a match counts only if it starts before the next window. Raise
        `UsageError` for a match that is longer than the overlap.
        """
        window = _WINDOW_BYTES if pattern.size <= PATTERN_SMALL else _WINDOW_BYTES // 32
        position = start
        edge = position + window  # where the next window's own part begins
        while position <= self._size:
            scheduling.check()
            reach = min(self._size, edge + MATCH_BYTES_MAX)
            match = pattern.compiled.search(self._data, position, reach)
            if match is None or (match.start() >= edge and edge < self._size):
                position, edge = edge, edge + window
                continue
            low, high = match.span()
            if high == reach < self._size:
                raise UsageError(
                    f"a match is longer than {MATCH_BYTES_MAX:,} bytes; make the pattern narrower"
                )
            yield low, high
            # After an empty match, move by one byte; otherwise the same match is found for ever.
            position = high if high > low else high + 1
            edge = max(edge, position)
            if position == edge:
                edge += window

    def _find_bytes(self, needle: bytes, start: int) -> int:
        """Return the byte offset of `needle` at or after `start`, or -1."""
        position = start
        while True:
            scheduling.check()
            reach = min(self._size, position + _PIECE_BYTES + len(needle))
            at = self._data.find(needle, position, reach)
            if at >= 0 or reach == self._size:
                return at
            position += _PIECE_BYTES

    def _bytes(self, start: int, stop: int) -> bytes:
        _check_slice(stop - start)
        return bytes(self._data[start : max(start, stop)])

    # -- the index -------------------------------------------------------------------------------

    def _is_ascii(self) -> bool:
        if self._ascii is None:
            for low in range(0, self._size, _PIECE_BYTES):
                scheduling.check()
                if not bytes(self._data[low : low + _PIECE_BYTES]).isascii():
                    self._ascii = False
                    return False
            self._ascii = True
        return self._ascii

    def _index_blocks(self) -> int:
        """Count the characters before each block, once. Return the number in the whole text.

        If the work is stopped, the blocks counted so far are kept.
        """
        with self._lock:
            count = _block_counter(self._size - self._block_start(len(self._starts)))
            while self._block_start(first := len(self._starts)) < self._size:
                scheduling.check()
                edges = [self._block_start(first + each) for each in range(_BLOCKS_TOGETHER + 1)]
                pairs = [(low, high) for low, high in itertools.pairwise(edges) if low < high]
                counts = count([self._data[low:high] for low, high in pairs])
                for (start, _), chars in zip(pairs, counts, strict=True):
                    self._starts.append(start)
                    self._before.append(self._chars)
                    self._chars += chars
            return self._chars

    def _block_start(self, block: int) -> int:
        """Return the offset where a block begins: at a character.

        That is at most three bytes before the multiple of 64 KiB. For a block after the end it is
        the size of the text.
        """
        if block < len(self._starts):
            return self._starts[block]
        position = block * _BLOCK_BYTES
        if position >= self._size or block == 0:
            return min(position, self._size)
        for back in range(4):
            if self._data[position - back] & 0xC0 != 0x80:
                return position - back
        return position

    def _decode_block(self, block: int) -> str:
        low, high = self._starts[block], self._block_start(block + 1)
        return self._data[low:high].decode("utf-8", "replace")

    def _to_byte(self, position: int) -> int:
        position = _whole(position)
        if self._is_ascii() or position == 0:
            return position
        if position >= self._index_blocks():
            return self._size
        block = bisect.bisect_right(self._before, position) - 1
        head = self._decode_block(block)[: position - self._before[block]]
        if "\ufffd" not in head:
            return self._starts[block] + len(head.encode())
        return self._starts[block] + self._char_offsets(block)[len(head)]

    def _to_char(self, offset: int) -> int:
        return offset if self._is_ascii() else _Positions(self).at(offset)

    def _char_offsets(self, block: int) -> list[int]:
        """Return the offset in the block of each character, also if the bytes are not UTF-8."""
        data = self._data[self._starts[block] : self._block_start(block + 1)]
        return [match.start() for match in _CHARACTER.finditer(data)]


class _Positions:
    """A converter of byte offsets to character positions.

    It keeps the last block, so ascending offsets need each block only once.
    """

    def __init__(self, text: HostText) -> None:
        self._text = text
        self._block = -1
        self._offsets: list[int] = []

    def at(self, offset: int) -> int:
        """Return the character position of a byte offset; the length for one at the end."""
        scheduling.check()
        total = self._text._index_blocks()
        if offset >= len(self._text):
            return total
        block = bisect.bisect_right(self._text._starts, offset) - 1
        if block != self._block:
            self._block, self._offsets = block, self._text._char_offsets(block)
        inside = offset - self._text._starts[block]
        return self._text._before[block] + bisect.bisect_left(self._offsets, inside)


# The functions that read more of a text than they return. On texts of up to the size below, they
# are quick enough for the program's own thread.
SCANNING = frozenset(
    {
        "text.length",
        "text.find",
        "text.count",
        "text.search",
        "text.grep",
        "text.search_bytes",
    }
)
SCANNED_BYTES_MAX = 65_536

TEXT_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "text.length": HostText.length,
    "text.slice": HostText.slice,
    "text.find": HostText.find,
    "text.count": HostText.count,
    "text.search": HostText.search,
    "text.grep": HostText.grep,
    "text.read_bytes": HostText.read_bytes,
    "text.search_bytes": HostText.search_bytes,
}


def _block_counter(size: int) -> Callable[[list[bytes]], list[int]]:
    """Return a function that counts the characters of blocks.

    `size` is the number of bytes left to count. From 8 MiB on, the engine of `utf8` counts.
    """
    if size < _COUNTED_BYTES_MIN:
        return lambda blocks: [_decoded_length(block) for block in blocks]
    from tallystick.sandbox.utf8 import CharacterCount

    counter = CharacterCount()

    def count_blocks(blocks: list[bytes]) -> list[int]:
        found = counter.count(blocks)
        return [
            _decoded_length(block) if count is None else count
            for block, count in zip(blocks, found, strict=True)
        ]

    return count_blocks


def _end_of_last(piece: bytes, needle: bytes) -> int:
    """Return the end of the last occurrence that `bytes.count` counts in the piece."""
    last = piece.rfind(needle)
    before = piece.rfind(needle, 0, last + len(needle) - 1)
    if before < 0 or before + len(needle) <= last:
        return last + len(needle)
    # The last occurrence overlaps another one, and counting goes from the left, so the last one may
    # not count. The shortest prefix with the same count ends where the last one that counts ends.
    count = piece.count(needle)
    return bisect.bisect_left(
        range(len(piece) + 1), count, key=lambda end: piece.count(needle, 0, end)
    )


def _decoded_length(block: bytes) -> int:
    return len(block.decode("utf-8", "replace"))


def _whole(value: object) -> int:
    if type(value) is not int or value < 0:
        raise UsageError(f"a position is a whole number from 0, not {value!r}")
    return value


def _check_slice(size: int) -> None:
    if size > _SLICE_BYTES_MAX:
        raise UsageError(
            f"a slice of {size:,} bytes; at most {_SLICE_BYTES_MAX:,} at a time: read it in parts"
        )


def _cut_tail(data: bytes) -> int:
    """Return the number of bytes at the end that belong to an incomplete character."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            needs = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if needs > back else 0
    return 0


# Search many texts on the host in one call.
#
# The texts are searched in their order, until there are `limit` matches. The pattern is compiled
# once. Each text takes time proportional to its length.


def search_each(
    texts: Sequence[HostText], pattern: str, limit: int
) -> list[tuple[int, int, int, str]]:
    """Search texts in order; return up to `limit` matches as (text number, start, end, text).

    At most 10,000 are returned. Text numbers and positions, in characters, count from 0. Raise
    `UsageError` for a bad limit, and as `HostText.search` does.
    """
    limit, ready = _limit(limit), compile_pattern(pattern)
    found: list[tuple[int, int, int, str]] = []
    for place, text in enumerate(texts):
        if len(found) == limit:
            break
        found += [(place, *each) for each in text.search(ready, 0, limit - len(found))]
    return found


def grep_each(texts: Sequence[HostText], pattern: str, limit: int) -> list[tuple[int, int, str]]:
    """Search texts in order; return up to `limit` lines as (text number, line number, line).

    At most 10,000 are returned. Text numbers count from 0, line numbers from 1.
    Raise `UsageError` for a bad limit, and as `HostText.grep` does.
    """
    limit, ready = _limit(limit), compile_pattern(pattern)
    found: list[tuple[int, int, str]] = []
    for place, text in enumerate(texts):
        if len(found) == limit:
            break
        found += [(place, *each) for each in text.grep(ready, limit - len(found))]
    return found


def _limit(value: object) -> int:
    if type(value) is not int or value < 0:
        raise UsageError(f"a limit is a whole number from 0, not {value!r}")
    return min(value, _MATCHES_MAX)


CORPUS_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "text.search_each": search_each,
    "text.grep_each": grep_each,
}
