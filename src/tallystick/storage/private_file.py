"""Make files and directories that only their user can read, and write files whole or not at all.

A file is written under another name, forced to the disk, and then renamed. A crash at any moment
leaves the earlier file, or the new one, and never a part of one. The file that a crash may leave
beside it is called `.tally-….partial`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tallystick.storage import system


def make_private(directory: Path, *, forced: bool = False) -> None:
    """Make a directory and what is missing above it, each with the mode 0700.

    One that is there keeps its mode. With `forced`, the name of each new one is on the disk when
    this returns. Raise `OSError` if it cannot be made, or another kind of file has its name.
    """
    # `Path.mkdir(parents=True, mode=0o700)` gives the mode to the last one only: the first command
    # would leave the data directory itself open to others.
    if directory.is_dir():
        return
    make_private(directory.parent, forced=forced)
    # Another process may just have made it. If another kind of file is there, this raises.
    directory.mkdir(mode=0o700, exist_ok=True)
    if forced:
        force_directory(directory.parent)


def force_directory(directory: Path) -> None:
    """Wait until the names in a directory are on the disk. Do nothing where there is no POSIX.

    Raise `OSError` if the system fails.
    """
    if not system.is_posix():
        return
    descriptor = os.open(directory, os.O_RDONLY | system.DIRECTORY | system.CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_new(path: Path, *, mode: int = 0o600) -> int:
    """Make a file, and return its descriptor for reading and writing.

    Raise `FileExistsError` if the name is taken.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | system.CLOEXEC | system.BINARY
    return os.open(path, flags, mode)


@contextlib.contextmanager
def whole_file(
    path: Path, *, replace: bool = True, forced: bool = True, mode: int = 0o600
) -> Iterator[BinaryIO]:
    """Write a file that gets its name at the end, and only if the block did not raise.

    Raise `OSError` if it cannot be written. With `replace=False`, a name that is taken by then
    raises `FileExistsError`: of two processes that make a file, one does. Without `forced`, the
    file may be lost or empty after a power cut. If forcing the directory fails, this raises
    `OSError` although the file has its name.
    """
    partial = path.with_name(f".tally-{os.urandom(8).hex()}.partial")
    descriptor = open_new(partial, mode=mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            if forced:
                os.fsync(descriptor)
        if replace:
            os.replace(partial, path)
        else:
            os.link(partial, path)
        if forced:
            force_directory(path.parent)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes, *, replace: bool = True, forced: bool = True) -> None:
    """Write bytes to a file of mode 0600, all of them or none. Raise as `whole_file` does."""
    with whole_file(path, replace=replace, forced=forced) as file:
        file.write(data)
