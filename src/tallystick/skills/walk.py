"""Walks: a layer's directory gone through for files that are called SKILL.md.

Rule 1: every directory is opened from the one above it and no link is followed, so nothing outside
is read and there are no loops.
Rule 2: a folder with a SKILL.md belongs to that skill, and is not searched for others; but the
directory at the top is, so that a stray file there does not hide everything.
Rule 3: links and files that would be skills if they were followed or named rightly are told.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tallystick.skills.folder import NotInside, open_inside, read_inside
from tallystick.skills.frontmatter import FILE_BYTES_MAX
from tallystick.skills.line import one_line, quoted
from tallystick.skills.name import folder_name

__all__ = ["Found", "Walk", "walked"]

_DEPTH_MAX = 6
_DIRECTORIES_MAX = 2_000
_ENTRIES_MAX = 5_000
_FAILED_MAX = 1_000
_FILES = ("SKILL.md", "skill.md")
_LEFT_OUT = frozenset({
    ".git", ".hg", ".svn", ".bzr", ".jj", "cvs", "__pycache__", "node_modules", ".venv", ".tox",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A SKILL.md: its folder, its namespace from the directories between, its name and bytes."""

    path: Path
    namespace: str
    file: str
    raw: bytes


@dataclass(slots=True, kw_only=True)
class Walk:
    """What one directory gave. `root` is where it really is."""

    root: Path
    found: list[Found] = field(default_factory=list)
    failed: list[tuple[Path, str]] = field(default_factory=list)
    truncated: list[str] = field(default_factory=list)
    directories: int = 0


@dataclass(frozen=True, slots=True)
class _Place:
    """A directory on the way: its components from the root, and the namespace of a skill in it.

    The namespace is None below a directory whose name cannot be in an id.
    """

    parts: tuple[str, ...] = ()
    namespace: str | None = ""

    def below(self) -> str | None:
        """The namespace of skills in the directories of this one."""
        if not self.parts or self.namespace is None:
            return self.namespace
        name = folder_name(self.parts[-1])
        return None if name is None else f"{self.namespace}/{name}".lstrip("/")


def walked(path: Path, *, within: Path | None, seen: set[tuple[int, int]], missed: bool) -> Walk:
    """Go through a directory, breadth first and in order of names.

    `seen` are directories that were gone through, to which this one is added; `missed` says whether
    it is a fault if there is none.
    """
    walk = Walk(root=path)
    try:
        walk.root = Path(os.path.realpath(path))
        with _opened_root(walk.root, within) as top:
            status = os.fstat(top)
            if (status.st_dev, status.st_ino) in seen:
                return walk
            seen.add((status.st_dev, status.st_ino))
            _go_through(top, walk)
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
def _opened_root(root: Path, within: Path | None) -> Iterator[int]:
    """The directory of a layer. What has to lie within another is reached from there."""
    start = root if within is None else Path(os.path.realpath(within))
    if not root.is_relative_to(start):
        raise NotInside(f"is a link that leads out of {start}; links out are not followed")
    descriptor = os.open(start, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with open_inside(descriptor, root.relative_to(start).parts) as top:
            yield top
    finally:
        os.close(descriptor)


def _go_through(top: int, walk: Walk) -> None:
    waiting = [_Place()]
    for place in waiting:
        if walk.directories >= _DIRECTORIES_MAX:
            note = f"{walk.root} has more than {_DIRECTORIES_MAX:,} directories"
            walk.truncated.append(one_line(f"{note}; the rest was not seen"))
            return
        walk.directories += 1
        try:
            with open_inside(top, place.parts) as directory:
                waiting += _looked_at(directory, place, walk)
        except NotInside as error:
            _fail(walk, place.parts, error.why)
        except OSError as error:
            _fail(walk, place.parts, f"it cannot be read: {error.strerror or error}")


def _looked_at(directory: int, place: _Place, walk: Walk) -> list[_Place]:
    """Take a directory's skill, if it is one; else say which directories to look at next."""
    with os.scandir(directory) as listing:
        entries = [each for _, each in zip(range(_ENTRIES_MAX + 1), listing, strict=False)]
        if len(entries) > _ENTRIES_MAX:
            entries.pop()
            where = walk.root.joinpath(*place.parts)
            note = f"{where} has more than {_ENTRIES_MAX:,} entries; the rest was not seen"
            walk.truncated.append(one_line(note))
        entries.sort(key=lambda each: each.name)
    names = {each.name for each in entries}
    file = next((name for name in _FILES if name in names), None)
    if file is not None:
        _read(directory, file, place, walk)
    else:
        near = next((name for name in sorted(names) if name.lower() == "skill.md"), None)
        if near is not None:
            _fail(walk, place.parts, f"has {quoted(near)}; the file is called SKILL.md")
    if file is not None and place.parts:
        return []
    return _inner(directory, entries, place, walk)


def _read(directory: int, file: str, place: _Place, walk: Walk) -> None:
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
    walk.found.append(Found(path=path, namespace=place.namespace, file=file, raw=raw))


def _inner(
    directory: int, entries: list[os.DirEntry[str]], place: _Place, walk: Walk
) -> list[_Place]:
    inner = []
    namespace = place.below()
    for entry in entries:
        parts = (*place.parts, entry.name)
        if entry.name.casefold() in _LEFT_OUT:
            continue
        if entry.is_symlink():
            why = _link_told(directory, entry)
            if why:
                _fail(walk, parts, why)
        elif entry.is_dir(follow_symlinks=False):
            if len(parts) > _DEPTH_MAX:
                where = walk.root.joinpath(*place.parts)
                note = f"{where} is {_DEPTH_MAX} deep; what is below it was not seen"
                walk.truncated.append(one_line(note))
                break
            inner.append(_Place(parts, namespace))
    return inner


def _link_told(directory: int, entry: os.DirEntry[str]) -> str:
    """Why a link was passed by, if it may have been meant as a skill: it leads to a directory."""
    try:
        leads = stat.S_ISDIR(entry.stat().st_mode)
        target = os.readlink(entry.name, dir_fd=directory) if leads else ""
    except FileNotFoundError:
        return "is a link that leads nowhere"
    except OSError as error:
        return f"is a link that cannot be followed: {error.strerror or error}"
    told = f"is a link to {quoted(target)}; links are not followed, name its directory instead"
    return told if leads else ""


def _fail(walk: Walk, parts: tuple[str, ...], why: str) -> None:
    if len(walk.failed) < _FAILED_MAX:
        walk.failed.append((walk.root.joinpath(*parts), why))
    elif len(walk.failed) == _FAILED_MAX:
        walk.failed.append((walk.root, f"more than {_FAILED_MAX:,} failed; the rest is not told"))
