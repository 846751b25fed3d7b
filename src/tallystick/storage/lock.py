"""Lock files, so that the system releases a lock when the process that holds it dies.

So a lock that can be taken proves that no living process of this machine holds it. It proves
nothing about other machines. Each object opens the file for itself: two threads of one process
exclude each other as two processes do. The child of a fork shares the lock of its parent, and it is
released when both have closed it.

A holder may remove the name before it releases the lock. A lock on a file whose name is gone, or
stands for another file, excludes nobody. So a process that gets a lock checks the name, and tries
again if it is not the same file.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from tallystick.storage import system
from tallystick.storage.private_file import make_private

_PAUSE_SECONDS = 0.05


class FileLock:
    """One exclusive lock. An error of the system is raised as `OSError`.

    Taking raises `NotSupportedHere` on a system without file locks.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    @property
    def is_current(self) -> bool:
        """True if the lock is held, and its name still stands for the file that is locked.

        False if that file was removed, or another process has put one of its own in its place.
        """
        return self._descriptor is not None and _is_at(self._descriptor, self.path)

    def take(self, *, wait_seconds: float | None = 0.0) -> bool:
        """Take the lock, and make its file and directory if there are none.

        Return False if another holder still has it after `wait_seconds`; it is asked for every
        0.05 s. None waits without end. Do not take a lock twice: its own first take excludes the
        second.
        """
        make_private(self.path.parent)
        give_up = time.monotonic() + (wait_seconds or 0.0)
        while not self._try_to_take(wait=wait_seconds is None):
            if time.monotonic() >= give_up:
                return False
            time.sleep(_PAUSE_SECONDS)
        return True

    def release(self, *, remove: bool = False) -> None:
        """Release the lock.

        With `remove`, unlink its file, unless the name stands for another file.

        Releasing twice is harmless. The lock is released also if the file cannot be removed.
        """
        try:
            # Unlink while the lock is held. Otherwise another process could lock this file just
            # before its name disappears, and a third one make and lock a new file: two holders.
            if remove and self.is_current:
                self.path.unlink(missing_ok=True)
        finally:
            descriptor, self._descriptor = self._descriptor, None
            if descriptor is not None:
                os.close(descriptor)

    def _try_to_take(self, *, wait: bool) -> bool:
        """Try once, or with `wait` wait until it succeeds. Return False if another has the lock."""
        while True:
            flags = os.O_RDWR | os.O_CREAT | system.CLOEXEC
            descriptor = os.open(self.path, flags, 0o600)
            try:
                locked = _try_lock(descriptor, wait=wait)
            except BaseException:
                os.close(descriptor)
                raise
            if locked and _is_at(descriptor, self.path):
                self._descriptor = descriptor
                return True
            os.close(descriptor)
            if not locked:
                return False
            # The earlier holder has removed the name in between, so this lock excludes nobody.


def is_locked(path: Path) -> bool:
    """Return True if the lock on a file cannot be taken now: a living process, or this one, has it.

    True also if the system refuses the lock for another reason. False if there is no file. Raise
    `OSError` if the file cannot be opened to be written, and
    `NotSupportedHere` on a system without file locks.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | system.CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _try_lock(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def proven_free(path: Path) -> Iterator[bool]:
    """Give True if there is a file that no process has locked, and keep it so while inside.

    The proof is a shared lock: others may prove it too, and nobody can take it. False if it is
    locked, is not there, is a symbolic link or cannot be opened: then nothing is proven. Raise
    `NotSupportedHere` on a system without file locks.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | system.CLOEXEC | system.NOFOLLOW)
    except OSError:
        yield False
        return
    try:
        yield _try_lock(descriptor, shared=True)
    finally:
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        there = path.stat()
    except OSError:
        return False
    mine = os.fstat(descriptor)
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)


def _try_lock(descriptor: int, *, shared: bool = False, wait: bool = False) -> bool:
    try:
        system.lock(descriptor, shared=shared, wait=wait)
    except OSError:
        if wait:
            raise
        return False
    return True
