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

# Who is in a box, and how much memory they hold, as the kernel shows it.


_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def processes() -> dict[int, int]:
    """Every process in the box but the keeper, with how many threads it has.

    The dead do not count, whoever has to bury them.
    """
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                # The name in parentheses may hold anything; what follows the last one is ours.
                fields = file.read().rpartition(b")")[2].split()
                if fields[0] not in (b"Z", b"X"):
                    found[int(name)] = int(fields[17])
    return found


def resident_bytes() -> int:
    """Memory of all, where what two share counts twice: quick to know, and never too little."""
    total = 0
    for pid in processes():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/statm", "rb") as file:
            total += int(file.read().split()[1])
    return total * _PAGE_BYTES


def shared_out_bytes() -> int:
    """The same with what is shared divided among those who share it."""
    total = 0
    for pid in processes():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


# Processes of a box, as its keeper starts, copies and ends them.


ANSWER_SECONDS = 3.0
_SWEEPS_MAX = 200


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


def start(work: Callable[[socket.socket], None], confinement: Confinement) -> Process:
    """Start a process that gives up its rights and then does `work`."""
    ours, theirs = messages.pair()
    pid = os.fork()
    if pid:
        theirs.close()
        return Process(pid, ours)
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        kernel.close_all_but(theirs.fileno())
        confine(confinement)
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
    """End every process that is not spared.

    All are stopped first, at once: what is stopped starts nothing more.
    """
    for _ in range(_SWEEPS_MAX):
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGSTOP)
        new = [pid for pid in processes() if pid not in spared]
        for pid in new:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        reap()
        if not new:
            break
        time.sleep(0.0005)
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGCONT)
