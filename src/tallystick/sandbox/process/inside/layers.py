"""The paths in a box, and its working directory as layers that snapshots can go back to.

A snapshot closes the top layer and mounts an empty one over it. A restore mounts an empty layer
over the layers of the snapshot. Nothing is copied, whatever the size. A closed layer must never
change, so a snapshot is refused while a process has a file of the top layer open for writing.

If the kernel does not let us mount overlays, snapshots are copies.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from typing import Protocol

from tallystick.sandbox.process.inside import kernel
from tallystick.sandbox.process.inside.kernel import MS_NODEV, MS_NOSUID, MS_RDONLY, MS_REMOUNT

# The paths in a box, and the user of programs.


# The user of programs in the box. Outside, that is the host's user; or nobody, if the host is root.
USER = 1_000
# Not /home: directories that programs may read could be bound there.
HOME = "/session"
WORK = f"{HOME}/work"
# Its mode is 0 and the root is read-only, so even its owner cannot open it. Only the capabilities
# of the keeper can.
KEPT = "/.kept"
STORE = f"{KEPT}/store"
FILES = f"{KEPT}/files"


# The working directory as layers: changes of a program are in a layer above what it found.


_DEPTH_MAX = 24
_COPY_BYTES = 1 << 20


class OpenForWriting(Exception):
    """A file of the working directory is open for writing, so no snapshot can be taken."""


class WorkingDirectory(Protocol):
    """The session's files, with snapshots by name. Each method may raise `OSError`."""

    def freeze(self, name: str) -> None:
        """Take a snapshot. `Layers` raises `OpenForWriting` if a file is open for writing."""
        ...

    def restore(self, name: str) -> None:
        """Replace the files by those of a snapshot. The snapshot stays.

        Raise `KeyError` if there is none of this name.
        """
        ...

    def forget(self, name: str) -> None:
        """Delete a snapshot; nothing if there is none of this name."""
        ...


def make_working_directory(*, overlay: bool, given: bool, writable_lower: bool) -> WorkingDirectory:
    """Mount the working directory. With `given`, it starts with the files at `FILES`.

    If their owner is the box's user (`writable_lower`), they are the lowest layer. Otherwise they
    are copied, so that programs can change them. Without `overlay` there are no layers: the files
    and the snapshots are copies. Raise `OSError` if a step fails.
    """
    lower = None
    if given and not writable_lower:
        lower = f"{STORE}/given"
        os.mkdir(lower)
        copy_tree(FILES, lower)
    elif given:
        lower = FILES
    return Layers(lower) if overlay else Copies(lower)


class Layers:
    """A working directory of overlay mounts. Snapshots are stacks of layers."""

    def __init__(self, lower: str | None) -> None:
        self._made = 0
        self._frozen: dict[str, tuple[str, ...]] = {}
        if lower is None:
            lower = self._new("empty")
        self._stack: tuple[str, ...] = (lower,)
        self._fixed = lower
        self._top = ""
        self._cover()

    def freeze(self, name: str) -> None:
        try:
            # The kernel refuses a read-only remount while a file is open for writing, and lets no
            # process open one afterwards.
            kernel.mount(None, WORK, None, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)
        except OSError as error:
            if error.errno == errno.EBUSY:
                raise OpenForWriting(
                    "a file of the working directory is open for writing; close it first"
                ) from None
            raise
        self._stack = (self._top, *self._stack)
        self._frozen[name] = self._stack
        try:
            if len(self._stack) > _DEPTH_MAX:
                self._flatten(name)
        finally:
            kernel.umount(WORK)
            self._cover()
            self._collect()

    def restore(self, name: str) -> None:
        stack = self._frozen[name]
        kernel.umount(WORK)
        self._stack = stack
        self._cover()
        self._collect()

    def forget(self, name: str) -> None:
        self._frozen.pop(name, None)
        self._collect()

    def _new(self, kind: str) -> str:
        self._made += 1
        path = f"{STORE}/{kind}{self._made}"
        os.mkdir(path, 0o755)
        return path

    def _cover(self) -> None:
        """Mount an empty layer over the stack."""
        self._top = self._new("top")
        os.chown(self._top, USER, USER)
        work = self._new("work")
        options = f"lowerdir={':'.join(self._stack)},upperdir={self._top},workdir={work}"
        try:
            kernel.mount("overlay", WORK, "overlay", MS_NOSUID | MS_NODEV, f"userxattr,{options}")
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            kernel.mount("overlay", WORK, "overlay", MS_NOSUID | MS_NODEV, options)
        self._scratch = work

    def _flatten(self, name: str) -> None:
        """Merge a deep stack into one layer, by copying. Older snapshots keep their layers."""
        merged = self._new("flat")
        copy_tree(WORK, merged)
        self._stack = (merged, self._fixed) if self._fixed != FILES else (merged,)
        self._frozen[name] = self._stack

    def _collect(self) -> None:
        """Remove layers that neither the working directory nor a snapshot needs."""
        needed = {os.path.basename(each) for stack in self._states() for each in stack}
        needed |= {os.path.basename(each) for each in (self._top, self._scratch, self._fixed)}
        for entry in os.listdir(STORE):
            if entry not in needed:
                _remove(f"{STORE}/{entry}")

    def _states(self) -> Iterator[tuple[str, ...]]:
        yield self._stack
        yield from self._frozen.values()


class Copies:
    """A working directory with copies as snapshots, for kernels that do not allow overlays."""

    def __init__(self, lower: str | None) -> None:
        self._made = 0
        self._frozen: dict[str, str] = {}
        self._now = ""
        self._lay(lower)

    def freeze(self, name: str) -> None:
        kept = self._new("kept")
        try:
            copy_tree(WORK, kept)
        except OSError:
            _remove(kept)
            raise
        self._frozen[name] = kept

    def restore(self, name: str) -> None:
        kept, before = self._frozen[name], self._now
        kernel.umount(WORK)
        self._lay(kept)
        _remove(before)

    def forget(self, name: str) -> None:
        kept = self._frozen.pop(name, None)
        if kept is not None:
            _remove(kept)

    def _new(self, kind: str) -> str:
        self._made += 1
        path = f"{STORE}/{kind}{self._made}"
        os.mkdir(path, 0o755)
        return path

    def _lay(self, source: str | None) -> None:
        self._now = self._new("now")
        os.chown(self._now, USER, USER)
        if source is not None:
            copy_tree(source, self._now)
        kernel.mount(self._now, WORK, None, kernel.MS_BIND)


def _remove(path: str) -> None:
    """Remove a tree, even if directories in it are closed to their owner. Ignore the rest."""
    try:
        shutil.rmtree(path)
    except OSError:
        for where, directories, _ in os.walk(path):
            for name in directories:
                if not os.path.islink(f"{where}/{name}"):
                    os.chmod(f"{where}/{name}", 0o700)
        shutil.rmtree(path, ignore_errors=True)


def copy_tree(source: str, target: str) -> None:
    """Copy a tree with its modes and times into a directory. The copy belongs to the box's user.

    Links stay links. Sockets, pipes and devices are left out. A file with several names becomes
    several files. Raise `OSError` if an entry cannot be copied; what was copied before stays.
    """
    pending = [(source, target)]
    while pending:
        old, new = pending.pop()
        with os.scandir(old) as entries:
            for entry in entries:
                found = entry.stat(follow_symlinks=False)
                place = f"{new}/{entry.name}"
                if stat.S_ISDIR(found.st_mode):
                    os.mkdir(place)
                    pending.append((entry.path, place))
                elif stat.S_ISLNK(found.st_mode):
                    os.symlink(os.readlink(entry.path), place)
                elif stat.S_ISREG(found.st_mode):
                    _copy_file(entry.path, place)
                else:
                    continue
                _take_over(place, found)
    _take_over(target, os.stat(source), owner_only=True)


def _copy_file(source: str, target: str) -> None:
    reading = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        writing = os.open(target, flags, 0o600)
        try:
            while os.sendfile(writing, reading, None, _COPY_BYTES):
                pass
        finally:
            os.close(writing)
    finally:
        os.close(reading)


def _take_over(place: str, found: os.stat_result, *, owner_only: bool = False) -> None:
    os.chown(place, USER, USER, follow_symlinks=False)
    if owner_only or stat.S_ISLNK(found.st_mode):
        return
    # Without set-user-id and the like: no file in a box may give rights.
    os.chmod(place, stat.S_IMODE(found.st_mode) & 0o777)
    os.utime(place, ns=(found.st_atime_ns, found.st_mtime_ns))


_kinds: Sequence[type[WorkingDirectory]] = (Layers, Copies)
