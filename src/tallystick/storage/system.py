"""Hide the differences of operating systems: file locks, flags of `open`, and owners of files.

Windows has no `fcntl`, no numbers of users and no permissions that `chmod` sets. Every store in a
file needs them, and is refused there with its name (`require_posix`). Runs in memory need none of
it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from tallystick.core.errors import NotSupportedHere

_fcntl: ModuleType | None
try:
    import fcntl as _fcntl
except ImportError:
    _fcntl = None

# Zero where the system has no such flag: then `open` does what it would do without it.
BINARY: int = getattr(os, "O_BINARY", 0)
CLOEXEC: int = getattr(os, "O_CLOEXEC", 0)
DIRECTORY: int = getattr(os, "O_DIRECTORY", 0)
NOCTTY: int = getattr(os, "O_NOCTTY", 0)
NOFOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
NONBLOCK: int = getattr(os, "O_NONBLOCK", 0)


def is_posix() -> bool:
    """Return True if this system has file locks and owners of files."""
    return _fcntl is not None and hasattr(os, "geteuid")


def require_posix(what: str, *, instead: str = "") -> None:
    """Raise `NotSupportedHere` on a system without file locks and owners of files.

    `instead` is the advice in its message.
    """
    if not is_posix():
        raise NotSupportedHere(what=what, instead=instead)


def is_read_only(path: Path) -> bool:
    """Return True if a file is on a disk that is mounted read-only.

    False if it is not there, if the system cannot tell, and on a system without file locks.
    """
    try:
        return is_posix() and bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def user_id() -> int | None:
    """Return the number of the user that this process acts for, None on a system without them."""
    return os.geteuid() if hasattr(os, "geteuid") else None


def lock(descriptor: int, *, shared: bool = False, wait: bool = True) -> None:
    """Lock an open file until it is closed, and wait if it is locked by another descriptor.

    Without `wait`, raise `OSError` at once instead. A shared lock excludes exclusive ones only.
    Raise `NotSupportedHere` on a system without locks.
    """
    if _fcntl is None:
        raise NotSupportedHere(what="a file that several processes use")
    kind = _fcntl.LOCK_SH if shared else _fcntl.LOCK_EX
    _fcntl.flock(descriptor, kind if wait else kind | _fcntl.LOCK_NB)


def register_at_fork(
    *,
    before: Callable[[], None] = lambda: None,
    after_in_parent: Callable[[], None] = lambda: None,
    after_in_child: Callable[[], None] = lambda: None,
) -> None:
    """Have these called around each fork of this process, from now to its end.

    They cannot be removed. On a system without forks, nothing calls them.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=before, after_in_parent=after_in_parent, after_in_child=after_in_child
        )
