"""Directories that a box begins with: made private, and gone with their process, however it ends.

Each holds a lock while somebody uses it. A process that was killed cannot remove its own; the next
one that makes a directory removes those whose lock nobody holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

__all__ = ["NativeFolder"]

_PREFIX = "tallystick-native-"
_LOCK = "lock"


class NativeFolder:
    """One directory. Removing it twice is harmless."""

    def __init__(self) -> None:
        _remove_left(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._lock: int | None = os.open(
            self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def _remove_left(parent: Path) -> None:
    """Remove what processes left that are gone. One without a lock is just being made."""
    for each in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            lock = os.open(each / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(lock).st_uid == os.getuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(each, ignore_errors=True)
            finally:
                os.close(lock)
