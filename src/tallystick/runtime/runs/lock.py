"""That a run is being worked on: a lock held for as long as its process lives, beside the ledger.

The system lets go of it when the process dies, however it dies; so a lock that can be taken proves
that nobody works on the run here. It says nothing about other machines.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

from tallystick.core.errors import (
    CleanUpWarning,
    LedgerError,
    LedgerUnavailable,
    RunNotFound,
    UsageError,
)
from tallystick.core.ids import is_ulid
from tallystick.ledger.port import Ledger, find_row
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.storage import system
from tallystick.storage.directories import make_private


@contextlib.contextmanager
def held_run(ledger: Ledger, run: str, *, steal: bool = False) -> Iterator[bool]:
    """Hold a run's lock while inside. A ledger without a file has no others to tell.

    Raises `UsageError` while a living process holds it, unless it is to be stolen: then that one
    keeps a lock that nobody looks at any more. Gives whether it was.
    """
    if not isinstance(ledger, SqliteLedger):
        yield False
        return
    if not is_ulid(run):
        raise RunNotFound(run=run)
    path = _lock_path(ledger, run)
    before = _fence(ledger, run) if steal else None
    descriptor, stolen = _held(path, run, steal=steal)
    try:
        yield stolen
    finally:
        try:
            untaken = stolen and _fence(ledger, run) == before and _is_locked(_aside(path))
            _give_up(descriptor, path, stolen=stolen, untaken=untaken)
        except (OSError, LedgerError) as error:
            # The lock is released with its descriptor: a file that nobody holds locks nothing.
            why = getattr(error, "strerror", None) or str(error)
            warnings.warn(CleanUpWarning(path=str(path), why=why), stacklevel=3)
        finally:
            os.close(descriptor)


def _give_up(descriptor: int, path: Path, *, stolen: bool, untaken: bool) -> None:
    """Take the name of a lock away; if the run was not taken after all, give it back."""
    # Gone before it is let go: whoever opens the name afterwards makes a new one. Unless
    # somebody has stolen it: then the name is theirs.
    if _is_at(descriptor, path):
        if untaken:
            # Whoever works on it is seen again.
            _aside(path).replace(path)
        else:
            path.unlink(missing_ok=True)
    if stolen:
        _aside(path).unlink(missing_ok=True)


def require_idle(ledger: Ledger, run: str) -> None:
    """Raise if a living process works on the run."""
    if is_running(ledger, run):
        raise _running(run)


def is_running(ledger: Ledger, run: str) -> bool:
    """Whether a living process works on the run."""
    if not isinstance(ledger, SqliteLedger):
        return False
    return _is_locked(_lock_path(ledger, run))


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | system.CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise LedgerUnavailable(path=str(path), why=error.strerror or str(error)) from error
    try:
        return not _take(descriptor)
    finally:
        os.close(descriptor)


def _held(path: Path, run: str, *, steal: bool) -> tuple[int, bool]:
    try:
        make_private(path.parent)
        stolen = False
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | system.CLOEXEC, 0o600)
            if _take(descriptor):
                # Whoever held it may have taken the name away in between.
                if _is_at(descriptor, path):
                    return descriptor, stolen
            elif steal:
                stolen = True
                with contextlib.suppress(FileNotFoundError):
                    path.replace(_aside(path))
            else:
                os.close(descriptor)
                raise _running(run)
            os.close(descriptor)
    except OSError as error:
        raise LedgerUnavailable(path=str(path), why=error.strerror or str(error)) from error


def _running(run: str) -> UsageError:
    return UsageError(f"run {run} is running; wait for its end, or stop it first")


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        there = path.stat()
    except OSError:
        return False
    mine = os.fstat(descriptor)
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)


def _aside(path: Path) -> Path:
    """Where the lock of a process is kept that a run is being taken from."""
    return path.with_suffix(".stolen")


def _fence(ledger: Ledger, run: str) -> int | None:
    row = find_row(ledger, run)
    return None if row is None else row.fence


def _lock_path(ledger: SqliteLedger, run: str) -> Path:
    # Whichever name the ledger was opened by: those who share it share its locks.
    path = Path(os.path.realpath(ledger.path))
    return path.with_name(f"{path.name}-runs") / f"{run}.lock"


def _take(descriptor: int) -> bool:
    try:
        system.lock(descriptor, wait=False)
    except OSError:
        return False
    return True
