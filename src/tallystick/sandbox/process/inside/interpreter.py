"""Run Python programs in a process that forks for each of them, so that each can be undone.

Between two programs, a waiting process holds the namespace. For each program it forks a copy of
itself. The copy runs the program and, if that ends by itself, holds the namespace from then on. If
the program is stopped from outside, the first process still waits, and nothing has changed. Threads
end with their program, because a fork does not copy them.

Programs find the same names, and run in the same way, as in the WASM guest. Its modules are used,
and only the parts that speak to its host are replaced.
"""

from __future__ import annotations

import _sitebuiltins
import builtins
import importlib
import io
import os
import random
import signal
import socket
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

from tallystick.sandbox.process.inside import archive, kernel, messages
from tallystick.sandbox.process.inside import messages as framing
from tallystick.sandbox.process.inside.confine import leave_descriptors, set_memory
from tallystick.sandbox.process.inside.layers import WORK

_fork, _exit, _dup2, _close, _write = os.fork, os._exit, os.dup2, os.close, os.write
_chdir, _getcwd, _waitpid = os.chdir, os.getcwd, os.waitpid
_socket, _receive, _send, _pair = socket.socket, messages.receive, messages.send, messages.pair
_read_frame, _write_frame = framing.read_frame, framing.write_frame
_set_memory, _leave_descriptors, _ConnectionLost = (
    set_memory,
    leave_descriptors,
    messages.ConnectionLost,
)
_pack_variables, _unpack_variables = archive.pack_variables, archive.unpack_variables
_SPARE_DESCRIPTORS = 16
_BIND, _RUN, _CALL, _RESULT = framing.BIND, framing.RUN, framing.CALL, framing.RESULT
_BaseException, _len = BaseException, len
_random_state, _set_random_state, _seed = random.getstate, random.setstate, random.seed


class _Stream(io.TextIOBase):
    """An unbuffered stdout or stderr: what was printed is kept, no matter how the program ends."""

    encoding = "utf-8"
    errors = "backslashreplace"
    newlines = None
    line_buffering = True

    def __init__(self, descriptor: int, name: str) -> None:
        self._descriptor = descriptor
        self.buffer = _Binary(descriptor, name)
        self.name = name
        self.mode = "w"

    def fileno(self) -> int:
        return self._descriptor

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def close(self) -> None:
        pass

    def reconfigure(self, **settings: object) -> None:
        """Accept the arguments of `TextIOWrapper.reconfigure`, and change nothing."""

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        _write_all(self._descriptor, text.encode("utf-8", "backslashreplace"))
        return _len(text)


class _Binary(io.RawIOBase):
    """The binary stream behind stdout or stderr (`sys.stdout.buffer`)."""

    def __init__(self, descriptor: int, name: str) -> None:
        self._descriptor = descriptor
        self.name = name

    def fileno(self) -> int:
        return self._descriptor

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        pass

    def write(self, data: Any) -> int:  # noqa: ANN401 - as its base says
        whole = bytes(data)
        _write_all(self._descriptor, whole)
        return _len(whole)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[_write(descriptor, view) :]


_out, _err = _Stream(1, "<stdout>"), _Stream(2, "<stderr>")


def _renew() -> None:
    """Install our streams again, because a program may have replaced them."""
    # Our streams have the interface of `TextIO` but not its class, and mypy takes `sys.__stdout__`
    # as final.
    sys.stdout = sys.__stdout__ = _out  # type: ignore[assignment,misc]
    sys.stderr = sys.__stderr__ = _err  # type: ignore[assignment,misc]


def _join_threads() -> None:
    """Wait for the threads that Python itself waits for at its end: those that are not daemons."""
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join()


class _NamedFiles:
    """An `open` that also finds files which were given as data, if no real file has the name."""

    def __init__(self) -> None:
        self.opened: Callable[[object, str], object | None] | None = None

    def give(self, opened: Callable[[object, str], object | None]) -> None:
        """Set the function that opens a given file by name and mode, or returns None."""
        self.opened = opened

    def install(self) -> None:
        """Replace `open` in `builtins` and `io`."""
        real = io.open

        def open(file: object, mode: str = "r", *args: object, **kwargs: object) -> object:
            try:
                # Not checked here: the real `open` refuses what it does not take.
                return real(file, mode, *args, **kwargs)  # type: ignore[call-overload]
            except FileNotFoundError:
                found = self.opened(file, mode) if self.opened and mode[:1] == "r" else None
                if found is None:
                    raise
                return found

        open.__module__ = "io"
        # It takes what the real `open` takes, but does not repeat its overloads.
        builtins.open = io.open = open  # type: ignore[assignment]


class _Guest:
    """The modules of the guest, over a connection to the host."""

    def __init__(self) -> None:
        self.cell: Any = None
        self.wire: Any = None
        self.channel: socket.socket | None = None

    def load(self, prelude: str) -> None:
        """Import the guest's modules, with stand-ins for those that need WebAssembly."""
        given = _NamedFiles()
        given.install()
        absent = types.SimpleNamespace(call=None, take=None, stdio=None)
        stand_ins: dict[str, dict[str, object]] = {
            "wit_world": {},
            "wit_world.imports": {"host": absent},
            "tallystick_guest.streams": {"renew": _renew, "flush": _renew, "windows": list},
            "tallystick_guest.threads": {"drain": _join_threads},
            "tallystick_guest.violations": {"give": given.give},
        }
        sys.path.insert(0, prelude)
        package = importlib.import_module("tallystick_guest")
        for name, content in stand_ins.items():
            module = types.ModuleType(name)
            module.__dict__.update(content)
            sys.modules[name] = module
            if name.startswith("tallystick_guest."):
                setattr(package, name.partition(".")[2], module)
        self.cell = importlib.import_module("tallystick_guest.cell")
        self.wire = importlib.import_module("tallystick_guest.wire")
        sys.path.remove(prelude)
        self.wire.call_raw = self._call

    def settle(self) -> None:
        """Bring the interpreter into the state in which every session starts."""
        # Programs can import what is in `sys.modules`, and our own modules are not for them.
        for name in [*sys.modules]:
            if name.split(".")[0] in ("tallystick_guest", "wit_world", "tallystick"):
                del sys.modules[name]
        builtins.help = _sitebuiltins._Helper()
        self.cell.settle()

    def _call(self, request: bytes) -> bytes:
        assert self.channel is not None
        _write_frame(self.channel, _CALL, request)
        return _read_frame(self.channel)[1]

    def run(self, channel: socket.socket, where: str | None) -> None:
        """Serve the frames that the host sends for one program, up to its result.

        An error of the program is a result too. Raise `EOFError` or `OSError` if the host is gone.
        """
        self.channel = channel
        while True:
            kind, body = _read_frame(channel)
            if kind == _BIND:
                self.cell.bind(body)
                continue
            try:
                if where is not None:
                    _chdir(where)
                result = self.cell.run(body)
            except _BaseException as error:
                result = self.cell.failure_of(error)
            _write_frame(channel, _RESULT, self.wire.dumps(result).encode("utf-8", "replace"))
            self.channel = None
            return


_guest = _Guest()


def load(prelude: str) -> None:
    """Import everything that a session needs, once, in the process that all sessions fork."""
    _guest.load(prelude)
    _guest.settle()


def serve(control: socket.socket, *, packages: list[str]) -> None:
    """Hold the namespace of a session and take orders on `control`. Never return."""
    kernel.set_name("python")
    sys.path += packages
    _guest.cell.boot(b"{}")
    sys.path_importer_cache.clear()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _wait_and_copy(control)


def _wait_and_copy(control: socket.socket) -> None:
    """Wait for orders, and fork for each but "status". The copy may wait here in turn.

    If no process can be forked, answer "cannot" and wait on. If the connection is closed, end this
    process. A copy that fails ends itself, with exit code 70.
    """
    where = WORK
    while True:
        try:
            message, descriptors = _receive(control)
        except _ConnectionLost:
            _exit(0)
        if message["do"] == "status":
            _send(control, {"status": _status(message["of"])})
            continue
        state = _random_state()
        try:
            copy = _fork()
        except OSError:
            copy = -1  # Not 0: this process goes on as the one that waits.
            _send_on(descriptors[0], {"cannot": True})
        if copy:
            for each in descriptors:
                _close(each)
            continue
        try:
            # A fork seeds `random` anew, but a program must draw the numbers that come next in its
            # namespace.
            _set_random_state(state)
            control.close()
            control = _socket(fileno=descriptors[0])
            where = _run_copy(control, message, descriptors, where)
        except _BaseException:
            _exit(70)


def _run_copy(
    control: socket.socket, message: dict[str, Any], descriptors: list[int], where: str
) -> str:
    """Carry out the order for which the copy was made. Return the directory it ends in.

    Afterwards the copy holds the namespace and waits for orders. One that packs variables ends.
    """
    what = message["do"]
    if what == "run":
        where = _enter_directory(where)
    # The keeper gets our process id with this message, from the kernel.
    _send(control, {"here": True})
    if what == "pack_variables":
        _pack(descriptors[1])
    elif what == "unpack_variables":
        _unpack(descriptors[1])
    elif what == "run":
        where = _run(message, descriptors, where)
        # A process that waits must not be in the working directory: it would keep a mount in use
        # after a restore has replaced it.
        _chdir("/")
    if what != "copy":
        _send(control, {"idle": True})
    return where


def _pack(descriptor: int) -> None:
    """Write the variables that can be kept to a descriptor, and end this process."""
    data = _pack_variables(_guest.cell._names, _guest.cell._injected)
    with open(descriptor, "wb") as file:
        file.write(data)
    _exit(0)


def _unpack(descriptor: int) -> None:
    with open(descriptor, "rb") as file:
        _unpack_variables(file.read(), _guest.cell._names)


def _send_on(descriptor: int, message: dict[str, Any]) -> None:
    connection = _socket(fileno=descriptor)
    try:
        _send(connection, message)
    finally:
        connection.detach()


def _status(process: int) -> int | None:
    """Return how a copy ended; None if it has not ended, or is not a child of this process."""
    try:
        found, status = _waitpid(process, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if found else None


def _enter_directory(where: str) -> str:
    """Enter a directory by its path, or else the working directory. Return the one entered.

    If neither can be entered, stay, and return `where`.
    By its path, because a restore may have replaced the mount under it.
    """
    for place in (where, WORK):
        try:
            _chdir(place)
            return place
        except OSError:
            continue
    return where


def _run(message: dict[str, Any], descriptors: list[int], where: str) -> str:
    """Run one program with its streams and limits. Return its directory at the end.

    Return `where` if that directory is gone. Afterwards, this process writes to /dev/null.
    """
    _, channel, out, err = descriptors
    _dup2(out, 1)
    _dup2(err, 2)
    _close(out)
    _close(err)
    _set_memory(message["memory_bytes"])
    _leave_descriptors(_SPARE_DESCRIPTORS)
    if message["seed"] is not None:
        _seed(message["seed"])
    with _socket(fileno=channel) as connection:
        _guest.run(connection, message["where"])
    _leave_descriptors(0)
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    _dup2(null, 1)
    _dup2(null, 2)
    _close(null)
    try:
        return _getcwd()
    except OSError:
        return where
