"""Owners of reservations: processes that can be proven dead.

A living owner holds an exclusive lock on a file named after it. The kernel lets go of the lock when
the last process that has the descriptor is gone, however it went. So whoever gets a shared lock on
that file has the proof; whoever does not, or finds no file, has none.

Rejected: process ids. They are reused, and mean nothing in another namespace.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from tallystick.core.errors import LedgerUnavailable
from tallystick.core.ids import ENTROPY_BYTES, is_ulid, ulid

__all__ = ["Owner", "Owners"]

_SUFFIX = ".lock"


class Owner:
    """The lock of one owner. Letting go of it is dying."""

    def __init__(self, *, id: str, path: Path, descriptor: int) -> None:
        self.id = id
        self._path = path
        self._descriptor: int | None = descriptor

    def release(self, *, remove: bool) -> None:
        """Let go. With `remove`, nothing names this owner any more and nobody will ask for it."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            if remove:
                with contextlib.suppress(OSError):
                    self._path.unlink(missing_ok=True)
            os.close(descriptor)


class Owners:
    """The lock files of one ledger's owners."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def hold(self) -> Owner:
        """Become an owner."""
        now = time.time_ns() // 1_000_000
        id = ulid(time_ms=now, entropy=os.urandom(ENTROPY_BYTES))
        path = self._path(id)
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            _lock(path, descriptor)
        except OSError as error:
            why = error.strerror or str(error)
            raise LedgerUnavailable(path=str(path), why=why) from error
        return Owner(id=id, path=path, descriptor=descriptor)

    def proven_dead(self, id: str) -> bool:
        """Whether an owner is dead for sure, and then for good: no id is used twice."""
        if not is_ulid(id):
            return False
        try:
            descriptor = os.open(self._path(id), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return True

    def bury(self, id: str) -> None:
        """Remove the file of a dead owner that nothing names any more."""
        if self.proven_dead(id):
            with contextlib.suppress(OSError):
                self._path(id).unlink(missing_ok=True)

    def _path(self, id: str) -> Path:
        return self._folder / f"{id}{_SUFFIX}"


def _lock(path: Path, descriptor: int) -> None:
    """Lock a new file, and have its name on disk before anything can name its owner."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        _fsync(path.parent)
        _fsync(path.parent.parent)
    except OSError:
        os.close(descriptor)
        raise


def _fsync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
