"""Processes of a box, as its keeper starts, copies and ends them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from tallystick.sandbox.process.inside import kernel, messages
from tallystick.sandbox.process.inside.census import processes
from tallystick.sandbox.process.inside.confine import Confinement, confine
from tallystick.sandbox.process.inside.messages import Torn

__all__ = ["ANSWER_SECONDS", "Full", "Process", "copy_of", "reap", "start", "sweep"]

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
