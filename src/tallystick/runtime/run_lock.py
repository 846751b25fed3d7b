"""That a run is being worked on: a lock held for as long as its process lives, beside the ledger.

The system lets go of it when the process dies, however it dies; so a lock that can be taken proves
that nobody works on the run here. It says nothing about other machines.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from tallystick.core.errors import LedgerUnavailable, UsageError
from tallystick.ledger.port import Ledger
from tallystick.ledger.sqlite import SqliteLedger

__all__ = ["held_run", "require_idle"]


@contextlib.contextmanager
def held_run(ledger: Ledger, run: str) -> Iterator[None]:
    """Hold a run's lock while inside. A ledger without a file has no others to tell."""
    if not isinstance(ledger, SqliteLedger):
        yield
        return
    path = _lock_path(ledger, run)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LedgerUnavailable(path=str(path), why=error.strerror or str(error)) from error
    try:
        _take(descriptor)
        yield
    finally:
        # Gone before it is let go: whoever opens the name afterwards makes a new one.
        path.unlink(missing_ok=True)
        os.close(descriptor)


def require_idle(ledger: Ledger, run: str) -> None:
    """Raise if a living process works on the run."""
    if not isinstance(ledger, SqliteLedger):
        return
    try:
        descriptor = os.open(_lock_path(ledger, run), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not _take(descriptor):
            raise UsageError(f"run {run} is running; wait for its end, or stop it first")
    finally:
        os.close(descriptor)


def _lock_path(ledger: SqliteLedger, run: str) -> Path:
    return ledger.path.with_name(f"{ledger.path.name}-runs") / f"{run}.lock"


def _take(descriptor: int) -> bool:
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
