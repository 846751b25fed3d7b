"""Files for the interpreter while it is built: read-only, and the same wherever that is.

The functions are those of `wasi:filesystem` and of the streams that it opens, as a core module
calls them: numbers in, and a result written to memory. Of a file only its path and its bytes are
known. It has no times and no owner, and a directory is listed in the order of its names.
"""

from __future__ import annotations

import posixpath
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["FILE_FUNCTIONS", "FileFunctions", "GuestMemory"]

# Values of `error-code` and `descriptor-type`, by their place in the lists of WASI.
_BAD_DESCRIPTOR, _INVALID, _IS_DIRECTORY, _NO_ENTRY, _NOT_DIRECTORY, _READ_ONLY = (
    3,
    12,
    14,
    20,
    24,
    33,
)
_DIRECTORY, _REGULAR_FILE = 3, 6
_STREAM_CLOSED = 1

_OPEN_TO_CHANGE = 1 | 4 | 8  # create, exclusive, truncate
_OPEN_DIRECTORY = 2
_FLAG_READ, _FLAG_WRITE = 1, 2

# Numbers that no other handle of the virtual WASI has.
_FIRST_HANDLE = 1_000


class GuestMemory(Protocol):
    """Memory of the guest, and its allocator for what it is handed."""

    def read(self, start: int, length: int) -> bytes:
        """Return bytes of the memory."""

    def write(self, start: int, content: bytes) -> None:
        """Write to the memory."""

    def allocate(self, length: int, align: int) -> int:
        """Return where the guest has made room."""


class _Refused(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass(slots=True)
class _Open:
    """What a handle stands for: a path, and for a stream how far it was read."""

    path: str
    position: int = 0
    entries: list[str] = field(default_factory=list)


class FileFunctions:
    """WASI functions over a mapping of absolute paths to contents.

    `roots` are the directories that the guest is given, by the names it knows them under.
    """

    def __init__(
        self, files: Mapping[str, bytes], *, roots: Mapping[str, str], memory: GuestMemory
    ) -> None:
        self._files = files
        self._roots = roots
        self._memory = memory
        self._listings: dict[str, set[str]] = {root: set() for root in roots.values()}
        for path in files:
            while path not in roots.values() and path != "/":
                folder, name = posixpath.split(path)
                self._listings.setdefault(folder, set()).add(name)
                path = folder
        known = sorted({*files, *self._listings})
        self._numbers = {path: number for number, path in enumerate(known, 1)}
        self._handles: dict[int, _Open] = {}

    def functions(self) -> dict[str, Callable[..., None]]:
        """Return the functions by interface and name. The others are not for a build."""
        return {name: getattr(self, method) for name, method in _METHODS.items()}

    # The functions. A result is a byte that says which of two it is, then the one it is: `align`
    # bytes later, the alignment of the larger.

    def get_directories(self, result: int) -> None:
        rows = b""
        for name, path in self._roots.items():
            raw = name.encode()
            rows += struct.pack("<III", self._handle(path), self._put(raw), len(raw))
        place = self._memory.allocate(len(rows), 4)
        self._memory.write(place, rows)
        self._memory.write(result, struct.pack("<II", place, len(self._roots)))

    def open_at(
        self, handle: int, _: int, start: int, length: int, how: int, flags: int, result: int
    ) -> None:
        def answer() -> bytes:
            path = self._resolve(handle, start, length)
            if how & _OPEN_TO_CHANGE or flags & _FLAG_WRITE:
                raise _Refused(_READ_ONLY)
            if how & _OPEN_DIRECTORY and self._kind(path) != _DIRECTORY:
                raise _Refused(_NOT_DIRECTORY)
            return struct.pack("<I", self._handle(path))

        self._answer(result, 4, answer)

    def create_directory_at(self, handle: int, start: int, length: int, result: int) -> None:
        del handle, start, length

        def answer() -> bytes:
            raise _Refused(_READ_ONLY)

        self._answer(result, 1, answer)

    def get_flags(self, handle: int, result: int) -> None:
        def answer() -> bytes:
            self._open(handle)
            return bytes([_FLAG_READ])

        self._answer(result, 1, answer)

    def stat(self, handle: int, result: int) -> None:
        self._answer(result, 8, lambda: self._facts(self._path(handle)))

    def stat_at(self, handle: int, _: int, start: int, length: int, result: int) -> None:
        self._answer(result, 8, lambda: self._facts(self._resolve(handle, start, length)))

    def metadata_hash(self, handle: int, result: int) -> None:
        self._answer(result, 8, lambda: self._number(self._path(handle)))

    def metadata_hash_at(self, handle: int, _: int, start: int, length: int, result: int) -> None:
        self._answer(result, 8, lambda: self._number(self._resolve(handle, start, length)))

    def readlink_at(self, handle: int, start: int, length: int, result: int) -> None:
        def answer() -> bytes:
            self._resolve(handle, start, length)
            raise _Refused(_INVALID)  # It is there, and no link.

        self._answer(result, 4, answer)

    def read_directory(self, handle: int, result: int) -> None:
        def answer() -> bytes:
            path = self._path(handle)
            if path not in self._listings:
                raise _Refused(_NOT_DIRECTORY)
            return struct.pack("<I", self._handle(path, entries=sorted(self._listings[path])))

        self._answer(result, 4, answer)

    def read_directory_entry(self, handle: int, result: int) -> None:
        def answer() -> bytes:
            listing = self._open(handle)
            if listing.position == len(listing.entries):
                return struct.pack("<I", 0)
            name = listing.entries[listing.position]
            listing.position += 1
            raw = name.encode()
            kind = self._kind(posixpath.join(listing.path, name))
            return struct.pack("<IIII", 1, kind, self._put(raw), len(raw))

        self._answer(result, 4, answer)

    def read_via_stream(self, handle: int, offset: int, result: int) -> None:
        def answer() -> bytes:
            path = self._path(handle)
            if path not in self._files:
                raise _Refused(_IS_DIRECTORY)
            return struct.pack("<I", self._handle(path, position=offset))

        self._answer(result, 4, answer)

    def read_stream(self, handle: int, length: int, result: int) -> None:
        def answer() -> bytes:
            if handle not in self._handles:
                raise _Refused(_STREAM_CLOSED)  # Standard input.
            stream = self._handles[handle]
            content = self._files[stream.path][stream.position : stream.position + length]
            if length and not content:
                raise _Refused(_STREAM_CLOSED)
            stream.position += len(content)
            return struct.pack("<II", self._put(content), len(content))

        self._answer(result, 4, answer)

    # What they share.

    def _answer(self, result: int, align: int, answer: Callable[[], bytes]) -> None:
        try:
            content, failed = answer(), 0
        except _Refused as refused:
            content, failed = bytes([refused.code]), 1
        self._memory.write(result, bytes([failed]))
        self._memory.write(result + align, content)

    def _put(self, content: bytes) -> int:
        place = self._memory.allocate(len(content), 1)
        self._memory.write(place, content)
        return place

    def _handle(self, path: str, *, position: int = 0, entries: list[str] | None = None) -> int:
        handle = _FIRST_HANDLE + len(self._handles)
        self._handles[handle] = _Open(path, position, entries or [])
        return handle

    def _open(self, handle: int) -> _Open:
        if handle not in self._handles:
            raise _Refused(_BAD_DESCRIPTOR)
        return self._handles[handle]

    def _path(self, handle: int) -> str:
        return self._open(handle).path

    def _resolve(self, handle: int, start: int, length: int) -> str:
        name = self._memory.read(start, length).decode(errors="replace")
        path = posixpath.normpath(posixpath.join(self._path(handle), name))
        if path not in self._numbers:
            raise _Refused(_NO_ENTRY)
        return path

    def _kind(self, path: str) -> int:
        return _REGULAR_FILE if path in self._files else _DIRECTORY

    def _facts(self, path: str) -> bytes:
        # One link, a size, and none of three times.
        size = len(self._files.get(path, b""))
        return struct.pack("<Q", self._kind(path)) + struct.pack("<QQ", 1, size) + bytes(72)

    def _number(self, path: str) -> bytes:
        return struct.pack("<QQ", self._numbers[path], 0)


_TYPES = "wasi:filesystem/types#[method]"
_METHODS = {
    "wasi:filesystem/preopens#get-directories": "get_directories",
    f"{_TYPES}descriptor.open-at": "open_at",
    f"{_TYPES}descriptor.create-directory-at": "create_directory_at",
    f"{_TYPES}descriptor.get-flags": "get_flags",
    f"{_TYPES}descriptor.stat": "stat",
    f"{_TYPES}descriptor.stat-at": "stat_at",
    f"{_TYPES}descriptor.metadata-hash": "metadata_hash",
    f"{_TYPES}descriptor.metadata-hash-at": "metadata_hash_at",
    f"{_TYPES}descriptor.readlink-at": "readlink_at",
    f"{_TYPES}descriptor.read-directory": "read_directory",
    f"{_TYPES}descriptor.read-via-stream": "read_via_stream",
    f"{_TYPES}directory-entry-stream.read-directory-entry": "read_directory_entry",
    "wasi:io/streams#[method]input-stream.read": "read_stream",
}
FILE_FUNCTIONS = frozenset(_METHODS)
