"""A session's files and variables as bytes, and back: done in the box, in the rights of a program.

Whoever made such bytes was a program; so they are taken apart nowhere but in a box.
"""

from __future__ import annotations

import base64
import io
import json
import os
import pickle
import socket
import stat
import sys
import tarfile
import types
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from tallystick.sandbox.process.inside import messages
from tallystick.sandbox.process.inside.layers import WORK

_KINDS = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK)
_LETTERS = {stat.S_IFREG: b"f", stat.S_IFDIR: b"d", stat.S_IFLNK: b"l"}
_NAMES_MAX = 10_000


def pack_files(control: socket.socket) -> None:
    """Write the working directory to the descriptor that comes, as a tar."""
    _, descriptors = messages.receive(control)
    left_out = 0
    with (
        open(descriptors[0], "wb") as out,
        tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        for where, directories, names in os.walk(WORK):
            for name in sorted(directories + names):
                path = os.path.join(where, name)
                try:
                    if any(is_kind(os.lstat(path).st_mode) for is_kind in _KINDS):
                        tar.add(path, os.path.relpath(path, WORK), recursive=False)
                    else:
                        left_out += 1
                except OSError:
                    # Closed, gone by now, or too deep to be named.
                    left_out += 1
    messages.send(control, {"packed": True, "left_out": left_out})


# A file is known by these, wherever its path has moved to.
_KNOWN = b"%d %d %d %d"


def list_files(control: socket.socket) -> None:
    """Write what the working directory holds, and the contents that the host does not have.

    Of the two descriptors that come, the first is written to. The other is a file with a line for
    each file whose content the host has. The order says how much is kept: files are taken from the
    smallest on until `bytes_max`, and what is not kept is not read.

    Written are the number of entries; eight fields of each, ended by NUL; and for each file whose
    content is new, its place among the entries, its length, and its bytes.
    """
    order, descriptors = messages.receive(control)
    with open(descriptors[1], "rb") as known, open(descriptors[0], "wb") as out:
        known.seek(0)
        there = set(known.read().splitlines())
        entries = sorted(_entries(), key=lambda each: each[0])
        out.write(b"%d\0" % len(entries))
        for path, kind, found, target in entries:
            numbers = b"%o\0%d\0%d\0%d\0%d" % (
                stat.S_IMODE(found.st_mode),
                found.st_mtime_ns,
                found.st_ctime_ns,
                found.st_ino,
                found.st_size,
            )
            out.write(b"\0".join((path, kind, numbers, target, b"")))
        files = [each for each in enumerate(entries) if each[1][1] == b"f"]
        files = [each for each in files if len(each[1][0]) <= order["path_bytes_max"]]
        room = order["bytes_max"]
        for place, (path, _, found, _) in sorted(files, key=lambda each: _size(each[1])):
            if found.st_size > room:
                break
            room -= found.st_size
            line = _KNOWN % (found.st_ino, found.st_ctime_ns, found.st_mtime_ns, found.st_size)
            if line not in there:
                _write_content(out, place, path, found.st_size)
    messages.send(control, {"packed": True})


_Entry = tuple[bytes, bytes, os.stat_result, bytes]


def _size(entry: _Entry) -> tuple[int, bytes]:
    return entry[2].st_size, entry[0]


def _entries() -> Iterator[_Entry]:
    """Give the path, a letter for the kind, the state and the target of each entry.

    A directory that cannot be looked into has an entry of its own, which is no file: `PATH/*`.
    """
    work = os.fsencode(WORK)
    waiting = [b""]
    while waiting:
        inside = waiting.pop()
        try:
            names = os.listdir(os.path.join(work, inside))
        except OSError:
            yield os.path.join(inside, b"*"), b"?", os.lstat(work), b""
            continue
        for name in names:
            path = os.path.join(inside, name)
            try:
                found = os.lstat(os.path.join(work, path))
                is_link = stat.S_ISLNK(found.st_mode)
                target = os.readlink(os.path.join(work, path)) if is_link else b""
            except OSError:
                continue  # It is gone by now, or too deep to be named.
            if stat.S_ISDIR(found.st_mode):
                waiting.append(path)
            yield path, _LETTERS.get(stat.S_IFMT(found.st_mode), b"?"), found, target


def _write_content(out: BinaryIO, place: int, path: bytes, size: int) -> None:
    """Write a file's first `size` bytes, after its place; nothing for one that cannot be read."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        with open(os.open(os.path.join(os.fsencode(WORK), path), flags), "rb") as file:
            # It may be growing while this reads.
            content = file.read(size)
    except OSError:
        return
    out.write(b"%d\0%d\0" % (place, len(content)))
    out.write(content)


def unpack_files(control: socket.socket) -> None:
    """Fill the working directory from a tar."""
    _, descriptors = messages.receive(control)
    try:
        with (
            open(descriptors[0], "rb") as given,
            tarfile.open(fileobj=given, mode="r|") as tar,
        ):
            # Nothing is outside that a name could lead to.
            tar.extraction_filter = lambda member, path: member
            tar.extractall(WORK)
    except (tarfile.TarError, OSError, ValueError, EOFError) as error:
        messages.send(control, {"unpacked": False, "why": str(error)[:200]})
        return
    messages.send(control, {"unpacked": True})


def packed_variables(names: Mapping[str, Any], injected: Mapping[str, Any]) -> bytes:
    """The variables of a namespace that can be kept, and the names of those that cannot."""
    kept, imported, refused = {}, {}, {}
    for name, value in names.items():
        if name.startswith("_") or name in injected:
            continue
        if isinstance(value, types.ModuleType):
            imported[name] = value.__name__
            continue
        try:
            kept[name] = base64.b64encode(_pickled(value)).decode()
        except BaseException as error:
            refused[name] = f"{type(error).__name__}: {error}"[:200]
    return json.dumps({"kept": kept, "imported": imported, "refused": refused}).encode()


class _Pickler(pickle.Pickler):
    """Refuses what would be found by its name in a namespace that is no more."""

    def reducer_override(self, value: object) -> Any:  # noqa: ANN401 - as its base says
        of_program = getattr(value, "__module__", None) == "__main__"
        if of_program and isinstance(value, (type, types.FunctionType)):
            raise pickle.PicklingError("what a program defined is not kept")
        return NotImplemented


def _pickled(value: object) -> bytes:
    out = io.BytesIO()
    _Pickler(out, protocol=5).dump(value)
    return out.getvalue()


def unpacked_variables(data: bytes, names: dict[str, Any]) -> None:
    """Put kept variables into a namespace. What cannot be made again is left out."""
    found = json.loads(data)
    for name, module in found["imported"].items():
        try:
            __import__(module)
            names[name] = sys.modules[module]
        except ImportError:
            continue
    for name, value in found["kept"].items():
        try:
            names[name] = pickle.loads(base64.b64decode(value))
        except Exception:
            continue
