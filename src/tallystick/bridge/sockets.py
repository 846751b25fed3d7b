"""Make the sockets of the bridge: for their owner alone, in a private directory."""

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
    """A private directory for sockets, with the client beside them. It is made at the first use."""

    _path: Path | None = field(default=None)

    @property
    def path(self) -> Path:
        """The directory, made now with the client in it if it does not exist yet.

        Others may pass through it, but not list it. Raises `OSError` if it cannot be made.
        """
        if self._path is None:
            # A short prefix: the path of a socket has at most about a hundred bytes.
            self._path = Path(tempfile.mkdtemp(prefix="tally-"))
            shutil.copyfile(_SOURCE, self._path / CLIENT)
            (self._path / CLIENT).chmod(0o644)
            # In a sandbox that root made, programs run as the user nobody. This mode lets them
            # pass through the directory, but not list it.
            self._path.chmod(0o711)
        return self._path

    def close(self) -> None:
        """Remove the directory with all that is in it, as far as possible. Harmless if repeated."""
        path, self._path = self._path, None
        if path is not None:
            shutil.rmtree(path, ignore_errors=True)


# Sockets that only their owner can use, or only this machine.


_BACKLOG = 128
# Linux has 108 bytes for the path of a socket, one of which ends it.
_PATH_BYTES_MAX = 107


@dataclass(eq=False, kw_only=True)
class Listener:
    """A socket where clients connect. With a session, only tokens of that one are accepted."""

    sock: socket.socket
    session: str | None
    address: str = ""
    path: Path | None = None
    inode: int = 0
    task: Task[None] | None = None

    def close(self) -> None:
        """Close the socket, and remove its file if it is still the one that was made here.

        The task that accepts connections is left to the caller.
        """
        self.sock.close()
        path, self.path = self.path, None
        if path is not None:
            with contextlib.suppress(OSError):
                if path.lstat().st_ino == self.inode:
                    path.unlink()


def unix_listener(path: Path, *, session: str | None, uid: int | None) -> Listener:
    """Bind a socket with mode 0600. Its directory is made if missing, and has to be private.

    With `uid`, both then belong to that user: to a sandbox whose programs are another user's. Raise
    `UsageError` if the path is too long, the directory is not private, or the system fails.
    """
    if len(os.fsencode(path)) > _PATH_BYTES_MAX:
        raise UsageError(f"bridge: a socket's path has at most {_PATH_BYTES_MAX} bytes: {path}")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    bound = False
    try:
        _check_private(path.parent, uid)
        sock.bind(str(path))
        bound = True
        # The mode is set between bind and listen: nobody can connect before it listens.
        path.chmod(0o600)
        if uid is not None:
            os.chown(path, uid, -1)
            os.chown(path.parent, uid, -1)
        sock.listen(_BACKLOG)
        inode = path.lstat().st_ino
    except BaseException as error:
        sock.close()
        if bound:
            # A file that nobody listens on would refuse the next listener its place.
            path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise UsageError(f"bridge: {path}: {error.strerror or error}") from error
        raise
    return Listener(sock=sock, session=session, address=f"unix:{path}", path=path, inode=inode)


def tcp_listener(*, session: str | None, port: int) -> Listener:
    """Listen on 127.0.0.1. Port 0 is any that is free. Raise `UsageError` if it cannot be bound."""
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
    """Make a directory if it is missing; raise `UsageError` if it is not private.

    It has to be a directory, of this user or `uid`, with no rights for others.

    Raise `OSError` if it cannot be made or looked at.
    """
    make_private(directory)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise UsageError(f"bridge: {directory} is not a directory")
    if found.st_uid not in (os.geteuid(), uid) or found.st_mode & 0o077:
        raise UsageError(f"bridge: {directory} has to be yours alone (mode 0700)")
