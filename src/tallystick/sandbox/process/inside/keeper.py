"""The keeper: the first process of a box, which starts and ends everything in it.

When it ends, the kernel ends all the others: nothing in a box outlives its keeper, and the keeper
ends when the host's end of its connection does. It alone keeps the capabilities of the box, to lay
layers; programs can neither signal it nor look into it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from tallystick.sandbox.process.inside import archive, interpreter, messages, shell
from tallystick.sandbox.process.inside.confine import Confinement
from tallystick.sandbox.process.inside.layers import Held, WorkingDirectory
from tallystick.sandbox.process.inside.messages import Torn
from tallystick.sandbox.process.inside.process import (
    ANSWER_SECONDS,
    Full,
    Process,
    copy_of,
    processes,
    reap,
    resident_bytes,
    shared_out_bytes,
    start,
    sweep,
)

_WATCH_MS = 100
_ROOM = 16
_FILES_SECONDS = 60.0
_TRIES = 50
_MOMENT_SECONDS = 0.01


class Keeper:
    """Does what the host asks, one thing at a time."""

    def __init__(
        self,
        host: socket.socket,
        *,
        working: WorkingDirectory,
        confinement: Confinement,
        packages: list[str],
        memory_total_bytes: int,
    ) -> None:
        self._host = host
        self._working = working
        self._confinement = confinement
        self._packages = packages
        self._memory_total = memory_total_bytes
        self._now: Process | None = None
        self._next: Process | None = None
        self._shell: Process | None = None
        self._commanding = False
        self._frozen: dict[str, Process | None] = {}
        self._before: frozenset[int] = frozenset()
        self._leaving: Process | None = None
        self._lost = False
        self._wakes = -1
        self._watching = False
        self._watched = 0.0
        self._too_much = False

    def serve(self) -> None:
        """Work until the host goes."""
        self._wakes, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._now = self._start(self._interpret)
        messages.send(self._host, {"ready": True})
        while True:
            ready = self._poll()
            if self._wakes in ready:
                os.read(self._wakes, 4096)
                reap()
            self._watch()
            if self._shell is not None and self._shell.control.fileno() in ready:
                self._command_ended()
            if self._host.fileno() in ready:
                try:
                    message, descriptors = messages.receive(self._host)
                except Torn:
                    return
                try:
                    self._do(message, descriptors)
                finally:
                    messages.close_quietly(descriptors)

    def _poll(self) -> set[int]:
        poll = select.poll()
        poll.register(self._host, select.POLLIN)
        poll.register(self._wakes, select.POLLIN)
        if self._shell is not None:
            poll.register(self._shell.control, select.POLLIN)
        return {each for each, _ in poll.poll(_WATCH_MS if self._watching else None)}

    def _ours(self) -> set[int]:
        known = [self._now, self._shell, *self._frozen.values()]
        return {each.pid for each in known if each is not None}

    def _do(self, message: dict[str, Any], descriptors: list[int]) -> None:
        match message["do"]:
            case "run":
                self._run(message, descriptors)
            case "command":
                self._command(descriptors)
            case "keep":
                messages.send(self._host, {"kept": self._keep()})
            case "drop":
                messages.send(self._host, self._drop())
            case "freeze" | "restore" | "forget" as what:
                messages.send(self._host, self._states(what, message["name"]))
            case "pack_variables" | "unpack_variables":
                self._variables(message["do"], descriptors)
            case "pack_files":
                messages.send(self._host, self._files(archive.pack_files, descriptors))
            case "unpack_files":
                messages.send(self._host, self._files(archive.unpack_files, descriptors))
            case "listen":
                self._listen(message["port"])

    # -- processes of ours ---------------------------------------------------------------------

    def _interpret(self, control: socket.socket) -> None:
        interpreter.serve(control, packages=self._packages)

    def _start(self, work: Callable[[socket.socket], None]) -> Process:
        return start(work, self._confinement)

    # -- programs ------------------------------------------------------------------------------

    def _run(self, message: dict[str, Any], descriptors: list[int]) -> None:
        """Begin a program. If the namespace is gone, it is begun in a new one, and that is said."""
        swept = self._make_room()
        order = {key: message[key] for key in ("do", "memory_bytes", "where", "seed")}
        for _ in range(_TRIES):
            if self._now is None:
                self._now = self._start(self._interpret)
                self._before |= {self._now.pid}
            try:
                self._next = copy_of(self._now, order, descriptors)
            except Full:
                # Those that were ended may take a moment to be gone.
                self._before, swept = frozenset(self._ours()), True
                self._sweep()
                time.sleep(_MOMENT_SECONDS)
                continue
            except Torn:
                if self._lost:
                    break
                self._lose()
                continue
            messages.send(self._host, {"begun": True, "lost": self._lost, "swept": swept})
            self._lost = False
            return
        messages.send(self._host, {"begun": False})

    def _make_room(self) -> bool:
        """Note what is there before a program; end it if it leaves the program no processes.

        A bomb that went off in the background would otherwise be the last thing in the session.
        """
        self._watching, self._too_much = True, False
        found = processes()
        full = sum(found.values()) > self._confinement.processes_max - _ROOM
        self._before = frozenset(self._ours() if full else found)
        if full:
            self._sweep()
        return full

    def _lose(self) -> None:
        """The namespace is gone: a program has ended the process that was it."""
        if self._now is not None:
            self._now.end()
        self._now, self._lost = None, True

    def _keep(self) -> bool:
        """The program ended by itself: its interpreter is the namespace now, if it waits again."""
        if self._next is None:
            return False
        try:
            messages.receive_plain(self._next.control)
        except Torn:
            return False
        if self._now is not None:
            self._now.end()
        self._leaving, self._now, self._next = self._now, self._next, None
        return True

    def _drop(self) -> dict[str, Any]:
        """End what the program or command began, whatever it has become."""
        if self._next is not None:
            self._next.control.close()
        self._sweep()
        status = self._status_of_next()
        self._next = None
        if self._commanding and self._shell is not None:
            with contextlib.suppress(Torn):
                messages.receive_plain(self._shell.control)
        self._commanding = False
        return {"dropped": True, "status": status, "memory": self._too_much}

    def _status_of_next(self) -> int | None:
        if self._next is None or self._now is None:
            return None
        try:
            messages.send(self._now.control, {"do": "status", "of": self._next.pid})
            status = messages.receive_plain(self._now.control).get("status")
        except Torn:
            self._lose()
            return None
        return status if isinstance(status, int) else None

    def _sweep(self) -> None:
        sweep(self._before)

    # -- commands ------------------------------------------------------------------------------

    def _command(self, descriptors: list[int]) -> None:
        """Begin a command. The shell is started with the first one, and again if it was ended."""
        self._make_room()
        for _ in range(2):
            if self._shell is None:
                self._shell = self._start(shell.serve)
            self._before |= {self._shell.pid}
            try:
                messages.send(self._shell.control, {"do": "command"}, descriptors)
            except Torn:
                self._shell.end()
                self._shell = None
                continue
            self._commanding = True
            return
        messages.send(self._host, {"ended": -1, "memory": False})

    def _command_ended(self) -> None:
        assert self._shell is not None
        try:
            status = messages.receive_plain(self._shell.control).get("ended")
        except Torn:
            self._shell.end()
            self._shell = None
            status = -int(signal.SIGKILL)
        if self._commanding:
            self._commanding = False
            told = status if isinstance(status, int) else -1
            messages.send(self._host, {"ended": told, "memory": self._too_much})

    # -- states --------------------------------------------------------------------------------

    def _states(self, what: str, name: str) -> dict[str, Any]:
        try:
            if what == "freeze":
                self._freeze(name)
            elif what == "restore":
                self._restore(name)
            else:
                self._working.forget(name)
                copy = self._frozen.pop(name, None)
                if copy is not None:
                    copy.end()
        except Held as error:
            return {"done": False, "held": str(error)}
        except OSError as error:
            return {"done": False, "why": f"{error.strerror or error}"}
        return {"done": True}

    def _freeze(self, name: str) -> None:
        copy = self._copied(self._now)
        if copy is None and self._now is not None:
            raise OSError(errno.EAGAIN, "the interpreter could not be copied")
        self._gone(self._leaving)
        try:
            self._working.freeze(name)
        except BaseException:
            if copy is not None:
                copy.end()
            raise
        self._frozen[name] = copy

    def _restore(self, name: str) -> None:
        kept = self._frozen[name]
        alive = {each.pid for each in self._frozen.values() if each is not None}
        if self._shell is not None:
            alive.add(self._shell.pid)
        self._before = frozenset(alive)
        self._sweep()
        if self._now is not None:
            self._now.end()
        self._gone(self._now)
        self._working.restore(name)
        self._now = self._copied(kept)
        self._lost = self._now is None

    def _gone(self, process: Process | None) -> None:
        """Wait for the end of one that was ended: until then it holds what it had open."""
        until = time.monotonic() + ANSWER_SECONDS
        while process is not None and process.pid in processes() and time.monotonic() < until:
            time.sleep(0.0005)

    def _copied(self, process: Process | None) -> Process | None:
        if process is None:
            return None
        try:
            return copy_of(process, {"do": "copy"}, [])
        except (Torn, Full):
            return None

    # -- to and from the host's disk -----------------------------------------------------------

    def _variables(self, what: str, descriptors: list[int]) -> None:
        """Have a copy of the interpreter give its variables, or take some and be the next."""
        self._make_room()
        copy = None
        with contextlib.suppress(Torn, Full):
            if self._now is not None:
                copy = copy_of(self._now, {"do": what}, descriptors)
        if what == "unpack_variables":
            self._next = copy
            messages.send(self._host, {"begun": copy is not None})
        elif copy is not None:
            copy.control.close()

    def _files(
        self, work: Callable[[socket.socket], None], descriptors: list[int]
    ) -> dict[str, Any]:
        self._make_room()
        process = self._start(work)
        process.control.settimeout(_FILES_SECONDS)
        try:
            messages.send(process.control, {}, descriptors)
            messages.close_quietly(descriptors)
            descriptors.clear()
            return messages.receive_plain(process.control)
        except Torn:
            return {"packed": False, "unpacked": False, "why": "it was ended"}
        finally:
            process.end()

    # -- the rest ------------------------------------------------------------------------------

    def _watch(self) -> None:
        """End everything in the box that is not ours when all of it holds too much memory.

        Looked at ten times a second while anything of a program runs, or was left by one.
        """
        now = time.monotonic()
        if not self._watching or now - self._watched < _WATCH_MS / 1000:
            return
        self._watched = now
        if resident_bytes() > self._memory_total and shared_out_bytes() > self._memory_total:
            self._before = frozenset(self._ours())
            self._sweep()
            self._too_much = True
        active = self._next is not None or self._commanding
        self._watching = active or not self._ours() >= processes().keys()

    def _listen(self, port: int) -> None:
        """Hand the host a socket that listens inside: what connects to it came from the box."""
        with socket.create_server(("127.0.0.1", port)) as listening:
            messages.send(self._host, {"listening": True}, [listening.fileno()])
