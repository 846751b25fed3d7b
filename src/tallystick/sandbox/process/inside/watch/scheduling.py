"""Let the keeper run before everything in its box, so that no number of processes can delay it.

The launcher of a root user allows its keepers the lowest real-time priority. What the keeper starts
is scheduled as usual again. Other users cannot be given it: their keepers have a share of the
processor of their own where the kernel divides it by sessions, and otherwise what others have.
"""

from __future__ import annotations

import contextlib
import os
import resource

_PRIORITY = 1
_NICENESS = -20


def allow_first() -> None:
    """Allow this process and its children to run first. Does nothing for ordinary users.

    Either by limits, under which the keeper can change its priority at will, or where a root user
    may not raise limits, by the priority itself.
    """
    for kind, value in (
        (resource.RLIMIT_RTPRIO, _PRIORITY),
        (resource.RLIMIT_NICE, 20 - _NICENESS),
    ):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (value, value))
    if not _can_come_back():
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))


def run_first() -> None:
    """Run before others from now on, as far as it is allowed. Children do not."""
    with contextlib.suppress(OSError):
        parameter = os.sched_param(_PRIORITY)
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, parameter)
        return
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)


def run_as_others(niceness: int) -> None:
    """Run as any other process does, until `run_first` is called, if that can be undone."""
    if _can_come_back():
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
            os.setpriority(os.PRIO_PROCESS, 0, niceness)


def stay_with_others() -> None:
    """Run as any other process does, for good."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _can_come_back() -> bool:
    return resource.getrlimit(resource.RLIMIT_RTPRIO)[0] >= _PRIORITY
