"""Let the keeper run before everything in its box, so that no number of processes can delay it.

If root runs the launcher, its keepers get the lowest real-time priority. Processes that a keeper
starts are scheduled as usual. Ordinary users cannot give that priority. Their keepers have a share
of the processor of their own if the kernel divides it by sessions; otherwise one like any process.
"""

from __future__ import annotations

import contextlib
import os
import resource

_PRIORITY = 1
_NICENESS = -20


def allow_first() -> None:
    """Allow this process and its children to run first. For ordinary users, do nothing.

    Raise the limits, so that the keeper can change its priority as it likes. If root may not raise
    them, set the priority itself.
    """
    for kind, value in (
        (resource.RLIMIT_RTPRIO, _PRIORITY),
        (resource.RLIMIT_NICE, 20 - _NICENESS),
    ):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (value, value))
    if not _can_raise_priority():
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))


def run_first() -> None:
    """Run this process before others from now on, as far as allowed; but not its children."""
    with contextlib.suppress(OSError):
        parameter = os.sched_param(_PRIORITY)
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, parameter)
        return
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)


def run_normally(niceness: int) -> None:
    """Run this process like any other until `run_first` is called; nothing if it could not be."""
    if _can_raise_priority():
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
            os.setpriority(os.PRIO_PROCESS, 0, niceness)


def stay_normal() -> None:
    """Run this process like any other from now on."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _can_raise_priority() -> bool:
    """Return True if the limits allow this process to take the real-time priority again."""
    return resource.getrlimit(resource.RLIMIT_RTPRIO)[0] >= _PRIORITY
