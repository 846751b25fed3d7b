"""Processes of a box, as its keeper starts, copies, counts and ends them."""

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
from tallystick.sandbox.process.inside.messages import Torn

# Who is in a box, as the kernel shows it.


def processes() -> dict[int, int]:
    """Return every process in the box but the keeper, with how many threads it has.

    The dead do not count, whether their parent has reaped them or not.
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
    """Return how many threads a process has; 0 if it is dead."""
    state, threads = _state(pid)
    return 0 if state in b"ZX" else threads


def any_in(states: bytes) -> bool:
    """Return whether any process in the box is in one of these states, given as letters."""
    return any(_state(pid)[0] in states for pid in _numbers())


def _state(pid: int) -> tuple[bytes, int]:
    """Return a letter for what a process does, and its number of threads."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name in parentheses may hold anything; what follows the last one is ours.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return b"X", 0
    return fields[0], int(fields[17])


# Processes of a box, as its keeper starts, copies and ends them.


ANSWER_SECONDS = 3.0
_SWEEP_SECONDS = 2.0
_REST_SECONDS = 0.0005
_REST_SECONDS_MAX = 0.01


class Full(Exception):
    """There are as many processes as there may be."""


class Process:
    """A process of ours in the box: where it listens, and who it is."""

    def __init__(self, pid: int, control: socket.socket) -> None:
        self.pid = pid
        self.control = control
        # What a program has made of it may never answer.
        control.settimeout(ANSWER_SECONDS)

    def end(self) -> None:
        self.control.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def start(
    work: Callable[[socket.socket], None], confinement: Confinement, *, niceness: int
) -> tuple[Process, socket.socket]:
    """Start a process that gives up its rights and then does `work`.

    Returns it, and a socket on which its listener for requests of shared memory will arrive.
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
        # Where the kernel shares the processor out by sessions, the keeper has a share of its own.
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
    """Have a waiting interpreter make a copy of itself.

    Raises `Full` if there may be no more processes, and `Torn` if it does not answer.
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
        raise Full
    # The kernel says who sent it; what the message says would be a program's word.
    if not sender:
        raise Torn("the copy did not say who it is")
    return Process(sender, ours)


def reap() -> None:
    """Bury the dead, of whom the keeper is the last parent."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def sweep(spared: frozenset[int]) -> None:
    """End every process that is not spared, and wait until they are dead or two seconds are over.

    All are stopped first, by one call: the kernel lets no fork slip through it, and what is stopped
    leaves the processor to the keeper.
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
    """Let every process in the box go on."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGCONT)
