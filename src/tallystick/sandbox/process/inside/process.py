"""Start, copy, list, stop and end the processes of a box, for its keeper."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from tallystick.sandbox.process.inside import kernel, messages
from tallystick.sandbox.process.inside.confine import Confinement, confine
from tallystick.sandbox.process.inside.messages import ConnectionLost

# The processes in a box, as the kernel shows them.


def processes() -> dict[int, int]:
    """Return every live process in the box but the keeper: its id and its number of threads.

    Zombies do not count.
    """
    found = {}
    for pid in _numbers():
        threads = _threads(pid)
        if threads:
            found[pid] = threads
    return found


def _numbers() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]


def _threads(pid: int) -> int:
    """Return the number of threads of a process; 0 if it is dead or a zombie."""
    state, threads = _state(pid)
    return 0 if state in b"ZX" else threads


def any_in(states: bytes) -> bool:
    """Return True if a process in the box is in one of these states, given as letters."""
    return any(_state(pid)[0] in states for pid in _numbers())


def _state(pid: int) -> tuple[bytes, int]:
    """Return the state of a process as a letter, and its number of threads; X and 0 if gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name in parentheses may contain anything, also parentheses. The fields are after
            # the last one.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return b"X", 0
    return fields[0], int(fields[17])


# Start, copy, stop and end processes.


ANSWER_SECONDS = 3.0
_SWEEP_SECONDS = 2.0
_REST_SECONDS = 0.0005
_REST_SECONDS_MAX = 0.01


class TooManyProcesses(Exception):
    """The box has as many processes as it may have."""


class Process:
    """A process of ours in the box: its id, and the connection on which it takes orders."""

    def __init__(self, pid: int, control: socket.socket) -> None:
        self.pid = pid
        self.control = control
        # A program may have changed the process, so that it never answers.
        control.settimeout(ANSWER_SECONDS)

    def end(self) -> None:
        """Kill the process and close its connection. It may still exist for a moment."""
        self.control.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def start(
    work: Callable[[socket.socket], None], confinement: Confinement, *, niceness: int
) -> tuple[Process, socket.socket]:
    """Start a process that confines itself, does `work`, and ends.

    Return it, and a socket on which its descriptor for requests of shared memory arrives. The
    socket ends without one if there is no filter, or if the kernel cannot ask. An error in that
    process ends it, and is written to its stderr. Raise `OSError` if it cannot be forked.
    """
    ours, theirs = messages.pair()
    listens, listener = messages.pair()
    pid = os.fork()
    if pid:
        theirs.close()
        listener.close()
        return Process(pid, ours), listens
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        kernel.close_all_but(theirs.fileno(), listener.fileno())
        # If the kernel divides the processor by sessions, the keeper has a share of its own then.
        os.setsid()
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
        asked = confine(confinement)
        if asked is not None:
            messages.send(listener, {"listener": True}, [asked])
            os.close(asked)
        listener.close()
        work(theirs)
    except BaseException as error:
        os.write(2, f"tallystick box: {error!r}\n".encode())
    finally:
        os._exit(70)


def copy_of(process: Process, message: dict[str, Any], more: list[int]) -> Process:
    """Let a waiting interpreter fork a copy of itself, and return the copy.

    `message` says what the copy does, and `more` are descriptors for it, which stay open here.
    Raise `TooManyProcesses` if the box may have no more processes, and `ConnectionLost` if there is
    no answer within 3 s.
    """
    ours, theirs = messages.pair()
    try:
        ours.settimeout(ANSWER_SECONDS)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        messages.send(process.control, message, [theirs.fileno(), *more])
    finally:
        theirs.close()
    answer, descriptors, sender = messages.receive_from(ours)
    messages.close_quietly(descriptors)
    if "cannot" in answer:
        raise TooManyProcesses
    # The id comes from the kernel. One in the message could be forged by a program.
    if not sender:
        raise ConnectionLost("the copy did not say who it is")
    return Process(sender, ours)


def reap() -> None:
    """Reap all zombies whose parent is the keeper."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def sweep(spared: frozenset[int]) -> None:
    """Kill every process but the keeper and those spared, and wait for their end, 2 s at most.

    First one call stops all of them: no fork escapes that call, and stopped processes leave the
    processor to the keeper. Those that are spared continue at the end.
    """
    until, rest = time.monotonic() + _SWEEP_SECONDS, _REST_SECONDS
    while True:
        stop_all()
        ended = [pid for pid in _numbers() if pid not in spared]
        for pid in ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        reap()
        if not any(_threads(pid) for pid in ended) or time.monotonic() > until:
            break
        time.sleep(rest)
        rest = min(2 * rest, _REST_SECONDS_MAX)
    continue_all()


def stop_all() -> None:
    """Stop every process in the box but the keeper, at once."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGSTOP)


def continue_all() -> None:
    """Continue every stopped process in the box."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGCONT)
