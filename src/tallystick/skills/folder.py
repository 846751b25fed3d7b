"""Folders of skills: the one way to their files, which leads nowhere else.

Rule 1: every file is opened from the folder's own descriptor, a component at a time, and no
component is followed if it is a link. So a path is refused by what is opened, not by how it looks,
and a folder that is changed while it is read gives nothing of what is outside.
Rule 2: what can be read is what is listed. Links, devices, pipes, version control, compiled Python
and names that hide characters are neither; so a digest over the listing is one over everything.
Rule 3: a listing is whole or refused, never cut.

A hard link cannot be told from a file, and a mount not from a folder. Who can make either could
have copied the file.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from tallystick.skills.errors import SkillNotFound, SkillPathRefused, SkillUnreadable
from tallystick.skills.line import hidden, quoted

__all__ = [
    "FILES_MAX",
    "READ_BYTES_MAX",
    "FileEntry",
    "Folder",
    "Listing",
    "NotInside",
    "open_inside",
    "read_inside",
]

READ_BYTES_MAX = 4_000_000
FILES_MAX = 5_000
_DEPTH_MAX = 16
_PATH_BYTES_MAX = 1_024
_NAME_BYTES_MAX = 255
_PIECE_BYTES = 1 << 20

# Compared without case, as some file systems do.
_LEFT_OUT = frozenset({".git", ".hg", ".svn", ".bzr", ".jj", "cvs", "__pycache__"})
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Nonblocking: a pipe that took the place of a file would wait for its writer for ever.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


_LINK_ERRORS = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EMLINK})


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """An ordinary file: its path from the folder, with slashes, and its size."""

    path: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What is in a folder. `left_out` are paths that cannot be read: links, pipes and the like."""

    files: tuple[FileEntry, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Folder:
    """A skill's folder.

    `path` is trusted as it is given, links and all, unless there is a `root`: then `path` lies
    below it, and every step from the root on is taken without following links.
    """

    path: Path
    root: Path | None = None
    id: str = ""

    def read(self, relative: str, *, bytes_max: int = READ_BYTES_MAX) -> bytes:
        """A file's bytes. Raises `SkillPathRefused`, `SkillNotFound` or `SkillUnreadable`."""
        parts = self._parts(relative)
        with self._translated(relative), self._opened(parts[:-1]) as directory:
            return read_inside(directory, parts[-1], bytes_max=bytes_max)

    def exists(self, relative: str) -> bool:
        """Whether there is an ordinary file or folder of that path, which is not refused."""
        try:
            parts = self._parts(relative.rstrip("/"))
            with self._translated(relative), self._opened(parts[:-1]) as directory:
                mode = os.stat(parts[-1], dir_fd=directory, follow_symlinks=False).st_mode
        except (SkillPathRefused, SkillNotFound, SkillUnreadable):
            return False
        return stat.S_ISREG(mode) or stat.S_ISDIR(mode)

    def files(self) -> tuple[FileEntry, ...]:
        """Every file that can be read, in order of their paths.

        Raises `SkillUnreadable` for a folder with too many, or with one that cannot be listed.
        """
        return self.listing().files

    def listing(self) -> Listing:
        """The files, and what is in the folder besides. Raises as `files` does."""
        found: list[FileEntry] = []
        left_out: list[str] = []
        with self._translated("."), self._opened(()) as directory:
            self._list(directory, "", found, left_out)
        return Listing(
            files=tuple(sorted(found, key=lambda entry: entry.path)), left_out=tuple(left_out)
        )

    def _list(
        self, directory: int, prefix: str, found: list[FileEntry], left_out: list[str]
    ) -> None:
        if prefix.count("/") > _DEPTH_MAX:
            raise SkillUnreadable(id=self._id, why=f"its folders are deeper than {_DEPTH_MAX}")
        for name in self._names(directory):
            status = _status(name, directory) if _refusal(name) is None else None
            if status is not None and stat.S_ISREG(status.st_mode):
                found.append(FileEntry(path=prefix + name, bytes=status.st_size))
            elif status is not None and stat.S_ISDIR(status.st_mode):
                with open_inside(directory, (name,)) as inner:
                    self._list(inner, f"{prefix}{name}/", found, left_out)
            else:
                left_out.append(prefix + name)
            if len(found) + len(left_out) > FILES_MAX:
                raise SkillUnreadable(id=self._id, why=f"it has more than {FILES_MAX:,} files")

    def _names(self, directory: int) -> list[str]:
        with os.scandir(directory) as entries:
            names = [each.name for _, each in zip(range(FILES_MAX + 1), entries, strict=False)]
        if len(names) > FILES_MAX:
            raise SkillUnreadable(id=self._id, why=f"it has more than {FILES_MAX:,} files")
        return sorted(names)

    def _parts(self, relative: str) -> tuple[str, ...]:
        """The components of a path, or a refusal; no file is looked at."""
        if "\0" in relative:
            self._refuse(relative, "has a NUL character")
        if relative.startswith("/"):
            self._refuse(relative, "is absolute; name a file from the skill's folder")
        try:
            size = len(relative.encode("utf-8"))
        except UnicodeEncodeError:
            self._refuse(relative, "is not text")
        parts = tuple(each for each in relative.split("/") if each not in {"", "."})
        if not parts or relative.endswith(("/", "/.")):
            self._refuse(relative, "is not a file")
        if size > _PATH_BYTES_MAX or len(parts) > _DEPTH_MAX + 1:
            self._refuse(relative[:80], "is too long")
        for each in parts:
            why = _refusal(each)
            if why is not None:
                self._refuse(relative, why)
        return parts

    @contextmanager
    def _opened(self, parts: tuple[str, ...]) -> Iterator[int]:
        """A directory below this folder, opened step by step."""
        start = self.path if self.root is None else self.root
        steps = () if self.root is None else self.path.relative_to(self.root).parts
        try:
            top = os.open(start, _DIRECTORY)
        except OSError as error:
            raise SkillUnreadable(id=self._id, why=f"its folder: {_said(error)}") from error
        try:
            with open_inside(top, (*steps, *parts)) as directory:
                yield directory
        finally:
            os.close(top)

    @contextmanager
    def _translated(self, relative: str) -> Iterator[None]:
        try:
            yield
        except NotInside as error:
            self._refuse(relative, error.why)
        except OSError as error:
            if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG}:
                raise SkillNotFound(
                    name=relative, what=f"file in skill {quoted(self._id)}:"
                ) from error
            if error.errno in {errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.ENODEV}:
                self._refuse(relative, "is not an ordinary file")
            raise SkillUnreadable(id=self._id, why=f"{relative!r}: {_said(error)}") from error

    def _refuse(self, relative: str, why: str) -> NoReturn:
        raise SkillPathRefused(id=self._id, path=relative, why=why)

    @property
    def _id(self) -> str:
        return self.id or self.path.name


class NotInside(Exception):
    """A link, a device, or whatever else is not an ordinary part of a folder, and what it is."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@contextmanager
def open_inside(directory: int, parts: tuple[str, ...]) -> Iterator[int]:
    """Open a directory below another, a component at a time, following no link.

    Raises `NotInside` and `OSError`, as `read_inside` does.
    """
    held = os.dup(directory)
    try:
        for part in parts:
            if part in {"..", ""} or "/" in part:
                raise NotInside("leads out of the skill's folder")
            try:
                inner = os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=held)
            except OSError as error:
                if error.errno in _LINK_ERRORS and _is_link(part, held):
                    raise NotInside("leads through a link; links are not followed") from error
                raise
            os.close(held)
            held = inner
        yield held
    finally:
        os.close(held)


def read_inside(directory: int, name: str, *, bytes_max: int) -> bytes:
    """The bytes of an ordinary file in a directory that is open."""
    # Look before opening: to open a device is already to do something with it.
    _check_ordinary(os.stat(name, dir_fd=directory, follow_symlinks=False), bytes_max)
    descriptor = os.open(name, _FILE, dir_fd=directory)
    try:
        _check_ordinary(os.fstat(descriptor), bytes_max)
        data = _all_of(descriptor, bytes_max + 1)
    finally:
        os.close(descriptor)
    if len(data) > bytes_max:
        raise NotInside(f"has more than {bytes_max:,} bytes")
    return data


def _check_ordinary(status: os.stat_result, bytes_max: int) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise NotInside("is a link; links are not followed")
    if not stat.S_ISREG(status.st_mode):
        raise NotInside("is not an ordinary file")
    if status.st_size > bytes_max:
        raise NotInside(f"has {status.st_size:,} bytes; {bytes_max:,} may")


def _is_link(name: str, directory: int) -> bool:
    status = _status(name, directory)
    return status is not None and stat.S_ISLNK(status.st_mode)


def _status(name: str, directory: int) -> os.stat_result | None:
    """What is there, without following it; None if it has gone."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _refusal(name: str) -> str | None:
    """Why a name is neither listed nor opened, if so."""
    if name == "..":
        return "leads out of the skill's folder"
    if name.casefold() in _LEFT_OUT:
        return "is in a folder that is no part of the skill"
    if hidden(name):
        return "has a name with hidden characters"
    if len(name.encode("utf-8", "replace")) > _NAME_BYTES_MAX:
        return "has a name that is too long"
    return None


def _all_of(descriptor: int, bytes_max: int) -> bytes:
    pieces = []
    left = bytes_max
    while left > 0 and (piece := os.read(descriptor, min(left, _PIECE_BYTES))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _said(error: OSError) -> str:
    return error.strerror or str(error)
