"""The lock on a file, which the system releases when the process that holds it dies.

So a lock that can be taken proves that no living process of this machine holds it. It says nothing
about other machines. Each object opens the file for itself: two threads of one process exclude each
other as two processes do. The child of a fork shares the lock of its parent, and it is released
when both have closed it.

A holder may remove the name before it releases the lock. A lock on a file whose name is gone, or
stands for another file, excludes nobody: so whoever gets one looks, and begins again.
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
    """One exclusive lock. What the system refuses is raised as `OSError`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    @property
    def is_current(self) -> bool:
        """Return whether the lock is held, and its name still stands for the file that is locked.

        False after another process has put a lock of its own in its place.
        """
        return self._descriptor is not None and _is_at(self._descriptor, self.path)

    def take(self, *, wait_seconds: float | None = 0.0) -> bool:
        """Take the lock, and make its file if there is none. Returns False if another has it.

        Tries for `wait_seconds`; None waits without end.
        """
        make_private(self.path.parent)
        give_up = time.monotonic() + (wait_seconds or 0.0)
        while not self._taken_once(wait=wait_seconds is None):
            if time.monotonic() >= give_up:
                return False
            time.sleep(_PAUSE_SECONDS)
        return True

    def release(self, *, remove: bool = False) -> None:
        """Release the lock. With `remove`, its file goes too, unless the name is another's by now.

        Releasing twice is harmless. The lock is released also if the file cannot be removed.
        """
        try:
            # Before it is released: whoever opens the name afterwards makes a new file.
            if remove and self.is_current:
                self.path.unlink(missing_ok=True)
        finally:
            descriptor, self._descriptor = self._descriptor, None
            if descriptor is not None:
                os.close(descriptor)

    def _taken_once(self, *, wait: bool) -> bool:
        while True:
            flags = os.O_RDWR | os.O_CREAT | system.CLOEXEC
            descriptor = os.open(self.path, flags, 0o600)
            try:
                locked = _locked(descriptor, wait=wait)
            except BaseException:
                os.close(descriptor)
                raise
            if locked and _is_at(descriptor, self.path):
                self._descriptor = descriptor
                return True
            os.close(descriptor)
            if not locked:
                return False
            # Whoever held it has removed the name in between.


def is_locked(path: Path) -> bool:
    """Return whether a living process holds the lock on a file."""
    try:
        descriptor = os.open(path, os.O_RDWR | system.CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _locked(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def proven_free(path: Path) -> Iterator[bool]:
    """Say whether there is a file that nobody has locked, and keep it so while inside.

    False without such a file, and if it cannot be opened: then nothing is proven.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | system.CLOEXEC | system.NOFOLLOW)
    except OSError:
        yield False
        return
    try:
        yield _locked(descriptor, shared=True)
    finally:
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        there = path.stat()
    except OSError:
        return False
    mine = os.fstat(descriptor)
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)


def _locked(descriptor: int, *, shared: bool = False, wait: bool = False) -> bool:
    try:
        system.lock(descriptor, shared=shared, wait=wait)
    except OSError:
        if wait:
            raise
        return False
    return True
