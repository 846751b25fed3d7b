"""Make private directories that are removed with their process, however it ends.

Each holds a lock while a process uses it. A process that was killed cannot remove its own; the next
one that makes a directory for the same use removes those whose lock no process holds.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from tallystick.storage import system
from tallystick.storage.lock import FileLock, proven_free

_LOCK = "lock"


class PrivateFolder:
    """One directory for `use`, which is part of its name. Removing it twice is harmless.

    Making one removes those of dead processes first. Raise `NotSupportedHere` on a system without
    file locks, and `OSError` if it cannot be made.
    """

    def __init__(self, use: str) -> None:
        prefix = f"tallystick-{use}-"
        system.require_posix(f"a {use} program")
        _remove_abandoned(Path(tempfile.gettempdir()), prefix)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=prefix))
            self._lock = FileLock(self.path / _LOCK)
            # Between making the lock file and locking it, another process may take the directory
            # for an abandoned one, and remove it.
            with contextlib.suppress(FileNotFoundError):
                self._lock.take(wait_seconds=None)
                return

    def remove(self) -> None:
        """Remove the directory with its content, and release the lock.

        Errors while removing are passed over: what cannot be removed stays.
        """
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.release()


def _remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove the directories whose lock file is this user's and no process has locked.

    One without a lock file may be just being made, so it stays. Errors are passed over.
    """
    for each in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError), proven_free(each / _LOCK) as left:
            if left and os.lstat(each / _LOCK).st_uid == system.user_id():
                shutil.rmtree(each, ignore_errors=True)
