"""Keep the files of native programs: list them in their box, pack them as bytes, restore them.

What a box sends may come from a hostile program. So it is parsed with limits, and it becomes files
again only for a box.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from tallystick.core.errors import SandboxError, StoreError
from tallystick.core.json_text import canonical, digest

if TYPE_CHECKING:
    from tallystick.sandbox.process.session import ProcessInterpreter


# The working directory of native programs: encode it as bytes, and write it as files again.
#
#     16 bytes  magic
#      4 bytes  length of the header, big-endian
#      header   canonical JSON: every entry, the shell's directory and variables, what was left out
#      the rest the contents that the header names, one after another
#
# An archive lists the whole directory, but contains only contents that no earlier archive of its
# run has. So a run grows only by what its programs change, and each of its states can be restored.
#
# Rule: an archive is hostile until parsed, and while it is written as files. Lengths and digests
# are checked, a path stays below the directory, and nothing is written through a link.


_MAGIC = b"tally files 1\r\n\0"
_PREFIX = struct.Struct(f">{len(_MAGIC)}sI")
_HEADER_BYTES_MAX = 64 << 20
# The most that is kept of a working directory: bytes of contents, and entries.
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
    """A working directory, with the directory and the exported variables of the shell.

    `where` is None for the working directory itself. `left_out` has up to 20 paths, and `$NAME` of
    variables, that were not kept; `left_out_of` is the number of all of them. Only the state that a
    run leaves to its session has Python variables.
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
        """The digests of the contents of all files."""
        return {each.sha256 for each in self.entries if each.kind == "file"}


class _Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    state: FilesState
    contents: tuple[tuple[str, int], ...]


_decode = msgspec.json.Decoder(_Header).decode


def pack_state(state: FilesState, contents: Mapping[str, bytes]) -> bytes:
    """Encode a state and these contents, by their digests, as an archive.

    Raise `StoreError` if the header would take over 64 MiB.
    """
    held = sorted(contents.items())
    listed = tuple((sha256, len(content)) for sha256, content in held)
    header = canonical(msgspec.to_builtins(_Header(state=state, contents=listed)))
    if len(header) > _HEADER_BYTES_MAX:
        raise StoreError(f"kept files: over {_HEADER_BYTES_MAX:,} bytes of names and variables")
    return b"".join([_PREFIX.pack(_MAGIC, len(header)), header, *(content for _, content in held)])


def unpack_state(raw: bytes) -> tuple[FilesState, dict[str, bytes]]:
    """Decode an archive: its state, and the contents in it by their digests.

    Raise `StoreError` if it is not an archive, or a content does not have its digest.
    """
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
            raise StoreError(f"kept files: the content {sha256[:12]} does not have its digest")
        contents[sha256] = content
    if place != len(raw):
        raise StoreError("kept files: there are bytes after the last content")
    return header.state, contents


class KeptStates:
    """The states of a run in their order, each with the program after which it was kept.

    Contents are not held in memory, because those of a whole run may be large. Archives are read
    again when contents are needed.
    """

    def __init__(self) -> None:
        self._states: list[tuple[int, FilesState]] = []
        self._holding: list[tuple[set[str], Callable[[], bytes]]] = []

    def add(self, intent: int, load: Callable[[], bytes], raw: bytes | None = None) -> None:
        """Add the state after a program. `load` returns its archive, `raw` is that if at hand.

        States are added in the order of their programs. Raise `StoreError` if it is no archive, and
        what `load` raises.
        """
        state, contents = unpack_state(load() if raw is None else raw)
        self._states.append((intent, state))
        self._holding.append((set(contents), load))

    def forget_variables(self) -> None:
        """Remove the Python variables of all states. Call it if a program has run since."""
        self._states = [
            (intent, msgspec.structs.replace(state, variables={}, imported={}))
            for intent, state in self._states
        ]

    @property
    def known(self) -> set[str]:
        """The digests of all contents in the archives."""
        return {sha256 for held, _ in self._holding for sha256 in held}

    def after(self, intent: int) -> FilesState:
        """Return the last state that was kept up to a program, that included.

        Return an empty state if there is none.
        """
        found = [state for each, state in self._states if each <= intent]
        return found[-1] if found else FilesState()

    def contents(self, state: FilesState) -> dict[str, bytes]:
        """Return the contents of a state's files, by digest. Raise `StoreError` if one is missing.

        Only archives that hold some of them are read. Raise what their `load` raises.
        """
        needed = state.contents
        found: dict[str, bytes] = {}
        for held, load in self._holding:
            if wanted := needed & held - found.keys():
                _, contents = unpack_state(load())
                found.update((sha256, contents[sha256]) for sha256 in wanted)
        for sha256 in needed - found.keys():
            raise StoreError(f"kept files: the content {sha256[:12]} is missing")
        return found


def write_files(state: FilesState, contents: Mapping[str, bytes], folder: Path) -> None:
    """Write the files of a state to a directory of ours, which is made here or is empty.

    Raise `StoreError` if a content is missing, a path is malformed, or the state has over 32 MiB or
    20,000 entries; then nothing is written. Raise `StoreError` for a link without a target, and
    `OSError`, `OverflowError` or `ValueError` if an entry cannot be made so. What was written until
    then stays. Directories stay open to their owner.
    """
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
    # Sorted by path, so each directory is made before those in it. Open to us until all is written.
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
                raise StoreError("kept files: a link without a target")
            os.symlink(each.target, place)
    # Last, and the innermost first: a new entry changes the time of its directory.
    for each in reversed(directories):
        place = os.path.join(root, each.path)
        os.chmod(place, (each.mode & _MODE) | 0o700)
        os.utime(place, ns=(each.mtime_ns, each.mtime_ns))


def _check_paths(entries: Sequence[KeptEntry]) -> None:
    """Raise `StoreError` unless each path occurs once, below the root, in a listed directory."""
    directories = {each.path for each in entries if each.kind == "directory"}
    seen: set[bytes] = set()
    for each in entries:
        parts = each.path.split(b"/")
        if b"\0" in each.path or not all(parts) or {b".", b".."} & set(parts):
            raise StoreError(f"kept files: {each.path[:80]!r} is no path")
        parent = b"/".join(parts[:-1])
        if each.path in seen or (parent and parent not in directories):
            raise StoreError(
                f"kept files: {each.path[:80]!r} occurs twice, or is in a directory that is missing"
            )
        seen.add(each.path)


# The files of a session as its box lists them.


# The directory in which programs and the shell start.
WORK = "/session/work"
# Shorter than a path may be (4,096 bytes), because the directory of the host comes before it.
_PATH_BYTES_MAX = 3_500
_NAMED_MAX = 20
_EXPORTED_BYTES_MAX = 64 << 10
_FIELDS = 8
_KINDS: dict[bytes, Literal["file", "directory", "link"]] = {
    b"f": "file",
    b"d": "directory",
    b"l": "link",
}


class ListedEntry(msgspec.Struct, frozen=True):
    """One entry of the working directory, as the box lists it."""

    path: bytes
    kind: Literal["file", "directory", "link"]
    mode: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    size: int
    target: bytes


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """The entries of a working directory. `other` are the paths of those that cannot be kept.

    `contents`, by path, are of the files whose content was wanted and could be read.
    """

    found: tuple[ListedEntry, ...]
    other: tuple[bytes, ...]
    contents: dict[bytes, bytes] = {}


def known_line(file: ListedEntry) -> bytes:
    """Return the line by which a box recognizes a file whose content it need not send.

    It has inode, times and size, and not the path, so a file in a renamed directory is recognized.
    """
    return b"%d %d %d %d\n" % (file.inode, file.ctime_ns, file.mtime_ns, file.size)


async def list_files(session: ProcessInterpreter, known: Iterable[ListedEntry] = ()) -> Listing:
    """List the working directory of a session, with the contents of all files but the `known`.

    Contents are sent from the smallest file on, until all files together exceed 32 MiB. Raise
    `SandboxError` if the box does not answer, sends too much, or sends no listing.
    """
    raw = await session.list_files(
        b"".join(map(known_line, known)), bytes_max=KEPT_BYTES_MAX, path_bytes_max=_PATH_BYTES_MAX
    )
    try:
        return _read_listing(raw)
    except ValueError:
        raise SandboxError("the list of its files cannot be read") from None


def _read_listing(raw: bytes) -> Listing:
    """Parse the listing that a box wrote. Raise `ValueError` if it is malformed.

    Entries after the first 20,000, with a path of over 3,500 bytes, or of other kinds go to
    `other`.
    """
    count, _, rest = raw.partition(b"\0")
    # At most as many entries as bytes, so that a forged count cannot cost more than what was sent.
    fields = rest.split(b"\0", min(int(count), len(rest)) * _FIELDS)
    rows = [fields[at : at + _FIELDS] for at in range(0, len(fields) - 1, _FIELDS)]
    if len(fields) != int(count) * _FIELDS + 1:
        raise ValueError
    found: list[ListedEntry] = []
    other: list[bytes] = []
    for path, kind, mode, mtime, ctime, inode, size, target in sorted(rows):
        entry = _KINDS.get(kind)
        # A program may have forged this: a size must not be negative, nor a path too long to make.
        unfit = int(size) < 0 or not 0 < len(path) <= _PATH_BYTES_MAX
        if entry is None or unfit or len(found) >= ENTRIES_MAX:
            other.append(path)
            continue
        found.append(
            ListedEntry(
                path, entry, int(mode, 8), int(mtime), int(ctime), int(inode), int(size), target
            )
        )
    contents = _read_contents([row[0] for row in rows], fields[-1])
    return Listing(found=tuple(found), other=tuple(other), contents=contents)


def _read_contents(paths: Sequence[bytes], raw: bytes) -> dict[bytes, bytes]:
    """Parse the contents after the entries: each has the number of its entry and its length.

    Raise `ValueError` if they are malformed.
    """
    contents: dict[bytes, bytes] = {}
    at = 0
    while at < len(raw):
        end = raw.index(b"\0", raw.index(b"\0", at) + 1)
        place, length = (int(each) for each in raw[at:end].split(b"\0"))
        at = end + 1 + length
        if not 0 <= place < len(paths) or length < 0 or at > len(raw):
            raise ValueError
        contents[paths[place]] = raw[end + 1 : at]
    return contents


def select_entries(listing: Listing) -> tuple[list[ListedEntry], list[bytes]]:
    """Return the entries to keep, and the paths of the others; both are sorted by path.

    Files are kept from the smallest on, up to 32 MiB in all. Directories and links are all kept.
    """
    out = list(listing.other)
    kept = [each for each in listing.found if each.kind != "file"]
    room = KEPT_BYTES_MAX
    files = [each for each in listing.found if each.kind == "file"]
    for each in sorted(files, key=lambda each: (each.size, each.path)):
        if each.size > room:
            out.append(each.path)
            continue
        room -= each.size
        kept.append(each)
    return sorted(kept, key=lambda each: each.path), sorted(out)


def state_of(
    kept: Sequence[ListedEntry],
    out: Sequence[bytes],
    digests: Mapping[bytes, tuple[str, int]],
    *,
    where: str,
    exported: Mapping[str, str],
) -> FilesState:
    """Return the state of these entries and of the shell.

    `digests` gives, by path, the digest and the length of a file. A file without one could not be
    read, and is left out. So are exported variables beyond 64 KiB.
    """
    unread = [each.path for each in kept if each.kind == "file" and each.path not in digests]
    entries = tuple(
        KeptEntry(
            path=each.path,
            kind=each.kind,
            mode=each.mode & 0o777,
            mtime_ns=each.mtime_ns,
            size=digests[each.path][1] if each.kind == "file" else 0,
            sha256=digests[each.path][0] if each.kind == "file" else "",
            target=each.target,
        )
        for each in kept
        if each.kind != "file" or each.path in digests
    )
    variables = sorted((os.fsencode(name), os.fsencode(value)) for name, value in exported.items())
    room = _EXPORTED_BYTES_MAX
    fits: list[tuple[bytes, bytes]] = []
    over: list[tuple[bytes, bytes]] = []
    for name, value in variables:
        room -= len(name) + len(value)
        (fits if room >= 0 else over).append((name, value))
    missing = [*sorted([*out, *unread]), *(b"$" + name for name, _ in over)]
    return FilesState(
        entries=entries,
        where=None if where == WORK else os.fsencode(where),
        exported=tuple(fits),
        left_out=tuple(each.decode("utf-8", "replace") for each in missing[:_NAMED_MAX]),
        left_out_of=len(missing),
    )
