"""The working directory of native programs as bytes, and laid out again as files.

    16 bytes  magic
     4 bytes  length of the header, big-endian
     header   canonical JSON: every entry, the shell's directory and variables, what was left out
     the rest the contents that the header names, one after another

An archive says the whole of a directory, and has those contents that no earlier one of its run has.
So a run grows by what its programs change, and any of its states can be put back.

Rule: hostile until parsed, and what is laid out too. Lengths and digests are checked, a path stays
below the directory, and nothing is written through a link.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from tallystick.core.canonical import canonical, digest
from tallystick.core.errors import StoreError

__all__ = [
    "ENTRIES_MAX",
    "KEPT_BYTES_MAX",
    "FilesState",
    "KeptEntry",
    "StatesKept",
    "lay_out",
    "packed",
    "unpacked",
]

_MAGIC = b"tally files 1\r\n\0"
_PREFIX = struct.Struct(f">{len(_MAGIC)}sI")
_HEADER_BYTES_MAX = 64 << 20
# How much of a working directory is kept, and how many entries.
KEPT_BYTES_MAX = 32 << 20
ENTRIES_MAX = 20_000
_MODE = 0o777


class KeptEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file, a directory or a link, by its path from the working directory."""

    path: bytes
    kind: Literal["file", "directory", "link"]
    mode: int
    mtime_ns: int
    size: int = 0
    sha256: str = ""
    target: bytes = b""


class FilesState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A working directory, and where the shell stands. `left_out` are paths that are not in it.

    Only the one that a session is left with has variables.
    """

    entries: tuple[KeptEntry, ...] = ()
    where: bytes | None = None
    exported: tuple[tuple[bytes, bytes], ...] = ()
    left_out: tuple[str, ...] = ()
    left_out_of: int = 0
    # Python's variables, packed by the box, and the modules that it had imported, by name.
    variables: dict[str, str] = {}
    imported: dict[str, str] = {}

    @property
    def contents(self) -> set[str]:
        """The digests of what its files hold."""
        return {each.sha256 for each in self.entries if each.kind == "file"}


class _Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    state: FilesState
    contents: tuple[tuple[str, int], ...]


_decode = msgspec.json.Decoder(_Header).decode


def packed(state: FilesState, contents: Mapping[str, bytes]) -> bytes:
    """An archive of a state, with these contents."""
    held = sorted(contents.items())
    listed = tuple((sha256, len(content)) for sha256, content in held)
    header = canonical(msgspec.to_builtins(_Header(state=state, contents=listed)))
    if len(header) > _HEADER_BYTES_MAX:
        raise StoreError(f"kept files: over {_HEADER_BYTES_MAX:,} bytes of names and variables")
    return b"".join([_PREFIX.pack(_MAGIC, len(header)), header, *(content for _, content in held)])


def unpacked(raw: bytes) -> tuple[FilesState, dict[str, bytes]]:
    """What an archive says, and what it holds. Raises `StoreError` for what is none."""
    if len(raw) < _PREFIX.size:
        raise StoreError("kept files: too short")
    magic, length = _PREFIX.unpack_from(raw)
    if magic != _MAGIC or length > _HEADER_BYTES_MAX:
        raise StoreError("kept files: not an archive of this version")
    place = _PREFIX.size + length
    try:
        header = _decode(raw[_PREFIX.size : place])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"kept files: {error}") from None
    contents = {}
    for sha256, size in header.contents:
        content = raw[place : place + size] if size >= 0 else b""
        place += size
        if digest(content) != sha256:
            raise StoreError(f"kept files: the content {sha256[:12]} is not what it says")
        contents[sha256] = content
    if place != len(raw):
        raise StoreError("kept files: something stands behind it")
    return header.state, contents


class StatesKept:
    """The states of a run in their order, each by the program that it stands after.

    Archives are read again where their contents are needed: all of a run's together may be large.
    """

    def __init__(self) -> None:
        self._states: list[tuple[int, FilesState]] = []
        self._holding: list[tuple[set[str], Callable[[], bytes]]] = []

    def add(self, intent: int, load: Callable[[], bytes], raw: bytes | None = None) -> None:
        """Add what was kept after a program; `load` gives its archive, which may be at hand."""
        state, contents = unpacked(load() if raw is None else raw)
        self._states.append((intent, state))
        self._holding.append((set(contents), load))

    def forget_variables(self) -> None:
        """A program has run since: they are not what they were."""
        self._states = [
            (intent, msgspec.structs.replace(state, variables={}, imported={}))
            for intent, state in self._states
        ]

    @property
    def known(self) -> set[str]:
        """The digests of all contents that are kept."""
        return {sha256 for held, _ in self._holding for sha256 in held}

    def after(self, intent: int) -> FilesState:
        """The state after a program: the last that was kept by then."""
        found = [state for each, state in self._states if each <= intent]
        return found[-1] if found else FilesState()

    def contents(self, state: FilesState) -> dict[str, bytes]:
        """What the files of a state hold. Raises `StoreError` if something is missing."""
        needed = state.contents
        found: dict[str, bytes] = {}
        for held, load in self._holding:
            if wanted := needed & held - found.keys():
                _, contents = unpacked(load())
                found.update((sha256, contents[sha256]) for sha256 in wanted)
        for sha256 in needed - found.keys():
            raise StoreError(f"kept files: the content {sha256[:12]} is missing")
        return found


def lay_out(state: FilesState, contents: Mapping[str, bytes], folder: Path) -> None:
    """Make the files of a state in a directory of ours, which is made, or empty."""
    if missing := state.contents - contents.keys():
        raise StoreError(f"kept files: the content {min(missing)[:12]} is missing")
    size = sum(len(contents[each.sha256]) for each in state.entries if each.kind == "file")
    if size > KEPT_BYTES_MAX or len(state.entries) > ENTRIES_MAX:
        raise StoreError("kept files: more than a working directory may hold")
    root = os.fsencode(folder)
    ordered = sorted(state.entries, key=lambda each: each.path)
    _check_paths(ordered)
    directories = [each for each in ordered if each.kind == "directory"]
    folder.mkdir(exist_ok=True)
    for each in directories:
        os.mkdir(os.path.join(root, each.path), 0o700)
    for each in ordered:
        place = os.path.join(root, each.path)
        if each.kind == "file":
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(place, flags, 0o600), "wb") as file:
                file.write(contents[each.sha256])
            os.chmod(place, each.mode & _MODE)
            os.utime(place, ns=(each.mtime_ns, each.mtime_ns))
        elif each.kind == "link":
            if not each.target or b"\0" in each.target:
                raise StoreError("kept files: a link to nothing")
            os.symlink(each.target, place)
    # Last, and the innermost first: what is made in a directory changes it.
    for each in reversed(directories):
        place = os.path.join(root, each.path)
        os.chmod(place, (each.mode & _MODE) | 0o700)
        os.utime(place, ns=(each.mtime_ns, each.mtime_ns))


def _check_paths(entries: Sequence[KeptEntry]) -> None:
    """Every entry stands once, below the directory, in a directory that stands there too."""
    directories = {each.path for each in entries if each.kind == "directory"}
    seen: set[bytes] = set()
    for each in entries:
        parts = each.path.split(b"/")
        if b"\0" in each.path or not all(parts) or {b".", b".."} & set(parts):
            raise StoreError(f"kept files: {each.path[:80]!r} is no path")
        parent = b"/".join(parts[:-1])
        if each.path in seen or (parent and parent not in directories):
            raise StoreError(f"kept files: {each.path[:80]!r} has no place")
        seen.add(each.path)
