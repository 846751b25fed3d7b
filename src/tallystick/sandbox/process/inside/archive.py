"""Convert a session's files and variables to bytes and back, in the box, with a program's rights.

Such bytes were made by a program, so they are unpacked only inside a box.
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
    """Write the working directory as a tar to the first descriptor of the next message.

    Then send the number of entries that were left out: those of other kinds, and unreadable ones.
    What is in a directory that cannot be listed is left out too, and not counted.
    """
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
                    # Closed to this user, removed meanwhile, or its path is too long.
                    left_out += 1
    messages.send(control, {"packed": True, "left_out": left_out})


# A file is recognized by inode, change time, modification time and size, and not by its path: the
# directories above it may have been renamed.
_KNOWN = b"%d %d %d %d"


def list_files(control: socket.socket) -> None:
    """Write a list of the working directory, and the contents that the host does not have.

    The next message is the order, with two descriptors. The listing goes to the first. The second
    is a file with a line for each file whose content the host has. Files are taken from the
    smallest on, up to `bytes_max` of the order, those that the host has included. Others are not
    read, nor those with a path of over `path_bytes_max`.

    The listing has the number of entries, then eight fields of each entry, ended by NUL. Then, for
    each file whose content is new, come the number of its entry, its length, and its bytes.
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
    """Yield the path, a letter for the kind, the status and the link target of each entry.

    A directory that cannot be listed gets one more entry, `PATH/*`, with the kind "?". So does any
    entry that is no file, directory or link, at its own path. One that is removed meanwhile, or
    whose path is too long, is left out.
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
                continue  # The entry was removed meanwhile, or its path is too long.
            if stat.S_ISDIR(found.st_mode):
                waiting.append(path)
            yield path, _LETTERS.get(stat.S_IFMT(found.st_mode), b"?"), found, target


def _write_content(out: BinaryIO, place: int, path: bytes, size: int) -> None:
    """Write the number of an entry, then up to `size` bytes of its file, after their length.

    Write nothing if the file cannot be read.
    """
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        with open(os.open(os.path.join(os.fsencode(WORK), path), flags), "rb") as file:
            # Not to its end: a file that grows while it is read would exceed what was counted.
            content = file.read(size)
    except OSError:
        return
    out.write(b"%d\0%d\0" % (place, len(content)))
    out.write(content)


def unpack_files(control: socket.socket) -> None:
    """Fill the working directory from the tar in the first descriptor of the next message.

    Then send whether that worked, and if not, why, in at most 200 characters. What was written
    before an error stays.
    """
    _, descriptors = messages.receive(control)
    try:
        with (
            open(descriptors[0], "rb") as given,
            tarfile.open(fileobj=given, mode="r|") as tar,
        ):
            # Members need no check: whatever their names lead to, it is inside the box.
            tar.extraction_filter = lambda member, path: member
            tar.extractall(WORK)
    except (tarfile.TarError, OSError, ValueError, EOFError) as error:
        messages.send(control, {"unpacked": False, "why": str(error)[:200]})
        return
    messages.send(control, {"unpacked": True})


def pack_variables(names: Mapping[str, Any], injected: Mapping[str, Any]) -> bytes:
    """Encode the variables of a namespace as JSON: pickled, imported modules, or why refused.

    Names in `injected`, and those that begin with an underscore, are left out.
    """
    kept, imported, refused = {}, {}, {}
    for name, value in names.items():
        if name.startswith("_") or name in injected:
            continue
        if isinstance(value, types.ModuleType):
            imported[name] = value.__name__
            continue
        try:
            kept[name] = base64.b64encode(_pickle(value)).decode()
        except BaseException as error:
            refused[name] = f"{type(error).__name__}: {error}"[:200]
    return json.dumps({"kept": kept, "imported": imported, "refused": refused}).encode()


class _Pickler(pickle.Pickler):
    """A pickler that refuses functions and classes which a program defined.

    They would be pickled by name, and then looked up in a namespace that no longer exists.
    """

    def reducer_override(self, value: object) -> Any:  # noqa: ANN401 - as its base says
        of_program = getattr(value, "__module__", None) == "__main__"
        if of_program and isinstance(value, (type, types.FunctionType)):
            raise pickle.PicklingError("what a program defined is not kept")
        return NotImplemented


def _pickle(value: object) -> bytes:
    out = io.BytesIO()
    _Pickler(out, protocol=5).dump(value)
    return out.getvalue()


def unpack_variables(data: bytes, names: dict[str, Any]) -> None:
    """Put kept variables into a namespace; leave out what cannot be unpickled or imported.

    A module counts as such only for an `ImportError`; another error of its import is raised.
    """
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
