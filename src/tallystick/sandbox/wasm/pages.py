"""Which pages of a guest's memory differ from its image, and putting them back.

On Linux the kernel says which pages of a private mapping were written: those that are present and
no longer backed by the file. Only they are compared. Elsewhere, or where the kernel does not say,
all pages are. Either way what is stored is what differs, so both give the same snapshot.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from ctypes import c_char_p, c_void_p, cast, memmove, string_at

from tallystick.sandbox.snapshot import PAGE_BYTES

__all__ = ["changed_pages", "put_pages"]

_PRESENT, _SWAPPED, _OF_FILE = 1 << 63, 1 << 62, 1 << 61
_ENTRY_BYTES = 8
_ZEROS = bytes(PAGE_BYTES)
_CHUNK_PAGES = 64


def changed_pages(*, base: int, size: int, image_base: int, image_size: int) -> list[int]:
    """Return the indices of the pages at `base` that differ from the image, in order."""
    candidates: Iterable[int] | None = _written(base, size // PAGE_BYTES)
    if candidates is None:
        candidates = _coarsely(range(size // PAGE_BYTES), base, image_base, image_size)
    found = []
    for page in candidates:
        offset = page * PAGE_BYTES
        now = string_at(base + offset, PAGE_BYTES)
        then = string_at(image_base + offset, PAGE_BYTES) if offset < image_size else _ZEROS
        if now != then:
            found.append(page)
    return found


def put_pages(*, base: int, indices: Sequence[int], pages: Sequence[bytes]) -> None:
    """Write pages at their places, neighbours in one move."""
    for first, count in _runs(indices):
        data = b"".join(pages[first : first + count])
        source = cast(c_char_p(data), c_void_p)
        memmove(base + indices[first] * PAGE_BYTES, source, len(data))


def _written(base: int, count: int) -> list[int] | None:
    """The pages of this mapping that were written, or None if the kernel does not tell."""
    if base % PAGE_BYTES:
        return None
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as file:
            file.seek(base // PAGE_BYTES * _ENTRY_BYTES)
            raw = file.read(count * _ENTRY_BYTES)
    except OSError:
        return None
    if len(raw) != count * _ENTRY_BYTES:
        return None
    entries = struct.unpack(f"<{count}Q", raw)
    return [
        page
        for page, entry in enumerate(entries)
        if entry & (_PRESENT | _SWAPPED) and not entry & _OF_FILE
    ]


def _coarsely(pages: range, base: int, image_base: int, image_size: int) -> Iterator[int]:
    """Leave out chunks that are equal as a whole: a comparison of 256 KiB costs as one of 4."""
    for first in range(0, len(pages), _CHUNK_PAGES):
        offset = first * PAGE_BYTES
        length = min(_CHUNK_PAGES, len(pages) - first) * PAGE_BYTES
        now = string_at(base + offset, length)
        if offset + length <= image_size:
            same = now == string_at(image_base + offset, length)
        elif offset >= image_size:
            same = not any(now)
        else:
            same = False
        if not same:
            yield from range(first, first + length // PAGE_BYTES)


def _runs(indices: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Positions and lengths of the runs of neighbouring indices."""
    first = 0
    for position in range(1, len(indices) + 1):
        ended = position == len(indices) or indices[position] != indices[position - 1] + 1
        if ended:
            yield first, position - first
            first = position
