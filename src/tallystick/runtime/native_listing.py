"""Asks a session which files it has and what is in them, by commands that run inside of it.

What comes back is the word of whatever runs there: it is read as such, within bounds, and becomes
files again only in a box.
"""

from __future__ import annotations

import base64
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from tallystick.core.errors import SandboxError
from tallystick.runtime.native_archive import ENTRIES_MAX, KEPT_BYTES_MAX, FilesState, KeptEntry
from tallystick.sandbox.host import HostTable
from tallystick.sandbox.port import ExecutionContext, Limits

if TYPE_CHECKING:
    from tallystick.sandbox.process.session import ProcessSession

__all__ = [
    "ENTRIES_MAX",
    "KEPT_BYTES_MAX",
    "WORK",
    "Found",
    "Listing",
    "contents_of",
    "fitting",
    "listed",
    "state_of",
]

# Where programs and the shell begin.
WORK = "/session/work"
# What is kept of a working directory at most.
# Room for the directories of the host that it is laid out in.
_PATH_BYTES_MAX = 3_500
_NAMED_MAX = 20
_EXPORTED_BYTES_MAX = 64 << 10
_BATCH_BYTES = 4 << 20
# What the names of one batch may take: they are arguments of a program.
_BATCH_NAME_BYTES = 256 << 10
_COMMAND_MS_MAX = 20_000
_OUTPUT_BYTES_MAX = 64 << 20
_SOURCE_BYTES_MAX = 8 << 20

# Everything but contents, by a program that starts in a moment: it is asked after every program.
_FIELDS = ("%P", "%y", "%m", "%T@", "%C@", "%i", "%s", "%l")
_PRINTED = "\\0".join([*_FIELDS, ""])
_LIST = f"/usr/bin/find {WORK} -mindepth 1 -printf '{_PRINTED}' 2>/dev/null | /usr/bin/base64 -w0"
_KINDS: dict[bytes, Literal["file", "directory", "link"]] = {
    b"f": "file",
    b"d": "directory",
    b"l": "link",
}
_READABLE = 0o500
_READ = """
import base64, os, sys
for name in sys.argv[1:]:
    path = os.path.join(b"/session/work", base64.b64decode(name))
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            print(base64.b64encode(file.read()).decode())
    except OSError:
        print("-")
"""


class Found(msgspec.Struct, frozen=True):
    """One entry as the box says it."""

    path: bytes
    kind: Literal["file", "directory", "link"]
    mode: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    size: int
    target: bytes


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """What a working directory holds, without contents. `other` can not be kept."""

    found: tuple[Found, ...]
    other: tuple[bytes, ...]


async def listed(session: ProcessSession) -> Listing:
    """What the working directory of a session holds now. Raises `SandboxError`."""
    said = await _said(session, _LIST)
    try:
        return _read_listing(base64.b64decode(said.strip(), validate=True))
    except ValueError:
        raise SandboxError("the list of its files cannot be read") from None


def _read_listing(raw: bytes) -> Listing:
    fields = raw.split(b"\0")
    if len(fields) % len(_FIELDS) != 1 or fields[-1]:
        raise ValueError
    found: list[Found] = []
    other: list[bytes] = []
    rows = [fields[at : at + len(_FIELDS)] for at in range(0, len(fields) - 1, len(_FIELDS))]
    for path, kind, mode, mtime, ctime, inode, size, target in sorted(rows):
        entry = _KINDS.get(kind)
        # What says so is a program's word: no size is less than nothing, no path too long to make.
        unfit = int(size) < 0 or not 0 < len(path) <= _PATH_BYTES_MAX
        if entry is None or unfit or len(found) >= ENTRIES_MAX:
            other.append(path)
            continue
        bits = int(mode, 8)
        found.append(
            Found(path, entry, bits, _ns(mtime), _ns(ctime), int(inode), int(size), target)
        )
        if entry == "directory" and bits & _READABLE != _READABLE:
            # Nobody can look into it, not even whoever made it.
            other.append(path + b"/*")
    return Listing(found=tuple(found), other=tuple(other))


def _ns(seconds: bytes) -> int:
    whole, _, part = seconds.partition(b".")
    return int(whole) * 1_000_000_000 + int(part[:9].ljust(9, b"0"))


async def contents_of(session: ProcessSession, paths: Sequence[Found]) -> dict[bytes, bytes]:
    """What is in these files; those that cannot be read are not there. Raises `SandboxError`."""
    read: dict[bytes, bytes] = {}
    total = 0
    for batch in _batches(paths):
        names = [base64.b64encode(each.path).decode() for each in batch]
        lines = (await _said(session, _ran(_READ, names))).splitlines()
        if len(lines) != len(batch):
            raise SandboxError("its files could not be read")
        for each, line in zip(batch, lines, strict=True):
            if line != "-":
                try:
                    read[each.path] = base64.b64decode(line, validate=True)
                except ValueError:
                    raise SandboxError("its files could not be read") from None
                total += len(read[each.path])
                if total > KEPT_BYTES_MAX:
                    raise SandboxError("its files hold more than they were listed with")
    return read


def _batches(paths: Sequence[Found]) -> Iterator[list[Found]]:
    batch: list[Found] = []
    size = names = 0
    for each in paths:
        size, names = size + each.size, names + len(each.path)
        if batch and (size > _BATCH_BYTES or names > _BATCH_NAME_BYTES):
            yield batch
            batch, size, names = [], each.size, len(each.path)
        batch.append(each)
    if batch:
        yield batch


def _ran(program: str, arguments: Sequence[str]) -> str:
    """The command that runs a program of ours, in an interpreter that knows nothing of theirs."""
    python = f"{sys.base_prefix}/bin/python3"
    return shlex.join(["exec", "/usr/bin/env", "-i", python, "-I", "-S", "-c", program, *arguments])


async def _said(session: ProcessSession, command: str) -> str:
    """What a command of ours prints inside."""
    result = await session.command(
        command,
        context=ExecutionContext(
            session_id=session.session_id,
            timeout_ms=_COMMAND_MS_MAX,
            deadline_ms=_COMMAND_MS_MAX,
            max_output_bytes=_OUTPUT_BYTES_MAX,
            # Whatever the shell was told to begin with, this does without.
            env_vars={"BASH_ENV": ""},
            limits=Limits(
                host_calls=0, output_bytes=_OUTPUT_BYTES_MAX, source_bytes=_SOURCE_BYTES_MAX
            ),
        ),
        host=HostTable(),
    )
    if result.stop != "finished" or result.exit_code:
        why = result.error.message if result.error is not None else result.stderr.strip()
        raise SandboxError(f"its files could not be listed: {why[-200:]}")
    return result.stdout


def fitting(listing: Listing) -> tuple[list[Found], list[bytes]]:
    """Which entries are kept, and the paths of those that do not fit. Small files come first."""
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
    kept: Sequence[Found],
    out: Sequence[bytes],
    digests: Mapping[bytes, tuple[str, int]],
    *,
    where: str,
    exported: Mapping[str, str],
) -> FilesState:
    """A state of these entries. A file without a digest could not be read, and is left out."""
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
