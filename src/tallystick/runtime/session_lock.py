"""That somebody works in a session: a lock held for as long as their process lives, by the book.

The system lets go of it when the process dies, however it dies. Two threads of one process are two
clients as well: each opens the file for itself.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from tallystick.core.errors import SessionBusy, StoreError
from tallystick.core.ids import is_ulid
from tallystick.core.session_errors import SessionNotFound

__all__ = ["held_session", "is_held"]

_PAUSE_SECONDS = 0.05


@contextlib.contextmanager
def held_session(book: Path, session: str, *, wait_seconds: float = 0.0) -> Iterator[None]:
    """Hold a session while inside. Raises `SessionBusy` while somebody else does."""
    path = _path(book, session)
    give_up = time.monotonic() + wait_seconds
    while (descriptor := _taken(path)) is None:
        if time.monotonic() >= give_up:
            raise SessionBusy(
                f"session {session} is in use: one run at a time; wait for its end, stop it, or "
                f"make another session (tally session new)"
            )
        time.sleep(_PAUSE_SECONDS)
    try:
        yield
    finally:
        # Gone before it is let go: whoever opens the name afterwards makes a new one.
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        os.close(descriptor)


def is_held(book: Path, session: str) -> bool:
    """Whether somebody alive works in a session."""
    path = _path(book, session)
    if not path.exists():
        return False
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}") from error
    try:
        return not _locked(descriptor)
    finally:
        os.close(descriptor)


def _path(book: Path, session: str) -> Path:
    # It becomes the name of a file.
    if not is_ulid(session):
        raise SessionNotFound(session=session)
    path = Path(os.path.realpath(book))
    return path.with_name(f"{path.name}-held") / f"{session}.lock"


def _taken(path: Path) -> int | None:
    """A descriptor that holds the lock, None if somebody else does."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if not _locked(descriptor):
                os.close(descriptor)
                return None
            # Whoever held it may have taken the name away in between.
            if _is_at(descriptor, path):
                return descriptor
            os.close(descriptor)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}") from error


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        there = path.stat()
    except OSError:
        return False
    mine = os.fstat(descriptor)
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)


def _locked(descriptor: int) -> bool:
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
