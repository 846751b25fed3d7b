"""The keeper: the first process of a box, which starts and ends everything in it.

When it ends, the kernel ends all the others: nothing in a box outlives its keeper, and the keeper
ends when the host's end of its connection does. It alone keeps the capabilities of the box, to lay
layers; programs can neither signal it nor look into it.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from tallystick.sandbox.process.inside import (
    archive,
    interpreter,
    messages,
    shell,
)
from tallystick.sandbox.process.inside.confine import Confinement
from tallystick.sandbox.process.inside.layers import Held, WorkingDirectory
from tallystick.sandbox.process.inside.messages import Torn
from tallystick.sandbox.process.inside.process import (
    ANSWER_SECONDS,
    Full,
    Process,
    any_in,
    continue_all,
    copy_of,
    processes,
    reap,
    start,
    stop_all,
    sweep,
)
from tallystick.sandbox.process.inside.watch import memory, scheduling

# How long the keeper may not look. The nearer the limit, the sooner it looks again: a processor
# fills about this much memory in a second.
_LOOK_SECONDS_MAX = 0.1
_LOOK_SECONDS_MIN = 0.004
_FILLED_BYTES_PER_SECOND = 6 << 30
# When little room is left and it becomes less, everything is stopped whenever the keeper looks, and
# goes on only for moments. The last of the room is kept for what is filled in such a moment.
_LITTLE_ROOM_BYTES = 64 << 20
_FILLED_BYTES = 1 << 20
_FILLING_LOOKS = 10
_FILLING_SECONDS_MIN = 0.0005
_ROOM_SHARE_KEPT = 32
# More busy tasks than this leave the host too little of the processor to see that their time is
# over. So they are stopped whenever the keeper looks.
_CROWD = max(32, 8 * (os.cpu_count() or 1))
_CROWDED_LOOKS = 5
# How long processes are waited for to stop: all of them, and those that only need the processor.
_STOP_SECONDS = 0.1
_STOP_SECONDS_MAX = 2.0
# For how many times as long as it took a count is used.
_COUNT_SHARE = 10
_POSTPONED_SECONDS = 0.02
_ROOM = 16
# What a process of ours does with the files, and in how many seconds at most.
_FILE_WORK: dict[str, tuple[Callable[[socket.socket], None], float]] = {
    "pack_files": (archive.pack_files, 60.0),
    "unpack_files": (archive.unpack_files, 60.0),
    "list_files": (archive.list_files, 20.0),
}
_TRIES = 50
_MOMENT_SECONDS = 0.01


class _Counted(NamedTuple):
    """What was found when memory was counted exactly: the room that was left, and from then on."""

    room: int
    others: int
    growth: memory.Growth
    valid_until: float


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
        self._look_at = 0.0
        # The limit of the last program or command, for everything in the box.
        self._memory = memory_total_bytes
        # The limit that was passed, and the one that there is least room below.
        self._passed: int | None = None
        self._tightest = memory_total_bytes
        self._postponed: list[memory.Request] = []
        self._counted: _Counted | None = None
        # Since when everything is being stopped.
        self._stopping: float | None = None
        # How often the keeper still looks as if there were a crowd: who is stopped looks idle.
        self._crowded = 0
        # The same for a box that fills the last of its memory, and the room at the last look.
        self._filling = 0
        self._room = 0
        self._mappings = memory.SharedMappings()
        self._sockets = memory.SocketBuffers()
        self._listeners: dict[int, socket.socket | None] = {}
        self._niceness = os.getpriority(os.PRIO_PROCESS, 0)

    def serve(self) -> None:
        """Work until the host goes."""
        self._wakes, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        scheduling.run_first()
        self._now = self._start(self._interpret)
        messages.send(self._host, {"ready": True})
        while True:
            ready = self._poll()
            if self._wakes in ready:
                os.read(self._wakes, 4096)
                reap()
            self._listen_to(ready)
            self._watch()
            if self._shell is not None and self._shell.control.fileno() in ready:
                self._command_ended()
            if self._host.fileno() in ready:
                try:
                    message, descriptors = messages.receive(self._host)
                except Torn:
                    return
                # What the host wants may need an answer from one of those that were stopped.
                self._continue()
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
        for descriptor in self._listeners:
            poll.register(descriptor, select.POLLIN)
        rest = max(0.0, self._look_at - time.monotonic()) if self._watching else None
        return {each for each, _ in poll.poll(None if rest is None else math.ceil(rest * 1000))}

    def _answer_of(self, process: Process, seconds: float = ANSWER_SECONDS) -> dict[str, Any]:
        """Return the next message of a process, and meanwhile let others have shared memory.

        The process itself may be waiting for that. Raises `Torn` if none comes in time.
        """
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            poll = select.poll()
            for descriptor in (process.control.fileno(), *self._listeners):
                poll.register(descriptor, select.POLLIN)
            ready = {each for each, _ in poll.poll(max(0.0, until - time.monotonic()) * 1000)}
            if process.control.fileno() in ready:
                return messages.receive_plain(process.control)
            self._listen_to(ready)
        raise Torn("no answer in time")

    def _ours(self) -> set[int]:
        known = [self._now, self._shell, *self._frozen.values()]
        return {each.pid for each in known if each is not None}

    def _do(self, message: dict[str, Any], descriptors: list[int]) -> None:
        match message["do"]:
            case "run":
                self._run(message, descriptors)
            case "command":
                self._command(message, descriptors)
            case "keep":
                messages.send(self._host, {"kept": self._keep()})
            case "drop":
                messages.send(self._host, self._drop())
            case "freeze" | "restore" | "forget" as what:
                messages.send(self._host, self._states(what, message["name"]))
            case "pack_variables" | "unpack_variables":
                self._variables(message["do"], descriptors)
            case "pack_files" | "unpack_files" | "list_files" as what:
                messages.send(self._host, self._files(what, message, descriptors))
            case "listen":
                self._listen(message["port"])

    # -- processes of ours ---------------------------------------------------------------------

    def _interpret(self, control: socket.socket) -> None:
        interpreter.serve(control, packages=self._packages)

    def _start(self, work: Callable[[socket.socket], None]) -> Process:
        process, listens = start(work, self._confinement, niceness=self._niceness)
        self._listeners[listens.fileno()] = listens
        return process

    # -- programs ------------------------------------------------------------------------------

    def _run(self, message: dict[str, Any], descriptors: list[int]) -> None:
        """Begin a program. If the namespace is gone, it is begun in a new one, and that is said."""
        swept = self._make_room(message["memory_bytes"])
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

    def _make_room(self, memory_bytes: int | None = None) -> bool:
        """Note what is there before a program; end it if it leaves the program no processes.

        A bomb that went off in the background would otherwise be the last thing in the session.
        """
        self._watching, self._passed, self._counted = True, None, None
        self._memory = min(memory_bytes or self._memory_total, self._memory_total)
        self._look_at = time.monotonic() + self._rest(self._memory)
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
            self._answer_of(self._next)
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
                self._answer_of(self._shell)
        self._commanding = False
        return {"dropped": True, "status": status, "memory": self._passed}

    def _status_of_next(self) -> int | None:
        if self._next is None or self._now is None:
            return None
        try:
            messages.send(self._now.control, {"do": "status", "of": self._next.pid})
            status = self._answer_of(self._now).get("status")
        except Torn:
            self._lose()
            return None
        return status if isinstance(status, int) else None

    def _sweep(self) -> None:
        sweep(self._before)

    # -- commands ------------------------------------------------------------------------------

    def _command(self, message: dict[str, Any], descriptors: list[int]) -> None:
        """Begin a command. The shell is started with the first one, and again if it was ended."""
        self._make_room(message["memory_bytes"])
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
        messages.send(self._host, {"ended": -1, "memory": None})

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
            messages.send(self._host, {"ended": told, "memory": self._passed})

    # -- states --------------------------------------------------------------------------------

    def _states(self, what: str, name: str) -> dict[str, Any]:
        # Files may be many, and copying them is no reason to keep others from the processor.
        scheduling.run_as_others(self._niceness)
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
        finally:
            scheduling.run_first()
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

    def _files(self, what: str, order: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        work, seconds = _FILE_WORK[what]
        self._make_room()
        process = self._start(work)
        try:
            messages.send(process.control, order, descriptors)
            messages.close_quietly(descriptors)
            descriptors.clear()
            return self._answer_of(process, seconds)
        except Torn:
            return {"packed": False, "unpacked": False, "why": "it was ended"}
        finally:
            process.end()

    # -- the rest ------------------------------------------------------------------------------

    def _watch(self) -> None:
        """End everything in the box that is not ours when all of it holds too much memory.

        Looked at while anything of a program runs, or was left by one.
        """
        began = time.monotonic()
        if not self._watching or began < self._look_at:
            return
        if self._crowded or self._filling:
            # Looking alone would take long: there are many of them, and they take the processor.
            self._has_stopped(began)
            self._crowded, self._filling = max(0, self._crowded - 1), max(0, self._filling - 1)
        found = memory.tasks()
        room = self._quick_room(found)
        if sum(task.busy for task in found.values()) > _CROWD:
            self._crowded = _CROWDED_LOOKS
        if room < 0 and self._counted is not None and began < self._counted.valid_until:
            room = self._counted.room - self._counted.growth.since(found)
            room -= self._others() - self._counted.others
        if room < 0 or self._crowded:
            if not self._has_stopped(began):
                self._look_at = time.monotonic() + _LOOK_SECONDS_MIN
                return
            room = self._exact_room(found)
            if room < 0:
                self._end_for_memory()
                found = {pid: task for pid, task in found.items() if pid in self._before}
                room = self._memory
            else:
                now = time.monotonic()
                self._counted = _Counted(
                    room=room,
                    others=self._others(),
                    growth=memory.Growth(found),
                    valid_until=now + max(_LOOK_SECONDS_MAX, _COUNT_SHARE * (now - began)),
                )
        self._continue()
        active = self._next is not None or self._commanding
        self._watching = active or not self._ours() >= found.keys()
        if room < _LITTLE_ROOM_BYTES and room < self._room - _FILLED_BYTES:
            self._filling = _FILLING_LOOKS
        self._room = room
        self._look_at = time.monotonic() + self._rest(room)
        postponed, self._postponed = self._postponed, []
        for request in postponed:
            self._decide(request)

    def _has_stopped(self, now: float) -> bool:
        """Stop everything in the box, and return whether it has stopped.

        Counting exactly takes a while, in which they could fill as much again. And it waits for
        locks, which a process may hold that others keep from the processor. A process that waits in
        the kernel cannot be stopped, and holds no such lock for long.
        """
        if self._stopping is None:
            self._stopping = now
        stop_all()
        seconds = now - self._stopping
        if seconds > _STOP_SECONDS_MAX:
            return True
        return not any_in(b"RD" if seconds < _STOP_SECONDS else b"R")

    def _continue(self) -> None:
        if self._stopping is not None:
            self._stopping = None
            continue_all()

    def _host_speaks(self) -> bool:
        """Return whether the host has sent a message."""
        poll = select.poll()
        poll.register(self._host, select.POLLIN)
        return bool(poll.poll(0))

    def _rest(self, room: int) -> float:
        """Return in how many seconds this much memory could be full."""
        seconds = room / (_FILLED_BYTES_PER_SECOND * (os.cpu_count() or 1))
        least = _FILLING_SECONDS_MIN if self._filling else _LOOK_SECONDS_MIN
        return min(max(seconds, least), _LOOK_SECONDS_MAX)

    def _parts(self, found: Collection[int]) -> tuple[tuple[int, Collection[int]], ...]:
        """Return each limit with the processes that it is for.

        What the box keeps to go back to counts only for the limit of the session: a program is not
        ended because there are snapshots, or because it changes all that it was given.
        """
        kept = {each.pid for each in self._frozen.values() if each is not None}
        if self._next is not None and self._now is not None:
            kept.add(self._now.pid)
        return (self._memory, {*found} - kept), (self._memory_total, found)

    def _others(self) -> int:
        """Return the memory that belongs to no process."""
        return memory.file_bytes() + self._sockets.total() + self._mappings.total

    def _quick_room(self, found: dict[int, memory.Task]) -> int:
        """Return how much memory is left at least; less than nothing if it may be too much."""
        others = self._others()
        rooms = []
        for limit, pids in self._parts(found):
            held = sum(found[pid].private + found[pid].page_tables for pid in pids)
            room = limit - others - held
            rooms.append(room - memory.pipe_bytes(pids, room=max(0, room)))
        return min(rooms)

    def _exact_room(self, found: dict[int, memory.Task], wanted: int = 0) -> int:
        """Return how much memory is left when `wanted` is mapped too; negative if it is too much.

        The host may want to end everything while this counts. That comes first: return 0 then.
        """
        mapped = self._mappings.forget_unmapped(found)
        others = memory.file_bytes() + self._sockets.total() + wanted
        others += self._mappings.total if wanted else mapped
        rooms = []
        for limit, pids in self._parts(found):
            private = memory.shared_out_bytes(
                pids, interrupted=lambda: not wanted and self._host_speaks()
            )
            if private is None:
                return 0
            room = limit - others - private - sum(found[pid].page_tables for pid in pids)
            room -= memory.pipe_bytes(pids, room=max(0, room))
            # The kernel holds one process to its limit, and the keeper several.
            room -= limit // _ROOM_SHARE_KEPT if len(pids) > 1 else 0
            rooms.append((room, limit))
        least, self._tightest = min(rooms)
        return least

    def _end_for_memory(self) -> None:
        self._passed = self._tightest
        self._before = frozenset(self._ours())
        self._sweep()

    # -- shared memory -------------------------------------------------------------------------

    def _listen_to(self, ready: set[int]) -> None:
        """Answer those who ask for shared memory, and take listeners that have arrived."""
        for descriptor in ready & self._listeners.keys():
            listens = self._listeners[descriptor]
            if listens is None:
                self._answer_request(descriptor)
                continue
            del self._listeners[descriptor]
            with contextlib.suppress(Torn), listens:
                _, descriptors = messages.receive(listens)
                self._listeners.update(dict.fromkeys(descriptors))

    def _answer_request(self, listener: int) -> None:
        request = memory.receive_request(listener)
        if request is None:
            poll = select.poll()
            poll.register(listener, select.POLLIN)
            if any(event & select.POLLHUP for _, event in poll.poll(0)):
                # Every process that it was for is gone.
                del self._listeners[listener]
                os.close(listener)
            return
        self._decide(request)

    def _decide(self, request: memory.Request) -> None:
        """Grant a mapping that there is room for, and end the program that asks for another."""
        fresh, found = self._mappings.some_fresh, memory.tasks()
        room = self._quick_room(found) - request.length
        if room >= 0 or self._exact_room(found, request.length) >= 0:
            self._mappings.add(request.length)
            request.answer(0)
        elif fresh:
            # One that was given back a moment ago may still be counted: ask again soon.
            self._postponed.append(request)
            self._watching = True
            self._look_at = min(self._look_at, time.monotonic() + _POSTPONED_SECONDS)
        else:
            self._end_for_memory()
            request.answer(errno.ENOMEM)

    def _listen(self, port: int) -> None:
        """Hand the host a socket that listens inside: what connects to it came from the box."""
        with socket.create_server(("127.0.0.1", port)) as listening:
            messages.send(self._host, {"listening": True}, [listening.fileno()])
