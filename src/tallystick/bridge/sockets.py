"""Where the bridge listens: sockets that only their owner can use, in a private directory."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import tempfile
from asyncio import Task
from dataclasses import dataclass, field
from pathlib import Path

from tallystick.core.errors import UsageError
from tallystick.storage.private_file import make_private

# A private directory for the sockets of bridges, and the client beside them.


CLIENT = "ask.py"
_SOURCE = Path(__file__).with_name("inside") / CLIENT


@dataclass(slots=True)
class BridgeFolder:
    """A private directory for sockets, and the client beside them. Made when it is needed."""

    _path: Path | None = field(default=None)

    @property
    def path(self) -> Path:
        if self._path is None:
            # Short: the path of a socket has at most a hundred bytes.
            self._path = Path(tempfile.mkdtemp(prefix="tally-"))
            shutil.copyfile(_SOURCE, self._path / CLIENT)
            (self._path / CLIENT).chmod(0o644)
            # Programs of root's boxes are nobody's: they pass through, and list nothing.
            self._path.chmod(0o711)
        return self._path

    def close(self) -> None:
        path, self._path = self._path, None
        if path is not None:
            shutil.rmtree(path, ignore_errors=True)


# Where the bridge listens: sockets that only their owner can use, or this machine alone.


_BACKLOG = 128
# What the system has room for, with the byte that ends it.
_PATH_BYTES_MAX = 107


@dataclass(eq=False, kw_only=True)
class Listener:
    """A place where clients connect. With a session, only tokens of that one are taken."""

    sock: socket.socket
    session: str | None
    address: str = ""
    path: Path | None = None
    inode: int = 0
    task: Task[None] | None = None

    def close(self) -> None:
        """Stop listening, and remove the socket if it is still the one that was made here."""
        self.sock.close()
        path, self.path = self.path, None
        if path is not None:
            with contextlib.suppress(OSError):
                if path.lstat().st_ino == self.inode:
                    path.unlink()


def unix_listener(path: Path, *, session: str | None, uid: int | None) -> Listener:
    """Bind a socket with mode 0600. Its directory is made if missing, and has to be private.

    Both are given to `uid`, if that is named: to a sandbox whose programs are another user's.
    """
    if len(os.fsencode(path)) > _PATH_BYTES_MAX:
        raise UsageError(f"bridge: a socket's path has at most {_PATH_BYTES_MAX} bytes: {path}")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _check_private(path.parent, uid)
        sock.bind(str(path))
        # Nobody can connect before it listens.
        path.chmod(0o600)
        if uid is not None:
            os.chown(path, uid, -1)
            os.chown(path.parent, uid, -1)
        sock.listen(_BACKLOG)
        inode = path.lstat().st_ino
    except OSError as error:
        sock.close()
        raise UsageError(f"bridge: {path}: {error.strerror or error}") from error
    except BaseException:
        sock.close()
        raise
    return Listener(sock=sock, session=session, address=f"unix:{path}", path=path, inode=inode)


def tcp_listener(*, session: str | None, port: int) -> Listener:
    """Bind to 127.0.0.1. Port 0 is any that is free."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", port))
        sock.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        sock.close()
        raise UsageError(f"bridge: port {port}: {error}") from error
    found = sock.getsockname()[1]
    return Listener(sock=sock, session=session, address=f"tcp:127.0.0.1:{found}")


def _check_private(directory: Path, uid: int | None) -> None:
    make_private(directory)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise UsageError(f"bridge: {directory} is not a directory")
    if found.st_uid not in (os.geteuid(), uid) or found.st_mode & 0o077:
        raise UsageError(f"bridge: {directory} has to be yours alone (mode 0700)")
