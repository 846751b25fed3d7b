"""Owners: processes that can be proven dead.

A living owner holds an exclusive lock on a file named after it. The kernel lets go of the lock when
the last process that has the descriptor is gone, however it went. So whoever gets a shared lock on
that file has the proof; whoever does not, or finds no file, has none.

Rejected: process ids. They are reused, and mean nothing in another namespace.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from tallystick.attachments.files import make_directory
from tallystick.attachments.port import AttachmentIoFailed
from tallystick.core.ids import ENTROPY_BYTES, is_ulid, ulid
from tallystick.storage import system

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
        while True:
            now = time.time_ns() // 1_000_000
            id = ulid(time_ms=now, entropy=os.urandom(ENTROPY_BYTES))
            path = self._folder / f"{id}{_SUFFIX}"
            try:
                make_directory(self._folder)
                descriptor = os.open(
                    path, os.O_RDWR | os.O_CREAT | os.O_EXCL | system.CLOEXEC, 0o600
                )
                if _locked(path, descriptor):
                    return Owner(id=id, path=path, descriptor=descriptor)
            except OSError as error:
                raise AttachmentIoFailed.of(path, error) from error

    def proven_dead(self, id: str) -> bool:
        with self._probed(id) as dead:
            return dead

    def has_file(self, id: str) -> bool:
        return is_ulid(id) and (self._folder / f"{id}{_SUFFIX}").exists()

    def bury(self, id: str) -> None:
        """Remove the file of a dead owner that nothing names any more."""
        with self._probed(id) as dead:
            if dead:
                (self._folder / f"{id}{_SUFFIX}").unlink(missing_ok=True)

    def ids(self) -> list[str]:
        """Every owner that has a file."""
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise AttachmentIoFailed.of(self._folder, error) from error
        found = (name.removesuffix(_SUFFIX) for name in sorted(names) if name.endswith(_SUFFIX))
        return [id for id in found if is_ulid(id)]

    @contextlib.contextmanager
    def _probed(self, id: str) -> Iterator[bool]:
        """Whether an owner is dead, and if so, keep others from finding out for so long."""
        if not is_ulid(id):
            yield False
            return
        path = self._folder / f"{id}{_SUFFIX}"
        try:
            descriptor = os.open(path, os.O_RDONLY | system.CLOEXEC | system.NOFOLLOW)
        except OSError:
            yield False
            return
        try:
            system.lock(descriptor, shared=True, wait=False)
            dead = True
        except OSError:
            dead = False
        try:
            yield dead
        finally:
            os.close(descriptor)


def _locked(path: Path, descriptor: int) -> bool:
    """Lock a new file. False if a sweep took it for a dead owner's before it was locked."""
    try:
        system.lock(descriptor)
        if path.stat().st_ino == os.fstat(descriptor).st_ino:
            return True
    except FileNotFoundError:
        pass
    except OSError:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return False
