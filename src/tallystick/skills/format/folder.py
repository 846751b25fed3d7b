"""Read the files of a skill's folder, and find the directories with a SKILL.md below a layer.

Rule 1: every file is opened from the folder's own descriptor, a component at a time, and no
component is followed if it is a link. So a path is refused by what is opened, not by how it looks.
A folder that is changed while it is read gives nothing of what is outside.
Rule 2: what can be read is what is listed. Links, devices, pipes, version control, compiled Python
and names that hide characters are neither, so a digest over the listing covers everything.
Rule 3: a listing is whole or refused, never cut.

A hard link cannot be distinguished from a file, and a mount not from a folder. Somebody who can
make either could have copied the file.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from tallystick.skills.errors import SkillNotFound, SkillPathRefused, SkillUnreadable
from tallystick.skills.format.frontmatter import FILE_BYTES_MAX, has_hidden, one_line_text, quote
from tallystick.skills.format.manifest import folder_name
from tallystick.storage import system

READ_BYTES_MAX = 4_000_000
FILES_MAX = 5_000
_SKILL_DEPTH_MAX = 16
_PATH_BYTES_MAX = 1_024
_NAME_BYTES_MAX = 255
_PIECE_BYTES = 1 << 20

# Compared without case, as some file systems do.
_NOT_BUNDLED = frozenset({".git", ".hg", ".svn", ".bzr", ".jj", "cvs", "__pycache__"})
_DIRECTORY = os.O_RDONLY | system.DIRECTORY | system.CLOEXEC
# Nonblocking: to open a pipe that took the place of a file would wait for its writer for ever.
_FILE = os.O_RDONLY | system.NOFOLLOW | system.NONBLOCK | system.NOCTTY | system.CLOEXEC


# Systems differ in the error that they give for a link which must not be followed.
_LINK_ERRORS = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EMLINK})


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """An ordinary file: its path from the folder, with slashes, and its size."""

    path: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The entries of a folder. `left_out` are paths that cannot be read: links, pipes and such."""

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
        """Return a file's bytes.

        Raise `SkillPathRefused` if the path leaves the folder, leads through a link, or is no
        ordinary file of at most `bytes_max` bytes; `SkillNotFound` if there is none;
        `SkillUnreadable` if it cannot be read.
        """
        parts = self._parts(relative)
        with self._skill_errors(relative), self._open(parts[:-1]) as directory:
            return read_inside(directory, parts[-1], bytes_max=bytes_max)

    def exists(self, relative: str) -> bool:
        """Return True if the path is an ordinary file or directory that is not refused.

        Return False as well if it cannot be looked at.
        """
        try:
            parts = self._parts(relative.rstrip("/"))
            with self._skill_errors(relative), self._open(parts[:-1]) as directory:
                mode = os.stat(parts[-1], dir_fd=directory, follow_symlinks=False).st_mode
        except (SkillPathRefused, SkillNotFound, SkillUnreadable):
            return False
        return stat.S_ISREG(mode) or stat.S_ISDIR(mode)

    def files(self) -> tuple[FileEntry, ...]:
        """Return every file that can be read, in order of their paths.

        Raise `SkillUnreadable` if there are more than 5,000 entries, if folders are too deep, or if
        one cannot be listed. Raise `SkillNotFound` or `SkillPathRefused` if a folder is gone, or is
        a link, when it is opened.
        """
        return self.listing().files

    def listing(self) -> Listing:
        """Return the files, and the paths that cannot be read. Raise the errors of `files`."""
        found: list[FileEntry] = []
        left_out: list[str] = []
        with self._skill_errors("."), self._open(()) as directory:
            self._list(directory, "", found, left_out)
        return Listing(
            files=tuple(sorted(found, key=lambda entry: entry.path)), left_out=tuple(left_out)
        )

    def _list(
        self, directory: int, prefix: str, found: list[FileEntry], left_out: list[str]
    ) -> None:
        """Add the files of an open directory, and of those below it, to `found`, under `prefix`.

        What is no file or directory, or has a name that is refused, is added to `left_out`. Raise
        `SkillUnreadable` if they are too many or too deep, `NotInside` or `OSError` if one cannot
        be opened.
        """
        if prefix.count("/") > _SKILL_DEPTH_MAX:
            raise SkillUnreadable(
                id=self._id, why=f"its folders are deeper than {_SKILL_DEPTH_MAX}"
            )
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
        # One entry more than allowed is enough to know that there are too many.
        with os.scandir(directory) as entries:
            names = [each.name for _, each in zip(range(FILES_MAX + 1), entries, strict=False)]
        if len(names) > FILES_MAX:
            raise SkillUnreadable(id=self._id, why=f"it has more than {FILES_MAX:,} files")
        return sorted(names)

    def _parts(self, relative: str) -> tuple[str, ...]:
        """Return the components of a path; raise `SkillPathRefused` if it cannot be one.

        No file is opened.
        """
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
        # One part more than there may be folders: the file itself.
        if size > _PATH_BYTES_MAX or len(parts) > _SKILL_DEPTH_MAX + 1:
            self._refuse(relative[:80], "is too long")
        for each in parts:
            why = _refusal(each)
            if why is not None:
                self._refuse(relative, why)
        return parts

    @contextmanager
    def _open(self, parts: tuple[str, ...]) -> Iterator[int]:
        """Open a directory below this folder, a component at a time; yield its descriptor.

        Raise `SkillUnreadable` if the top cannot be opened, `NotInside` or `OSError` below it.
        """
        start = self.path if self.root is None else self.root
        steps = () if self.root is None else self.path.relative_to(self.root).parts
        try:
            top = os.open(start, _DIRECTORY)
        except OSError as error:
            raise SkillUnreadable(id=self._id, why=f"its folder: {_reason(error)}") from error
        try:
            with open_inside(top, (*steps, *parts)) as directory:
                yield directory
        finally:
            os.close(top)

    @contextmanager
    def _skill_errors(self, relative: str) -> Iterator[None]:
        """Raise errors of the system, and `NotInside`, as errors of this skill.

        They are `SkillPathRefused`, `SkillNotFound` or `SkillUnreadable`.
        """
        try:
            yield
        except NotInside as error:
            self._refuse(relative, error.why)
        except OSError as error:
            if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG}:
                raise SkillNotFound(
                    name=relative, what=f"file in skill {quote(self._id)}:"
                ) from error
            if error.errno in {errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.ENODEV}:
                self._refuse(relative, "is not an ordinary file")
            raise SkillUnreadable(id=self._id, why=f"{relative!r}: {_reason(error)}") from error

    def _refuse(self, relative: str, why: str) -> NoReturn:
        raise SkillPathRefused(id=self._id, path=relative, why=why)

    @property
    def _id(self) -> str:
        return self.id or self.path.name


class NotInside(Exception):
    """A link, a device, or another entry that is no ordinary part of a folder. `why` names it."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@contextmanager
def open_inside(directory: int, parts: tuple[str, ...]) -> Iterator[int]:
    """Open a directory below another, a component at a time; yield its descriptor.

    No link is followed. Raise `NotInside` for a link and for a component that leads out, `OSError`
    if the system fails.
    """
    # A copy: each step closes the descriptor of the one before, and the caller keeps its own.
    held = os.dup(directory)
    try:
        for part in parts:
            if part in {"..", ""} or "/" in part:
                raise NotInside("leads out of the skill's folder")
            try:
                inner = os.open(part, _DIRECTORY | system.NOFOLLOW, dir_fd=held)
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
    """Return the bytes of an ordinary file in a directory that is open.

    Raise `NotInside` if it is a link, a device or the like, or longer than `bytes_max`; `OSError`
    if the system fails.
    """
    # Look before opening: to open a device is already to do something with it.
    _check_ordinary(os.stat(name, dir_fd=directory, follow_symlinks=False), bytes_max)
    descriptor = os.open(name, _FILE, dir_fd=directory)
    try:
        # Look again: another file may have taken the name between the two calls.
        _check_ordinary(os.fstat(descriptor), bytes_max)
        data = _read_at_most(descriptor, bytes_max + 1)
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
        raise NotInside(f"has {status.st_size:,} bytes; at most {bytes_max:,} are read")


def _is_link(name: str, directory: int) -> bool:
    status = _status(name, directory)
    return status is not None and stat.S_ISLNK(status.st_mode)


def _status(name: str, directory: int) -> os.stat_result | None:
    """Return the status of an entry, without following a link; None if it has gone."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _refusal(name: str) -> str | None:
    """Return why a name is neither listed nor opened; None if it may be."""
    if name == "..":
        return "leads out of the skill's folder"
    if name.casefold() in _NOT_BUNDLED:
        return "is in a folder that is no part of the skill"
    if has_hidden(name):
        return "has a name with hidden characters"
    if len(name.encode("utf-8", "replace")) > _NAME_BYTES_MAX:
        return "has a name that is too long"
    return None


def _read_at_most(descriptor: int, bytes_max: int) -> bytes:
    pieces = []
    left = bytes_max
    while left > 0 and (piece := os.read(descriptor, min(left, _PIECE_BYTES))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


# Walks: find the directories with a SKILL.md below a layer's directory.
#
# Rule 1: every directory is opened from the one above it and no link is followed, so nothing
# outside is read and there are no loops.
# Rule 2: a folder with a SKILL.md belongs to that skill, and is not searched for others; but the
# directory at the top is, so that a stray file there does not hide everything.
# Rule 3: links, and files such as `Skill.md`, that the user may have meant as skills are reported.


_WALK_DEPTH_MAX = 6
_DIRECTORIES_MAX = 2_000
_ENTRIES_MAX = 5_000
_FAILED_MAX = 1_000
_FILES = ("SKILL.md", "skill.md")
_NOT_WALKED = frozenset({
    ".git", ".hg", ".svn", ".bzr", ".jj", "cvs", "__pycache__", "node_modules", ".venv", ".tox",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillFile:
    """A SKILL.md that was found.

    `namespace` is made of the directories between the root and its folder; `file` is its name as
    written, `raw` its bytes.
    """

    path: Path
    namespace: str
    file: str
    raw: bytes


@dataclass(slots=True, kw_only=True)
class Walk:
    """The result of searching one directory. `root` is its real path."""

    root: Path
    found: list[SkillFile] = field(default_factory=list)
    failed: list[tuple[Path, str]] = field(default_factory=list)
    truncated: list[str] = field(default_factory=list)
    directories: int = 0


@dataclass(frozen=True, slots=True)
class _WalkedDirectory:
    """A directory on the way: its components from the root, and the namespace of a skill in it.

    The namespace is None below a directory whose name cannot be in an id.
    """

    parts: tuple[str, ...] = ()
    namespace: str | None = ""

    def below(self) -> str | None:
        """Return the namespace of skills in the directories of this one.

        It is None if no id can begin with it.
        """
        if not self.parts or self.namespace is None:
            return self.namespace
        name = folder_name(self.parts[-1])
        return None if name is None else f"{self.namespace}/{name}".lstrip("/")


def search_directory(
    path: Path, *, within: Path | None, seen: set[tuple[int, int]], missed: bool
) -> Walk:
    """Search a directory for skills, breadth first and in order of names.

    `seen` are device and inode of directories that were searched before: one that is among them is
    not searched again, and this one is added. If `missed` is true, an absent directory is a
    failure. Nothing is raised for what is in the directory: failures and cuts are in the result.
    Raise `NotSupportedHere` on a system without POSIX directories.
    """
    walk = Walk(root=path)
    try:
        walk.root = Path(os.path.realpath(path))
        with _open_root(walk.root, within) as top:
            status = os.fstat(top)
            if (status.st_dev, status.st_ino) in seen:
                return walk
            seen.add((status.st_dev, status.st_ino))
            _search(top, walk)
    except FileNotFoundError:
        if missed:
            walk.failed.append((path, "there is no such directory"))
    except NotInside as error:
        walk.failed.append((path, error.why))
    except ValueError:
        walk.failed.append((path, "it is no path"))
    except OSError as error:
        walk.failed.append((path, f"it cannot be read: {error.strerror or error}"))
    return walk


@contextmanager
def _open_root(root: Path, within: Path | None) -> Iterator[int]:
    """Open the directory of a layer; yield its descriptor.

    With `within`, it is opened from there, a component at a time. Raise `NotInside` if a link leads
    out of it, `OSError` if the system fails, `NotSupportedHere` on one without POSIX directories.
    """
    system.require_posix("a folder of skills")
    start = root if within is None else Path(os.path.realpath(within))
    if not root.is_relative_to(start):
        raise NotInside(f"is a link that leads out of {start}; links out are not followed")
    descriptor = os.open(start, os.O_RDONLY | system.DIRECTORY | system.CLOEXEC)
    try:
        with open_inside(descriptor, root.relative_to(start).parts) as top:
            yield top
    finally:
        os.close(descriptor)


def _search(top: int, walk: Walk) -> None:
    waiting = [_WalkedDirectory()]
    for place in waiting:
        if walk.directories >= _DIRECTORIES_MAX:
            note = f"{walk.root} has more than {_DIRECTORIES_MAX:,} directories"
            walk.truncated.append(one_line_text(f"{note}; the rest was not seen"))
            return
        walk.directories += 1
        try:
            with open_inside(top, place.parts) as directory:
                waiting += _visit(directory, place, walk)
        except NotInside as error:
            _fail(walk, place.parts, error.why)
        except OSError as error:
            _fail(walk, place.parts, f"it cannot be read: {error.strerror or error}")


def _visit(directory: int, place: _WalkedDirectory, walk: Walk) -> list[_WalkedDirectory]:
    """Add a directory's skill to the walk; return the directories to look at next.

    Below the root, a directory with a skill is not searched for others. Faults and cuts are noted
    in the walk. Raise `OSError` if the directory cannot be listed.
    """
    with os.scandir(directory) as listing:
        entries = [each for _, each in zip(range(_ENTRIES_MAX + 1), listing, strict=False)]
        if len(entries) > _ENTRIES_MAX:
            entries.pop()
            where = walk.root.joinpath(*place.parts)
            note = f"{where} has more than {_ENTRIES_MAX:,} entries; the rest was not seen"
            walk.truncated.append(one_line_text(note))
        entries.sort(key=lambda each: each.name)
    names = {each.name for each in entries}
    file = next((name for name in _FILES if name in names), None)
    if file is not None:
        _read_skill_file(directory, file, place, walk)
    else:
        near = next((name for name in sorted(names) if name.lower() == "skill.md"), None)
        if near is not None:
            _fail(walk, place.parts, f"has {quote(near)}; rename it to SKILL.md")
    if file is not None and place.parts:
        return []
    return _subdirectories(directory, entries, place, walk)


def _read_skill_file(directory: int, file: str, place: _WalkedDirectory, walk: Walk) -> None:
    if place.namespace is None:
        _fail(walk, place.parts, "a folder above it has a name that cannot be in an id")
        return
    try:
        raw = read_inside(directory, file, bytes_max=FILE_BYTES_MAX)
    except NotInside as error:
        _fail(walk, place.parts, f"its {file} {error.why}")
        return
    except OSError as error:
        _fail(walk, place.parts, f"its {file} cannot be read: {error.strerror or error}")
        return
    path = walk.root.joinpath(*place.parts)
    walk.found.append(SkillFile(path=path, namespace=place.namespace, file=file, raw=raw))


def _subdirectories(
    directory: int, entries: list[os.DirEntry[str]], place: _WalkedDirectory, walk: Walk
) -> list[_WalkedDirectory]:
    inner = []
    namespace = place.below()
    for entry in entries:
        parts = (*place.parts, entry.name)
        if entry.name.casefold() in _NOT_WALKED:
            continue
        if entry.is_symlink():
            why = _link_fault(directory, entry)
            if why:
                _fail(walk, parts, why)
        elif entry.is_dir(follow_symlinks=False):
            if len(parts) > _WALK_DEPTH_MAX:
                where = walk.root.joinpath(*place.parts)
                note = f"{where} is {_WALK_DEPTH_MAX} deep; what is below it was not seen"
                walk.truncated.append(one_line_text(note))
                break
            inner.append(_WalkedDirectory(parts, namespace))
    return inner


def _link_fault(directory: int, entry: os.DirEntry[str]) -> str:
    """Return why a link was not followed; "" for one that leads to something but a directory.

    A link to a directory, or to nothing, may have been meant as a skill.
    """
    try:
        leads = stat.S_ISDIR(entry.stat().st_mode)
        target = os.readlink(entry.name, dir_fd=directory) if leads else ""
    except FileNotFoundError:
        return "is a link that leads nowhere"
    except OSError as error:
        return f"is a link that cannot be followed: {error.strerror or error}"
    told = f"is a link to {quote(target)}; links are not followed, name its directory instead"
    return told if leads else ""


def _fail(walk: Walk, parts: tuple[str, ...], why: str) -> None:
    """Note a failure. After 1,000 of them, note only that there were more."""
    if len(walk.failed) < _FAILED_MAX:
        walk.failed.append((walk.root.joinpath(*parts), why))
    elif len(walk.failed) == _FAILED_MAX:
        walk.failed.append((walk.root, f"more than {_FAILED_MAX:,} failed; the rest is not listed"))
