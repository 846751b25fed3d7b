"""The keeper: the first process of a box, which starts, watches and ends all others in it.

When the keeper ends, the kernel ends all other processes of the box. The keeper ends when the host
closes its connection. It alone keeps the capabilities of the box, which it needs to mount layers.
Programs can neither signal it nor look into it.
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
from tallystick.sandbox.process.inside.layers import OpenForWriting, WorkingDirectory
from tallystick.sandbox.process.inside.messages import ConnectionLost
from tallystick.sandbox.process.inside.process import (
    ANSWER_SECONDS,
    Process,
    TooManyProcesses,
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

# How long the keeper may wait before it counts memory again. The nearer the limit, the shorter,
# because a processor can fill about this much memory in a second.
_LOOK_SECONDS_MAX = 0.1
_LOOK_SECONDS_MIN = 0.004
_FILLED_BYTES_PER_SECOND = 6 << 30
# If little room is left, and it becomes less, each count stops all processes, and they run only for
# moments in between. A part of the room is reserved for what they fill in such a moment.
_LITTLE_ROOM_BYTES = 64 << 20
_FILLED_BYTES = 1 << 20
_FILLING_LOOKS = 10
_FILLING_SECONDS_MIN = 0.0005
_ROOM_SHARE_KEPT = 32
# More busy tasks than this leave the host too little of the processor to notice that their time is
# over. So each count stops them.
_CROWD = max(32, 8 * (os.cpu_count() or 1))
_CROWDED_LOOKS = 5
# How long to wait until processes have stopped: all of them, and then only those that run.
_STOP_SECONDS = 0.1
_STOP_SECONDS_MAX = 2.0
# An exact count is used for this many times as long as it took.
_COUNT_SHARE = 10
_POSTPONED_SECONDS = 0.02
# A program needs room for this many processes and threads. If the box has less, it is cleared.
_ROOM = 16
# The orders for which a process of ours works on the files, each with its time limit in seconds.
_FILE_WORK: dict[str, tuple[Callable[[socket.socket], None], float]] = {
    "pack_files": (archive.pack_files, 60.0),
    "unpack_files": (archive.unpack_files, 60.0),
    "list_files": (archive.list_files, 20.0),
}
_TRIES = 50
_MOMENT_SECONDS = 0.01


class _ExactCount(NamedTuple):
    """The result of an exact count of memory: the room that was left, and the growth since then.

    It is used until `valid_until`, in monotonic seconds.
    """

    room: int
    others: int
    growth: memory.Growth
    valid_until: float


class Keeper:
    """The server in the box that carries out the host's orders, one at a time."""

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
        # The process that holds the namespace, and the copy of it that runs the program.
        self._now: Process | None = None
        self._next: Process | None = None
        # The process that starts commands, and whether one is running.
        self._shell: Process | None = None
        self._commanding = False
        # The copies of the namespace that snapshots keep, by name.
        self._frozen: dict[str, Process | None] = {}
        # The processes that existed before the program or command: only others are ended with it.
        self._before: frozenset[int] = frozenset()
        # The process that held the namespace before the last program.
        self._leaving: Process | None = None
        # True if the namespace was lost since the last program that was started.
        self._lost = False
        self._wakes = -1
        self._watching = False
        self._look_at = 0.0
        # The limit of the last program or command, for everything in the box.
        self._memory = memory_total_bytes
        # The limit that was passed, if any, and the limit with the least room below it.
        self._passed: int | None = None
        self._tightest = memory_total_bytes
        self._postponed: list[memory.Request] = []
        self._counted: _ExactCount | None = None
        # Since when all processes are being stopped, in monotonic seconds.
        self._stopping: float | None = None
        # For how many counts the box is still taken to be crowded. One is not enough, because
        # stopped processes look idle.
        self._crowded = 0
        # The same for a box that fills the last of its memory, and the room at the last count.
        self._filling = 0
        self._room = 0
        self._mappings = memory.SharedMappings()
        self._sockets = memory.SocketBuffers()
        self._listeners: dict[int, socket.socket | None] = {}
        self._niceness = os.getpriority(os.PRIO_PROCESS, 0)

    def serve(self) -> None:
        """Carry out orders until the host closes the connection. Return then."""
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
                except ConnectionLost:
                    return
                # The order may need an answer from a process that is stopped now.
                self._continue()
                try:
                    self._do(message, descriptors)
                finally:
                    messages.close_quietly(descriptors)

    def _poll(self) -> set[int]:
        """Wait for an event, or until it is time to count memory. Return the ready descriptors."""
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
        """Return the next message of a process, and answer requests for shared memory meanwhile.

        The process itself may be waiting for such memory. Raise `ConnectionLost` if no message
        comes in time, by default 3 s.
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
        raise ConnectionLost("no answer in time")

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
                peak = self._peak_of_next()
                messages.send(self._host, {"kept": self._keep(), "memory_bytes": peak})
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
        """Start a program, and tell the host so. If the namespace is lost, start in a new one.

        The message to the host says if variables were lost, and if processes were ended to make
        room. If the program cannot be started, after 50 tries at most, it says that.
        """
        swept = self._make_room(message["memory_bytes"])
        order = {key: message[key] for key in ("do", "memory_bytes", "where", "seed")}
        for _ in range(_TRIES):
            if self._now is None:
                self._now = self._start(self._interpret)
                self._before |= {self._now.pid}
            try:
                self._next = copy_of(self._now, order, descriptors)
            except TooManyProcesses:
                # Processes that were killed may still exist for a moment.
                self._before, swept = frozenset(self._ours()), True
                self._sweep()
                time.sleep(_MOMENT_SECONDS)
                continue
            except ConnectionLost:
                # The namespace does not answer. A new one that does not either is no use.
                if self._lost:
                    break
                self._lose()
                continue
            messages.send(self._host, {"begun": True, "lost": self._lost, "swept": swept})
            self._lost = False
            return
        messages.send(self._host, {"begun": False})

    def _make_room(self, memory_bytes: int | None = None) -> bool:
        """Record the processes that exist before a program, and start to watch memory.

        If they leave the program no room for processes of its own, end all but ours, and return
        True. Otherwise a fork bomb in the background would make the session unusable.
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
        """Mark the namespace as lost: a program has ended the process that held it."""
        if self._now is not None:
            self._now.end()
        self._now, self._lost = None, True

    def _keep(self) -> bool:
        """Make the interpreter of a program that has ended by itself the namespace.

        The process that held the namespace before is ended. Return False, and change nothing, if
        the new one does not wait for orders again within 3 s.
        """
        if self._next is None:
            return False
        try:
            self._answer_of(self._next)
        except ConnectionLost:
            return False
        if self._now is not None:
            self._now.end()
        self._leaving, self._now, self._next = self._now, self._next, None
        return True

    def _drop(self) -> dict[str, Any]:
        """End all processes that the program or command started; return the message for the host.

        It has the status of the interpreter and the memory limit that was passed, or None.
        """
        peak = self._peak_of_next()
        if self._next is not None:
            self._next.control.close()
        self._sweep()
        status = self._status_of_next()
        self._next = None
        if self._commanding and self._shell is not None:
            with contextlib.suppress(ConnectionLost):
                self._answer_of(self._shell)
        self._commanding = False
        passed = self._passed
        return {"dropped": True, "status": status, "memory": passed, "memory_bytes": peak}

    def _peak_of_next(self) -> int:
        """Return the most bytes that the process of the program has had, 0 if that is unknown."""
        return 0 if self._next is None else memory.peak_bytes(self._next.pid)

    def _status_of_next(self) -> int | None:
        if self._next is None or self._now is None:
            return None
        try:
            messages.send(self._now.control, {"do": "status", "of": self._next.pid})
            status = self._answer_of(self._now).get("status")
        except ConnectionLost:
            self._lose()
            return None
        return status if isinstance(status, int) else None

    def _sweep(self) -> None:
        sweep(self._before)

    # -- commands ------------------------------------------------------------------------------

    def _command(self, message: dict[str, Any], descriptors: list[int]) -> None:
        """Start a command. The shell starts with the first one, and again if it was ended.

        If the shell takes no command in two tries, tell the host that it ended with status -1.
        """
        self._make_room(message["memory_bytes"])
        for _ in range(2):
            if self._shell is None:
                self._shell = self._start(shell.serve)
            self._before |= {self._shell.pid}
            try:
                messages.send(self._shell.control, {"do": "command"}, descriptors)
            except ConnectionLost:
                self._shell.end()
                self._shell = None
                continue
            self._commanding = True
            return
        messages.send(self._host, {"ended": -1, "memory": None})

    def _command_ended(self) -> None:
        """Tell the host how a command ended. If the shell itself ended, report SIGKILL.

        If no command is running, as after `_drop`, tell nothing.
        """
        assert self._shell is not None
        try:
            status = messages.receive_plain(self._shell.control).get("ended")
        except ConnectionLost:
            self._shell.end()
            self._shell = None
            status = -int(signal.SIGKILL)
        if self._commanding:
            self._commanding = False
            code = status if isinstance(status, int) else -1
            messages.send(self._host, {"ended": code, "memory": self._passed})

    # -- states --------------------------------------------------------------------------------

    def _states(self, what: str, name: str) -> dict[str, Any]:
        # Copies of many files take long, and must not keep other processes from the processor.
        scheduling.run_normally(self._niceness)
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
        except OpenForWriting as error:
            return {"done": False, "held": str(error)}
        except OSError as error:
            return {"done": False, "why": f"{error.strerror or error}"}
        finally:
            scheduling.run_first()
        return {"done": True}

    def _freeze(self, name: str) -> None:
        copy = self._copy(self._now)
        if copy is None and self._now is not None:
            raise OSError(errno.EAGAIN, "the interpreter could not be copied")
        self._wait_until_gone(self._leaving)
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
        self._wait_until_gone(self._now)
        self._working.restore(name)
        self._now = self._copy(kept)
        self._lost = self._now is None

    def _wait_until_gone(self, process: Process | None) -> None:
        """Wait until a killed process is gone, 3 s at most. Until then its files are still open."""
        until = time.monotonic() + ANSWER_SECONDS
        while process is not None and process.pid in processes() and time.monotonic() < until:
            time.sleep(0.0005)

    def _copy(self, process: Process | None) -> Process | None:
        if process is None:
            return None
        try:
            return copy_of(process, {"do": "copy"}, [])
        except (ConnectionLost, TooManyProcesses):
            return None

    # -- to and from the host's disk -----------------------------------------------------------

    def _variables(self, what: str, descriptors: list[int]) -> None:
        """Fork the interpreter, and let the copy write its variables, or load others.

        A copy that loads variables is the next namespace, once the host sends "keep". For loading,
        tell the host whether there is a copy. Without one, nothing is written.
        """
        self._make_room()
        copy = None
        with contextlib.suppress(ConnectionLost, TooManyProcesses):
            if self._now is not None:
                copy = copy_of(self._now, {"do": what}, descriptors)
        if what == "unpack_variables":
            self._next = copy
            messages.send(self._host, {"begun": copy is not None})
        elif copy is not None:
            copy.control.close()

    def _files(self, what: str, order: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """Carry out an order on the files in a process of our own, and return its answer.

        If it ends or gives no answer within its time limit, return an answer that says so. The
        descriptors are closed here once they are sent, and taken out of the list.
        """
        work, seconds = _FILE_WORK[what]
        self._make_room()
        process = self._start(work)
        try:
            messages.send(process.control, order, descriptors)
            messages.close_quietly(descriptors)
            descriptors.clear()
            return self._answer_of(process, seconds)
        except ConnectionLost:
            return {"packed": False, "unpacked": False, "why": "it was ended"}
        finally:
            process.end()

    # -- the rest ------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Count the memory of the box if it is time, and end all programs if it is too much.

        This goes on while a program runs, or while processes that one has left still exist. Then
        decide on requests for shared memory that were postponed.
        """
        began = time.monotonic()
        if not self._watching or began < self._look_at:
            return
        if self._crowded or self._filling:
            # Even the quick count would take long beside so many busy processes: stop them first.
            self._has_stopped(began)
            self._crowded, self._filling = max(0, self._crowded - 1), max(0, self._filling - 1)
        found = memory.tasks()
        room = self._quick_room(found)
        if sum(task.busy for task in found.values()) > _CROWD:
            self._crowded = _CROWDED_LOOKS
        # The quick count is too high where memory is shared. For a while, the last exact count is
        # used instead, less the most that can have been added since.
        if room < 0 and self._counted is not None and began < self._counted.valid_until:
            room = self._counted.room - self._counted.growth.since(found)
            room -= self._others() - self._counted.others
        if room < 0 or self._crowded:
            # Only an exact count may end programs, and it is right only while they are stopped.
            if not self._has_stopped(began):
                self._look_at = time.monotonic() + _LOOK_SECONDS_MIN
                return
            room = self._exact_room(found)
            if room < 0:
                self._end_for_memory()
                # All but ours were ended, so there is room again.
                found = {pid: task for pid, task in found.items() if pid in self._before}
                room = self._memory
            else:
                now = time.monotonic()
                self._counted = _ExactCount(
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
        """Stop all processes in the box, and return True once they have stopped.

        An exact count takes a while, in which they could fill as much again. It also waits for
        locks, and the process that holds one may not get the processor because of the others. A
        process that waits in the kernel cannot be stopped, and holds no such lock for long. So it
        is waited for only 0.1 s, and a running one 2 s.
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
        """Return True if a message of the host is waiting."""
        poll = select.poll()
        poll.register(self._host, select.POLLIN)
        return bool(poll.poll(0))

    def _rest(self, room: int) -> float:
        """Return the seconds until the next count: the time in which the room could be filled.

        That is within 4 ms (0.5 ms if the box is being filled) and 0.1 s.
        """
        seconds = room / (_FILLED_BYTES_PER_SECOND * (os.cpu_count() or 1))
        least = _FILLING_SECONDS_MIN if self._filling else _LOOK_SECONDS_MIN
        return min(max(seconds, least), _LOOK_SECONDS_MAX)

    def _parts(self, found: Collection[int]) -> tuple[tuple[int, Collection[int]], ...]:
        """Return each limit with the processes that count for it.

        Processes that are kept to go back to count only for the limit of the session. So a program
        is not ended because there are snapshots, or because it changes all that it was given.
        """
        kept = {each.pid for each in self._frozen.values() if each is not None}
        if self._next is not None and self._now is not None:
            kept.add(self._now.pid)
        return (self._memory, {*found} - kept), (self._memory_total, found)

    def _others(self) -> int:
        """Return the bytes of memory that belong to no process."""
        return memory.file_bytes() + self._sockets.total() + self._mappings.total

    def _quick_room(self, found: dict[int, memory.Task]) -> int:
        """Return a lower bound of the bytes that are left; negative if a limit may be passed."""
        others = self._others()
        rooms = []
        for limit, pids in self._parts(found):
            held = sum(found[pid].private + found[pid].page_tables for pid in pids)
            room = limit - others - held
            rooms.append(room - memory.pipe_bytes(pids, room=max(0, room)))
        return min(rooms)

    def _exact_room(self, found: dict[int, memory.Task], wanted: int = 0) -> int:
        """Return the bytes that are left after `wanted` more are mapped; negative if too many.

        An order of the host, such as to end everything, comes first: if one arrives during the
        count, and nothing is `wanted`, return 0. Otherwise the limit with the least room is noted.
        """
        mapped = self._mappings.forget_unmapped(found)
        others = memory.file_bytes() + self._sockets.total() + wanted
        others += self._mappings.total if wanted else mapped
        rooms = []
        for limit, pids in self._parts(found):
            private = memory.proportional_bytes(
                pids, interrupted=lambda: not wanted and self._host_speaks()
            )
            if private is None:
                return 0
            room = limit - others - private - sum(found[pid].page_tables for pid in pids)
            room -= memory.pipe_bytes(pids, room=max(0, room))
            # The kernel enforces the limit of one process, so the whole of it can be used. For
            # several, the keeper enforces it, and needs a reserve.
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
        """Answer requests for shared memory, and register listeners that have arrived."""
        for descriptor in ready & self._listeners.keys():
            listens = self._listeners[descriptor]
            if listens is None:
                self._answer_request(descriptor)
                continue
            del self._listeners[descriptor]
            with contextlib.suppress(ConnectionLost), listens:
                _, descriptors = messages.receive(listens)
                self._listeners.update(dict.fromkeys(descriptors))

    def _answer_request(self, listener: int) -> None:
        """Decide on the next request of a listener, or close it if its processes have ended."""
        request = memory.receive_request(listener)
        if request is None:
            poll = select.poll()
            poll.register(listener, select.POLLIN)
            if any(event & select.POLLHUP for _, event in poll.poll(0)):
                # Every process with this filter has ended.
                del self._listeners[listener]
                os.close(listener)
            return
        self._decide(request)

    def _decide(self, request: memory.Request) -> None:
        """Grant a mapping if there is room for it; otherwise end the programs in the box.

        In the second case the call fails with ENOMEM, if its process is still there. If a mapping
        was granted a moment ago, decide later instead.
        """
        fresh, found = self._mappings.any_recent, memory.tasks()
        room = self._quick_room(found) - request.length
        if room >= 0 or self._exact_room(found, request.length) >= 0:
            self._mappings.add(request.length)
            request.answer(0)
        elif fresh:
            # A mapping that is already gone may still be counted: count again soon.
            self._postponed.append(request)
            self._watching = True
            self._look_at = min(self._look_at, time.monotonic() + _POSTPONED_SECONDS)
        else:
            self._end_for_memory()
            request.answer(errno.ENOMEM)

    def _listen(self, port: int) -> None:
        """Send the host a socket that listens in the box's network: only the box can connect."""
        with socket.create_server(("127.0.0.1", port)) as listening:
            messages.send(self._host, {"listening": True}, [listening.fileno()])
