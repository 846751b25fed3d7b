"""Keep owners of unfinished work: processes that can be proven dead.

A reservation, an attachment intent or a half-done collection names its owner. Others may settle or
remove it only if its owner is proven dead, however long ago it was begun.

In files, a living owner holds the lock on a file that has its name. The system releases the lock
when the last process that has the descriptor is gone, however it ended. So a process that gets a
shared lock on the file has the proof. One that does not get it, or finds no file, has none.

Rejected: process ids. They are reused, and mean nothing in another namespace.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tallystick.core.ids import is_ulid
from tallystick.storage.clock import new_id
from tallystick.storage.lock import FileLock, proven_free
from tallystick.storage.private_file import force_directory, make_private

_SUFFIX = ".lock"


class Owner(Protocol):
    """One owner, alive until it is released or its process dies."""

    @property
    def id(self) -> str:
        """The id of the owner, a ULID."""
        ...

    def release(self, *, remove: bool) -> None:
        """Make this owner dead.

        With `remove`, the proof goes too, so pass it only if nothing names this owner any more.
        Releasing twice is harmless, and no error of the system is raised.
        """
        ...


class Owners(Protocol):
    """The owners of one store. No id is used twice, so an owner that is proven dead stays dead.

    `hold` and `ids` raise the store's error if the system fails. The others do not.
    """

    def hold(self) -> Owner:
        """Return a new owner. Its name is on the disk before anything can refer to it."""
        ...

    def proven_dead(self, id: str) -> bool:
        """Return True if an owner is dead for sure.

        False for one that lives, that is not known here, or whose proof cannot be read.
        """
        ...

    def knows(self, id: str) -> bool:
        """Return True if its proof is here: that could prove the owner dead, now or later."""
        ...

    def bury(self, id: str) -> None:
        """Remove the proof of a dead owner. Do nothing if it is not proven dead.

        The caller knows that nothing names it any more. A proof that cannot be removed stays.
        """
        ...

    def ids(self) -> list[str]:
        """Return every owner that is known here, living or dead, in the order of their ids."""
        ...


class FileOwner:
    """The lock of one owner. The process is the owner as long as it has the lock."""

    def __init__(self, id: str, lock: FileLock) -> None:
        self.id = id
        self._lock = lock

    def release(self, *, remove: bool) -> None:
        with contextlib.suppress(OSError):
            self._lock.release(remove=remove)


class FileOwners:
    """Owners as lock files in a folder. `failed` makes the store's error from the system's."""

    def __init__(self, folder: Path, *, failed: Callable[[Path, OSError], Exception]) -> None:
        self._folder = folder
        self._failed = failed

    def hold(self) -> FileOwner:
        id = new_id()
        lock = FileLock(self._path(id))
        try:
            make_private(self._folder, forced=True)
            # No other process has this name, unless a collection takes the file for a dead owner's
            # before it is locked. Then the file is made again.
            lock.take(wait_seconds=None)
            try:
                force_directory(self._folder)
                # Another process may have made the folder, and not have forced it yet.
                force_directory(self._folder.parent)
            except OSError:
                lock.release()
                raise
        except OSError as error:
            raise self._failed(lock.path, error) from error
        return FileOwner(id, lock)

    def proven_dead(self, id: str) -> bool:
        if not is_ulid(id):
            return False
        with proven_free(self._path(id)) as dead:
            return dead

    def knows(self, id: str) -> bool:
        return is_ulid(id) and self._path(id).exists()

    def bury(self, id: str) -> None:
        if is_ulid(id):
            with proven_free(self._path(id)) as dead, contextlib.suppress(OSError):
                if dead:
                    self._path(id).unlink(missing_ok=True)

    def ids(self) -> list[str]:
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._failed(self._folder, error) from error
        found = (name.removesuffix(_SUFFIX) for name in sorted(names) if name.endswith(_SUFFIX))
        return [id for id in found if is_ulid(id)]

    def _path(self, id: str) -> Path:
        return self._folder / f"{id}{_SUFFIX}"


class MemoryOwner:
    """One owner of a store in memory."""

    def __init__(self, id: str, alive: dict[str, bool]) -> None:
        self.id = id
        self._alive = alive

    def release(self, *, remove: bool) -> None:
        if self._alive.get(self.id):
            self._alive[self.id] = False
            if remove:
                del self._alive[self.id]


class MemoryOwners:
    """Owners of a store in memory. They die with the store, or when they are released."""

    def __init__(self) -> None:
        self._alive: dict[str, bool] = {}

    def hold(self) -> MemoryOwner:
        owner = MemoryOwner(new_id(), self._alive)
        self._alive[owner.id] = True
        return owner

    def proven_dead(self, id: str) -> bool:
        return self._alive.get(id) is False

    def knows(self, id: str) -> bool:
        return id in self._alive

    def bury(self, id: str) -> None:
        if self.proven_dead(id):
            del self._alive[id]

    def ids(self) -> list[str]:
        return sorted(self._alive)


_file: type[Owners] = FileOwners
_memory: type[Owners] = MemoryOwners
