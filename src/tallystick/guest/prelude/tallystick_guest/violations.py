"""What this sandbox does not have, refused by name.

The virtual WASI under the interpreter already answers every such call with an error; that is the
wall. What is here only makes the error say which capability was missing, since "No such file"
sends a program looking for another path. Nothing in this file is relied on for isolation.
"""

import builtins
import importlib.machinery
import io
import os
import socket
import stat
import subprocess
import sys
import tempfile
import urllib.request
import zoneinfo._common
import zoneinfo._tzpath
from collections.abc import Callable

from tallystick_guest import wire

SandboxViolation = wire.SandboxViolation


def _named(base: type[BaseException]) -> type[BaseException]:
    """A violation that code written for `base` also catches."""
    return type(
        "SandboxViolation", (SandboxViolation, base), {"__module__": "builtins", "__slots__": ()}
    )


_Denied = _named(PermissionError)
_NotHere = _named(ModuleNotFoundError)

FILES_READ, FILES_WRITE = "files.read", "files.write"
NETWORK, PROCESS, NATIVE = "network", "process.run", "native.code"

_READS = "lstat listdir scandir readlink statvfs chdir walk fwalk open"
_WRITES = (
    "mkdir makedirs remove unlink rename renames replace rmdir removedirs link symlink truncate "
    "utime chmod chown lchown mkfifo mknod"
)
_PROCESSES = (
    "system popen fork forkpty execv execve execl execle execlp execlpe execvp execvpe "
    "spawnv spawnve spawnl spawnle spawnlp spawnlpe posix_spawn posix_spawnp kill killpg"
)
_SOCKETS = (
    "create_connection create_server getaddrinfo gethostbyname gethostbyname_ex gethostbyaddr "
    "getnameinfo socketpair fromfd"
)

# Standard modules whose native half this interpreter does not have.
_ABSENT = {
    "bz2": NATIVE,
    "lzma": NATIVE,
    "ctypes": NATIVE,
    "compression.bz2": NATIVE,
    "compression.lzma": NATIVE,
    "compression.zstd": NATIVE,
    "ssl": NETWORK,
    "tkinter": "display",
    "turtle": "display",
    "curses": "terminal",
    "readline": "terminal",
    "termios": "terminal",
    "tty": "terminal",
    "pty": "terminal",
    "fcntl": NATIVE,
    "resource": NATIVE,
    "syslog": NATIVE,
    "grp": NATIVE,
    "pwd": NATIVE,
    "mmap": NATIVE,
}


def _violation(what: str, capability: str, base: type[BaseException] = _Denied) -> BaseException:
    return base(f"{what} needs the capability {capability}, which this sandbox lacks", capability)


def _shown(name: str, args: tuple[object, ...]) -> str:
    return f"{name}({str(args[0])[:80]!r})" if args else f"{name}()"


def _refusing(name: str, capability: str, real: object) -> object:
    def refused(*args: object, **kwargs: object) -> object:
        # A descriptor is not a path: the interpreter's own streams have some.
        if real is not None and args and type(args[0]) is int and name != "os.kill":
            return real(*args, **kwargs)
        raise _violation(_shown(name, args), capability)

    refused.__name__ = refused.__qualname__ = name.rpartition(".")[2]
    return refused


def _open(file: object, mode: str = "r", *args: object, **kwargs: object) -> object:
    if type(file) is int:
        return _real_open(file, mode, *args, **kwargs)
    writes = isinstance(mode, str) and any(letter in mode for letter in "wax+")
    if not writes:
        given = _given(file, mode)
        if given is not None:
            return given
    raise _violation(_shown("open", (file,)), FILES_WRITE if writes else FILES_READ)


def _access(path: object, mode: int, *args: object, **kwargs: object) -> bool:
    """Say that a given text can be read, and that nothing else is there."""
    reads = mode & ~(os.F_OK | os.R_OK) == 0
    return reads and _is_given(path)


def _stat(path: object, *args: object, **kwargs: object) -> object:
    """Describe a given text as a file that can only be read, so that programs find it."""
    if type(path) is int:
        return _real_stat(path, *args, **kwargs)
    given = _given(path, "rb")
    if given is None:
        raise _violation(_shown("os.stat", (path,)), FILES_READ)
    size = len(given.getbuffer())
    return os.stat_result((stat.S_IFREG | 0o444, 0, 0, 1, 0, 0, size, 0, 0, 0))


def _is_given(path: object) -> bool:
    return type(path) is not int and _given(path, "r") is not None


def _os_open(path: object, flags: int, *args: object, **kwargs: object) -> int:
    # Reading is a bit of its own here, and part of O_RDWR.
    writes = flags & (os.O_WRONLY | os.O_CREAT)
    raise _violation(_shown("os.open", (path,)), FILES_WRITE if writes else FILES_READ)


class _Popen(subprocess.Popen):
    def __init__(self, args: object, *rest: object, **kwargs: object) -> None:
        raise _violation(_shown("subprocess", (args,)), PROCESS)

    def __del__(self, *args: object, **kwargs: object) -> None:
        pass


class _Socket(socket.socket):
    def __init__(self, *args: object, **kwargs: object) -> None:
        raise _violation("socket()", NETWORK)

    def __del__(self) -> None:
        pass


def _opener_open(self: object, fullurl: object, *args: object, **kwargs: object) -> object:
    url = fullurl if isinstance(fullurl, str) else fullurl.full_url
    if url.startswith("data:"):
        return _real_opener_open(self, fullurl, *args, **kwargs)
    raise _violation(f"urlopen({url[:80]!r})", FILES_READ if url.startswith("file:") else NETWORK)


class _AbsentModules:
    """Says which capability a missing standard module needs."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        capability = _ABSENT.get(name)
        if capability is not None:
            error = _violation(f"import {name}", capability, _NotHere)
            error.name = name
            raise error


_real_open, _real_stat = io.open, os.stat


def _nothing_given(file: object, mode: str) -> object | None:
    return None


_given: Callable[[object, str], object | None] = _nothing_given


def give(opened: Callable[[object, str], object | None]) -> None:
    """Let these texts be opened like files, by the names they were given under."""
    global _given
    _given = opened


_real_opener_open = urllib.request.OpenerDirector.open


def install() -> None:
    """Put the refusals in place. Called once, while the image is made."""
    for names, capability in ((_READS, FILES_READ), (_WRITES, FILES_WRITE), (_PROCESSES, PROCESS)):
        for name in names.split():
            # The walkers catch what scandir raises and yield nothing, which is what they should do.
            if name not in ("walk", "fwalk", "open"):
                real = getattr(os, name, None)
                setattr(os, name, _refusing("os." + name, capability, real))
    os.open, os.access, os.stat = _os_open, _access, _stat
    builtins.open = io.open = _open
    for name in _SOCKETS.split():
        setattr(socket, name, _refusing("socket." + name, NETWORK, None))
    socket.socket = socket.SocketType = _Socket
    subprocess.Popen = _Popen
    urllib.request.OpenerDirector.open = _opener_open
    tempfile.tempdir = "/tmp"
    _install_zones()
    sys.path[:] = []
    sys.path_importer_cache.clear()
    sys.path_hooks[:] = []
    finders = [each for each in sys.meta_path if each is not importlib.machinery.PathFinder]
    # Before the archive: it holds the Python half of modules whose native half is missing.
    sys.meta_path[:] = [*finders[:-1], _AbsentModules(), finders[-1]]


def _install_zones() -> None:
    import marshal
    import zlib

    import zones

    known: dict[str, bytes] = marshal.loads(zlib.decompress(zones.ZONES))

    def load_tzdata(key: str) -> io.BytesIO:
        if key not in known:
            raise zoneinfo.ZoneInfoNotFoundError(f"No time zone found with key {key}")
        return io.BytesIO(known[key])

    zoneinfo._common.load_tzdata = load_tzdata
    zoneinfo.available_timezones = zoneinfo._tzpath.available_timezones = lambda: set(known)
    zoneinfo.TZPATH = ()
    zoneinfo._tzpath.TZPATH = ()
