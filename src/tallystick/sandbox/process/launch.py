"""Start the launcher process, let it make boxes, and end them; the host's side of both."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from tallystick.core.errors import NotSupported, SandboxError
from tallystick.sandbox.process.inside import messages

_START_SECONDS = 30.0
_OPEN_SECONDS = 30.0
_END_SECONDS = 5.0
_SAID_CHARS_MAX = 2_000
# The whole environment of the launcher, and so of every box.
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "MALLOC_ARENA_MAX": "2"}


class Box:
    """A running box: the connection to its keeper, and a pipe (`life`) that closes at its end.

    `waiter` is the id of the process outside of the box that waits for its end.
    """

    def __init__(self, keeper: socket.socket, life: int, waiter: int) -> None:
        self._keeper = keeper
        self._life = life
        self.waiter = waiter
        self._closed = False

    @property
    def keeper(self) -> socket.socket:
        return self._keeper

    def send(self, message: Mapping[str, Any], descriptors: Iterable[int] = ()) -> None:
        """Send a message to the keeper. Raise `SandboxError` if the connection is closed.

        The descriptors stay open here.
        """
        try:
            messages.send(self._keeper, message, descriptors)
        except messages.ConnectionLost as error:
            raise SandboxError(f"the box is gone: {error}") from None

    def receive(self, *wanted: str) -> tuple[dict[str, Any], list[int]]:
        """Return the next message with one of these keys, and its descriptors.

        Other messages are dropped: they are late answers. The caller closes the descriptors. Raise
        `SandboxError` if the connection is closed, if no message comes within 30 s, or if the
        message reports that the box could not be made.
        """
        while True:
            try:
                message, descriptors = messages.receive(self._keeper)
            except messages.ConnectionLost as error:
                raise SandboxError(f"the box is gone: {error}") from None
            if "problem" in message:
                raise SandboxError(f"the box could not be made: {message['problem']}")
            if any(key in message for key in wanted):
                return message, descriptors
            messages.close_quietly(descriptors)

    @property
    def ended(self) -> bool:
        """True if every process in the box has ended."""
        return self._closed or _readable(self._life, 0.0)

    def close(self) -> None:
        """End every process in the box, and wait for their end. Closing twice is harmless.

        The keeper has 5 s to end by itself; then its waiter is killed, and with it the box.
        """
        if self._closed:
            return
        self._keeper.close()
        if not _readable(self._life, _END_SECONDS):
            # The keeper does not react. While the waiter holds its end of `life` open, it is alive,
            # so its process id cannot belong to another process.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.waiter, signal.SIGKILL)
            _readable(self._life, _END_SECONDS)
        self._closed = True
        os.close(self._life)


def _readable(descriptor: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | select.POLLHUP)
    return bool(poll.poll(seconds * 1000))


class Launcher:
    """One launcher process, which starts when it is first needed. Use it from any thread."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._found: dict[str, str | None] = {}
        self._root = False
        self._guard = threading.Lock()

    def start(self) -> Mapping[str, str | None]:
        """Start the launcher if it does not run. Return each layer with None, or why it is missing.

        Raise `NotSupported` on other systems than Linux, `SandboxError` if it does not answer
        within 30 s, and `OSError` if Python cannot be started.
        """
        with self._guard:
            self._connect()
            return self._found

    @property
    def root(self) -> bool:
        """True if the launcher runs as root; False until it was started."""
        return self._root

    @property
    def pid(self) -> int | None:
        """The process id of the launcher, None if it was not started."""
        return None if self._process is None else self._process.pid

    def open(self, order: Mapping[str, Any]) -> Box:
        """Make a box, and return it when its keeper is ready. Raise `SandboxError` if that fails.

        `order` is a message of `settings.order_of`. Start the launcher if it does not run; raise
        what `start` raises. The keeper has 30 s to be ready. A box that fails is closed.
        """
        ours, theirs = messages.pair()
        life, alive = os.pipe2(os.O_CLOEXEC)
        try:
            with self._guard:
                connection = self._connect()
                try:
                    messages.send(connection, order, [theirs.fileno(), alive])
                    answer, _ = messages.receive(connection)
                except messages.ConnectionLost as error:
                    self._stop()
                    raise SandboxError(f"the launcher is gone: {error}") from None
        except BaseException:
            ours.close()
            os.close(life)
            raise
        finally:
            theirs.close()
            os.close(alive)
        box = Box(ours, life, answer["pid"])
        try:
            if answer["problem"] is not None:
                raise SandboxError(f"the box could not be made: {answer['problem']}")
            ours.settimeout(_OPEN_SECONDS)
            box.receive("ready")
        except BaseException:
            box.close()
            raise
        return box

    def close(self) -> None:
        """End the launcher, and with it every box. Closing twice is harmless.

        It has 5 s to end by itself; then it is killed. A later `start` or `open` starts another.
        """
        with self._guard:
            self._stop()

    def _connect(self) -> socket.socket:
        """Return the connection to the launcher; start it if it does not run.

        Raise what `start` raises. The caller holds the lock.
        """
        if self._socket is not None and self._process is not None and self._process.poll() is None:
            return self._socket
        self._stop()
        if sys.platform != "linux":
            raise NotSupported(backend="process", operation=f"{sys.platform}: it needs Linux")
        ours, theirs = messages.pair()
        with resources.as_file(resources.files("tallystick")) as package, theirs:
            inside = Path(package) / "sandbox" / "process" / "inside" / "launcher.py"
            prelude = Path(package) / "guest" / "prelude"
            python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
            self._process = subprocess.Popen(
                [python, "-I", "-S", str(inside), str(theirs.fileno()), str(prelude)],
                pass_fds=[theirs.fileno()],
                env=_ENVIRONMENT,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        ours.settimeout(_START_SECONDS)
        self._socket = ours
        try:
            hello, _ = messages.receive(ours)
        except messages.ConnectionLost as error:
            said = self._read_stderr()
            self._stop()
            raise SandboxError(f"the launcher did not start: {said or error}") from None
        self._found, self._root = hello["found"], hello["root"]
        return ours

    def _read_stderr(self) -> str:
        """Kill a launcher that did not start, and return the end of its stderr."""
        assert self._process is not None
        assert self._process.stderr is not None
        self._process.kill()
        return self._process.stderr.read().decode("utf-8", "replace")[-_SAID_CHARS_MAX:].strip()

    def _stop(self) -> None:
        """End the launcher, if it runs. It ends when its connection closes; after 5 s, kill it."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stderr is not None:
            process.stderr.close()
