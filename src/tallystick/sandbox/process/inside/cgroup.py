"""Control groups: one limit for a box as a whole, if the host lets us divide our own group.

Other limits count each process; a group counts all of them together, with the kernel's own memory.
Few hosts give a group to an ordinary user. Without one, the other limits must be enough.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time

_PREFIX = "tally-"
_TRIES = 50
_NEEDED = ("memory.max", "pids.max")


def own_group_path(*, proc: str = "/proc/self") -> str:
    """Return the directory of this process's control group. Raise `OSError` if there is none."""
    with open(f"{proc}/cgroup", encoding="utf-8") as file:
        paths = [line[3:].rstrip("\n") for line in file if line.startswith("0::")]
    with open(f"{proc}/mountinfo", encoding="utf-8") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            if after.startswith("cgroup2 ") and paths:
                root, mounted = before.split()[3:5]
                below = os.path.relpath(paths[0], root)
                if not below.startswith(".."):
                    return os.path.normpath(os.path.join(mounted, below))
    raise OSError(errno.ENOENT, "there are no control groups of version 2")


class Group:
    """The control group of one box, by its directory.

    `limit` and `add`, which puts a process into it, raise `OSError` if the host refuses that.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def limit(self, *, memory_bytes: int, processes: int) -> None:
        """Set the limits whose files exist in the group. Raise `OSError` if that fails."""
        for name, value in (
            ("memory.max", memory_bytes),
            ("memory.swap.max", 0),
            ("memory.oom.group", 1),
            ("pids.max", processes),
        ):
            if os.path.exists(f"{self.path}/{name}"):
                _put(f"{self.path}/{name}", str(value))

    def add(self, pid: int) -> None:
        _put(f"{self.path}/cgroup.procs", str(pid))

    def end(self) -> None:
        """Kill every process in the group, and remove it, in 50 tries of a millisecond.

        If that fails, leave it. A later launcher removes it, once this one has ended.
        """
        with contextlib.suppress(OSError):
            _put(f"{self.path}/cgroup.kill", "1")
        for _ in range(_TRIES):
            try:
                os.rmdir(self.path)
                return
            except OSError as error:
                if error.errno != errno.EBUSY:
                    return
                time.sleep(0.001)


def make_group(place: str, name: str) -> Group:
    """Make a group below `place`. Raise `OSError` if the host does not allow it."""
    with contextlib.suppress(OSError):
        _put(f"{place}/cgroup.subtree_control", "+memory +pids")
    path = f"{place}/{_PREFIX}{name}"
    os.mkdir(path)
    return Group(path)


def clear_left_behind(place: str) -> None:
    """Remove the groups whose launcher is dead. Raise `OSError` if `place` cannot be read.

    The launcher is known by its process id in the name of the group. A group that still holds
    processes stays: the kernel does not remove it.
    """
    for name in os.listdir(place):
        if name.startswith(_PREFIX) and not _is_alive(name):
            with contextlib.suppress(OSError):
                os.rmdir(f"{place}/{name}")


def _is_alive(name: str) -> bool:
    """Return True if the process that a group is named after is alive, or may be.

    False for a group that is named after none.
    """
    # The group of a living launcher is empty too, until the box is put into it.
    launcher = next((part for part in name.split("-") if part.isdecimal()), None)
    if launcher is None:
        return False
    try:
        os.kill(int(launcher), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True  # It belongs to another user.
    return True


def unavailable_reason() -> str | None:
    """Return why groups cannot limit a box on this host, or None if they can.

    A group is made and removed to find out.
    """
    try:
        group = make_group(own_group_path(), f"try-{os.getpid()}")
    except OSError as error:
        return error.strerror or str(error)
    missing = [name for name in _NEEDED if not os.path.exists(f"{group.path}/{name}")]
    group.end()
    return f"the group has no {' and no '.join(missing)}" if missing else None


def _put(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
