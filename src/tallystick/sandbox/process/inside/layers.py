"""Where things are in a box, and its working directory as layers over what a program found.

A snapshot closes the top layer and lays an empty one over it; going back lays an empty one over the
layers of the snapshot. Nothing is copied, whatever the size. A closed layer never changes: a
snapshot is refused while anything holds a file of the top layer open for writing.

Where the kernel has no overlay for us, the same is done by copies.
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

# Where things are in a box, and who a program is there.


# Who a program is, in the box. Outside, it is the host's user, or nobody if that is root.
USER = 1_000
# Not /home: what is bound to be read may lie there.
HOME = "/session"
WORK = f"{HOME}/work"
# Closed even to its owner, on a root that cannot be changed: only the keeper's capabilities get in.
KEPT = "/.kept"
STORE = f"{KEPT}/store"
FILES = f"{KEPT}/files"


# The working directory as layers: what a program changes lies on top of what it found.


_DEPTH_MAX = 24
_COPY_BYTES = 1 << 20


class Held(Exception):
    """A file of the working directory is open for writing."""


class WorkingDirectory(Protocol):
    """The session's files, with states to go back to."""

    def freeze(self, name: str) -> None:
        """Keep the files as they are now."""
        ...

    def restore(self, name: str) -> None:
        """Go back to how they were."""
        ...

    def forget(self, name: str) -> None:
        """Do away with a kept state."""
        ...


def make_working_directory(*, overlay: bool, given: bool, writable_lower: bool) -> WorkingDirectory:
    """Mount the working directory. `given` says that there are files to start from.

    They are the lowest layer where their owner is the box's user; else they are copied, so that
    programs can change them.
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
    """By overlay mounts."""

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
            # The kernel refuses this while anything is open for writing, and after it nothing is.
            kernel.mount(None, WORK, None, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)
        except OSError as error:
            if error.errno == errno.EBUSY:
                raise Held(
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
        """Lay an empty layer over the stack."""
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
        """Make one layer of a stack that has grown deep. Older snapshots keep theirs."""
        merged = self._new("flat")
        copy_tree(WORK, merged)
        self._stack = (merged, self._fixed) if self._fixed != FILES else (merged,)
        self._frozen[name] = self._stack

    def _collect(self) -> None:
        """Remove layers that no state needs."""
        needed = {os.path.basename(each) for stack in self._states() for each in stack}
        needed |= {os.path.basename(each) for each in (self._top, self._scratch, self._fixed)}
        for entry in os.listdir(STORE):
            if entry not in needed:
                _remove(f"{STORE}/{entry}")

    def _states(self) -> Iterator[tuple[str, ...]]:
        yield self._stack
        yield from self._frozen.values()


class Copies:
    """By copying, for kernels that have no overlay for us."""

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
    """Remove a tree, also one whose directories were closed to their owner."""
    try:
        shutil.rmtree(path)
    except OSError:
        for where, directories, _ in os.walk(path):
            for name in directories:
                if not os.path.islink(f"{where}/{name}"):
                    os.chmod(f"{where}/{name}", 0o700)
        shutil.rmtree(path, ignore_errors=True)


def copy_tree(source: str, target: str) -> None:
    """Copy a tree with its modes and times. It becomes the box's user's; links stay links.

    Sockets, pipes and devices are left out. Files with several names become several files.
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
    # Without set-user-id and the like: nothing in a box may mean more than it says.
    os.chmod(place, stat.S_IMODE(found.st_mode) & 0o777)
    os.utime(place, ns=(found.st_atime_ns, found.st_mtime_ns))


_kinds: Sequence[type[WorkingDirectory]] = (Layers, Copies)
